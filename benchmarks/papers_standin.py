"""Rows of the papers whose inputs are only described: stand-ins for them, said in each row.

- EC3, table 2 (row 4) and figure 6: its figure 5 shows 83 jobs of one node and 41 of two, of one or
  two hours. Ours come in four waves of 31, so that 35 nodes are not enough (as theirs used the
  public ones), every third one of two nodes, hours in turn; nodes boot as in its table 1. The paper
  does not say when they come. The makespan is three spacings and the last wave, so it is shown over
  a range, and so are the waits and how often the public cloud is used.
- EC3, figure 11 (rows 6 to 8): the prices of 9 to 14 September 2015 and the thirteen jobs are not
  to be had. Ours are thirteen jobs of 50 % to 150 % of the mean length. So five last longer than 60
  hours and are killed, as five of theirs were between hours 57 and 63: that is built in, and with
  it that a job without checkpoints takes over half as long again. Prices are those of the same
  type on each trace at hand that crosses the bid after 60 hours below it. Where in its paid hour a
  machine is lost is varied.
- VHEC (row 22): 10, 2 and 2 jobs of 55 min at minutes 17, 50 and 85; its front end takes none. We
  count the moments at which machines are started. The paper counts the five that it begins with as
  one more. When the last job ends depends little on the policy; policies and boots are varied.

Row 17 (SEC's figure 2) needs four jobs that are only drawn: its three utilisations are 17
node-hours of work in 24, 30 and 22, which many jobs give. VHEC's figure 3 is a migration, which the
simulator has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from benchmarks.report import Row, holds, identity, noted, ranged, within
from slurm_elastic.policies.checkpoint.checkpoint import AnyPolicy, Hour, Never, Threshold
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    GroupBursts,
    OnDemand,
    Ratio,
    SemiElastic,
    Slurm,
    SteadyStream,
)
from slurm_elastic.policies.growth.release import AnyRelease, AtOnce, Delayed, Flagged, Idle
from slurm_elastic.providers.base.prices.trace import load_trace
from slurm_elastic.simulate import series
from slurm_elastic.simulate.bills.billing import Curve, Hourly
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.scenario import Clock, PoolModel, Scenario

HOUR, MINUTE = 3600, 60
BID = 0.067
MEAN_JOB = 191_407
CROSSING = 60 * HOUR
PHASES = (0, 15, 30, 45)
SPACINGS = range(3600, 13_601, 1000)
POLICIES: dict[str, AnyPolicy] = {
    "none": Never(), "hour": Hour(200), "threshold": Threshold(200),
}  # fmt: skip


def vhec() -> list[Row]:
    """22: how often machines are started, and minutes until the last job ends."""
    cases: Sequence[tuple[str, AnyGrowth, AnyRelease, int, int]] = (
        ("a, on demand both ways", OnDemand(), AtOnce(), 148, 4),
        ("b, delayed release", OnDemand(), Delayed(on_premises=600), 144, 3),
        ("c, bursts of 2", GroupBursts(group=2), Delayed(on_premises=600), 142, 2),
    )
    rows = []
    for name, growth, release, minutes, periods in cases:
        end, moments = _three_batches(growth, release)
        rows.append(noted(f"22 VHEC {name}: end (paper: {minutes})", end, "min"))
        rows.append(
            within(f"22 VHEC {name}: moments of starts, and the first five", moments + 1, periods,
                   "", 0)
        )  # fmt: skip
    policies: dict[str, tuple[AnyGrowth, AnyRelease]] = {
        "slurm+idle(600)": (Slurm(), Idle(600)),
        "on_demand+idle(60)": (OnDemand(), Idle(60)),
        "ratio+idle(600)": (Ratio(), Idle(600)),
        "bursts(180)+idle(600)": (Bursts(180), Idle(600)),
        "semi_elastic+delayed": (SemiElastic(), Delayed()),
        "steady_stream(180)+flagged": (SteadyStream(180), Flagged()),
        **{name: (growth, release) for name, growth, release, _, _ in cases},
    }
    ends = {name: _three_batches(*policy)[0] for name, policy in policies.items()}
    by_boot = {f"{boot} min": _three_batches(OnDemand(), AtOnce(), boot) for boot in range(3, 13)}
    starts = {boot: found[1] + 1.0 for boot, found in by_boot.items()}
    near = sum(142 - 5 <= end <= 148 + 5 for end in ends.values())
    return [
        *rows,
        *ranged("22 VHEC end", "with", ends, "min", 148),
        noted(f"22 VHEC policies that end within 5 min of its three, of {len(ends)}", near, ""),
        *ranged("22 VHEC a: moments of starts", "own boots of", starts, "", 4),
    ]


def _three_batches(
    growth: AnyGrowth, release: AnyRelease, on_premises_boot: int = 7
) -> tuple[float, int]:
    """Return when the last job ends (minutes), and at how many moments machines were started."""
    jobs = Jobs(
        Job(number, minute * MINUTE, 55 * MINUTE, 60 * MINUTE, 1)
        for number, minute in enumerate([17] * 10 + [50] * 2 + [85] * 2)
    )
    pools = tuple(
        PoolModel(name=pool, machines=count, public=pool == "public", billing=Hourly(),
                  release=release, boot=BootTimes(((1, boot * MINUTE),)))
        for pool, count, boot in (("on-premises", 5, on_premises_boot), ("public", 10, 17))
    )  # fmt: skip
    outcome = simulate(jobs, Scenario(pools=pools, growth=growth))
    moments = {start for machines in outcome.pools for start in machines.batch_start}
    return max(outcome.ends) / MINUTE, len(moments)


def ec3_table() -> list[Row]:
    """4: makespan and mean wait with 35 nodes on-premises and 15 public ones."""
    runs = {
        name: {spacing: _four_waves(spacing, boot) for spacing in SPACINGS}
        for name, boot in (("on demand", 277), ("spot", 672))
    }
    rows: list[Row] = []
    for name, paper in (("on demand", 38_832), ("spot", 39_381)):
        ends = {at: run.figures.makespan for at, run in runs[name].items()}
        title = f"4 EC3 makespan, {name} (stand-in jobs)"
        near = sum(abs(end - paper) <= 0.25 * paper for end in ends.values())
        rows += [
            *ranged(title, "spacing (s)", ends, "s", paper),
            noted(f"{title}: spacings within 25 % of the paper, of {len(ends)}", near, ""),
        ]
    for name, procs, papers in (("serial", 1, (434, 609)), ("parallel", 2, (883, 1076))):
        for kind, paper in zip(runs, papers, strict=True):
            waits = {at: _mean_wait(run, procs) for at, run in runs[kind].items()}
            rows += ranged(
                f"4 EC3 mean wait of {name} jobs, {kind}", "spacing (s)", waits, "s", paper
            )
    more = {
        at: runs["spot"][at].figures.mean_wait - runs["on demand"][at].figures.mean_wait
        for at in SPACINGS
    }
    bursts = {at: _bursts(run) for at, run in runs["on demand"].items()}
    return [
        *rows,
        *ranged("4 EC3 spot waits longer by", "spacing (s)", more, "s", 175),
        *ranged("fig. 6 EC3 times that the public cloud is used", "spacing (s)", bursts, "", 3),
        holds("4 EC3 spot waits longer than on demand, whatever the spacing", min(more.values()),
              "s", ok=min(more.values()) > 0, goal="> 0"),
    ]  # fmt: skip


def _mean_wait(run: RunResult, procs: int) -> float:
    """The mean wait of jobs of one node, or of two."""
    waits = [
        start - run.jobs.submit[job]
        for job, start in enumerate(run.starts)
        if run.jobs.procs[job] == procs
    ]
    return sum(waits) / len(waits)


def _bursts(run: RunResult) -> int:
    """How often the public cloud gets its first machine."""
    counts = [0.0, *(count for _, count in series.machines(run.pools[-1]))]
    return sum(before == 0 < after for before, after in pairwise(counts))


def _four_waves(spacing: int, boot: int) -> RunResult:
    jobs = Jobs(
        Job(n, spacing * (n // 31), HOUR * (1 + n % 2), HOUR * (1 + n % 2), 2 if n % 3 == 2 else 1)
        for n in range(124)
    )
    pools = (
        PoolModel(name="on-premises", machines=35, public=False, release=Idle(60),
                  boot=BootTimes(((1, 236.0),)), clock=Clock.READY),
        PoolModel(name="public", machines=15, release=Idle(60), boot=BootTimes(((1, boot),)),
                  clock=Clock.READY),
    )  # fmt: skip
    return simulate(jobs, Scenario(pools=pools, growth=OnDemand()))


def ec3_figure(directory: Path) -> list[Row]:
    """6 to 8: what checkpoints save when the price crosses the bid, on each trace that does."""
    rows: list[Row] = []
    for path in sorted((directory / "spot_prices").glob("m3.medium_*.csv.gz")):
        name = path.name.removeprefix("m3.medium_us-east-").removesuffix(".csv.gz")
        if _crossing_at(path, CROSSING) is not None:
            rows += _on_trace(path, name.replace("_", " "))
    return rows


def _on_trace(path: Path, trace: str) -> list[Row]:
    plain = _thirteen(None, Never()).figures
    curve = _crossing_at(path, CROSSING)
    runs = {name: _thirteen(curve, policy).figures for name, policy in POLICIES.items()}
    ratios = {name: run.cost / plain.cost for name, run in runs.items()}
    ordered = ratios["threshold"] <= ratios["hour"] * 1.001 and ratios["hour"] < ratios["none"] < 1
    over: dict[str, float] = {}
    for phase in PHASES:
        late = _crossing_at(path, CROSSING + phase * MINUTE)
        over[f"{phase} min"] = _thirteen(late, Hour(200)).figures.makespan / plain.makespan - 1
    stopped = _thirteen(curve, Hour(200), blocking=True).figures.makespan / plain.makespan - 1
    counts = [runs[name].checkpoints for name in ("hour", "threshold")]
    apart = abs(counts[0] - counts[1]) / max(*counts, 1)
    return [
        *(
            within(f"6 EC3 cost to on demand, {name} (prices of {trace})", ratios[name], paper, "",
                   paper / 10)
            for name, paper in (("none", 0.270), ("hour", 0.211), ("threshold", 0.211))
        ),
        holds(f"6 EC3 threshold <= hour < none < on demand ({trace})", ratios["none"], "",
              ok=ordered, goal="order"),
        identity(f"7 EC3 interruptions of 13 jobs, built in ({trace})",
                 runs["hour"].interruptions, 5, ""),
        noted(f"7 EC3 time overhead, none, built in ({trace}; paper: > 0.5)",
              runs["none"].makespan / plain.makespan - 1, ""),
        *ranged(f"7 EC3 time overhead, hour ({trace})", "lost after the full hour by", over, "",
                0.013),
        noted(f"7 EC3 time overhead, hour, jobs stopped meanwhile ({trace})", stopped, ""),
        noted(f"7 EC3 time overhead, threshold ({trace}; paper: 0.0063)",
              runs["threshold"].makespan / plain.makespan - 1, ""),
        holds(f"8 EC3 hour and threshold: checkpoints apart ({trace}; paper: 0.07)", apart, "",
              ok=apart <= 0.15, goal="<= 0.15"),
    ]  # fmt: skip


def _thirteen(curve: Curve | None, policy: AnyPolicy, *, blocking: bool = False) -> RunResult:
    """Thirteen long jobs; checkpoints do not stop them, as the paper's 1.3 % can only mean: stopped
    for 160 s an hour, jobs take 4.4 % longer.
    """
    lengths = [round(MEAN_JOB * (0.5 + n / 12)) for n in range(13)]
    jobs = Jobs(Job(n, 0, length, length, 1) for n, length in enumerate(lengths))
    pool = PoolModel(
        name="p", machines=13, price=BID, billing=Hourly(refund=True), release=AtOnce(),
        boot=BootTimes(((1, 672.0),)), clock=Clock.READY,
    )  # fmt: skip
    if curve is not None:
        pool = replace(pool, spot=SpotMarket(curve, bid=BID))
    how = Checkpoints(policy=policy, dump=160, restart=74, look=30, blocking=blocking)
    return simulate(jobs, Scenario(pools=(pool,), checkpoints=how))


def _crossing_at(path: Path, when: int) -> Curve | None:
    """The prices, on a clock on which they exceed the bid at ``when`` for the first time. None if
    they never do after so long below it.
    """
    (series,) = load_trace(path).series.values()
    points = list(zip(series.times, series.prices, strict=True))
    calm = points[0][0]
    for (_, before), (time, price) in pairwise(points):
        if before > BID >= price:
            calm = time
        if before <= BID < price and time - calm >= when:
            return Curve([round(t - time) + when for t, _ in points], [p for _, p in points])
    return None
