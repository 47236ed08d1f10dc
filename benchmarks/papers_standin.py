"""Rows of the papers whose inputs are only described: stand-ins for them, said in each row.

- EC3, table 2 (row 4): its figure 5 shows 83 jobs of one node and 41 of two, of one or two hours.
  Ours come in four waves of 31, so that 35 nodes are not enough (as theirs used the public ones),
  every third one of two nodes, hours in turn; nodes boot as in its table 1.
- EC3, figure 11 (rows 6 to 8): the prices of 9 to 14 September 2015 and the thirteen jobs are not
  to be had. Ours are thirteen jobs of 50 % to 150 % of the mean length, so that five last longer
  than 60 hours, as five of theirs were killed between hours 57 and 63; on the prices of the same
  type in zone 1a of that spring, at their first crossing of the bid after 60 hours below it.
- VHEC (row 22): 10, 2 and 2 jobs of 55 min at minutes 17, 50 and 85; its front end takes none.
- Elastic Site, figure 4 (row 20): 60 jobs of 60 s at once.

Row 17 needs numbers that are only drawn, row 21 arrival times and a launch rate that are not given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from benchmarks.report import Row, holds, noted, within
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.policies.checkpoint.checkpoint import AnyPolicy, Hour, Never, Threshold
from slurm_elastic.policies.growth.capacity import AnyGrowth, GroupBursts, OnDemand, SteadyStream
from slurm_elastic.policies.growth.release import AnyRelease, AtOnce, Delayed, Flagged, Idle
from slurm_elastic.providers.base.prices.trace import load_trace
from slurm_elastic.simulate.billing import Curve, Hourly
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.jobs import Job, Jobs
from slurm_elastic.simulate.market import SpotMarket
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.scenario import Clock, PoolModel, Scenario

HOUR, MINUTE, DAY = 3600, 60, 86400
BID = 0.067
MEAN_JOB = 191_407
CROSSING = 60 * HOUR


def vhec() -> list[Row]:
    """22: minutes until the last job ends, and how often machines were deployed."""
    jobs = Jobs(
        Job(number, minute * MINUTE, 55 * MINUTE, 60 * MINUTE, 1)
        for number, minute in enumerate([17] * 10 + [50] * 2 + [85] * 2)
    )
    cases: Sequence[tuple[str, AnyGrowth, AnyRelease, int, int]] = (
        ("a, on demand both ways", OnDemand(), AtOnce(), 148, 4),
        ("b, delayed release", OnDemand(), Delayed(on_premises=600), 144, 3),
        ("c, bursts of 2", GroupBursts(group=2), Delayed(on_premises=600), 142, 2),
    )
    rows = []
    for name, growth, release, minutes, periods in cases:
        pools = tuple(
            PoolModel(name=pool, machines=count, public=pool == "public", billing=Hourly(),
                      release=release, boot=BootTimes(((1, boot * MINUTE),)), clock=Clock.READY)
            for pool, count, boot in (("on-premises", 5, 7), ("public", 10, 17))
        )  # fmt: skip
        outcome = simulate(jobs, Scenario(pools=pools, growth=growth))
        deployed = sum(machines.launches for machines in outcome.pools)
        rows.append(within(f"22 VHEC {name}: end", max(outcome.ends) / MINUTE, minutes, "min", 5))
        rows.append(within(f"22 VHEC {name}: deployments", deployed, periods, "", 0))
    return rows


def steady_or_on_demand() -> list[Row]:
    """20: with steady stream the first jobs wait less, from some job on more; one crossing."""
    jobs = Jobs(Job(number, 0, 60, 120, 1) for number in range(60))
    boot = BootTimes(((1, 94.0), (10, 174.0)))
    pool = PoolModel(name="p", machines=10, release=Flagged(), boot=boot, clock=Clock.READY)
    waits = [
        sorted(simulate(jobs, Scenario(pools=(pool,), growth=growth)).starts)
        for growth in (SteadyStream(180), OnDemand())
    ]
    signs = [s < o for s, o in zip(*waits, strict=True) if s != o]
    crossings = sum(a != b for a, b in pairwise(signs))
    right = crossings == 1 and signs[0] and not signs[-1]
    return [
        holds("20 Elastic Site steady waits less, then more: crossings", crossings, "", ok=right,
              goal="1")
    ]  # fmt: skip


def ec3_table() -> list[Row]:
    """4: makespan and mean wait with 35 nodes on-premises and 15 public ones."""
    jobs = Jobs(
        Job(n, 9300 * (n // 31), HOUR * (1 + n % 2), HOUR * (1 + n % 2), 2 if n % 3 == 2 else 1)
        for n in range(124)
    )
    found = {}
    for name, boot in (("on demand", 277), ("spot", 672)):
        pools = (
            PoolModel(name="on-premises", machines=35, public=False, release=Idle(60),
                      boot=BootTimes(((1, 236.0),)), clock=Clock.READY),
            PoolModel(name="public", machines=15, release=Idle(60), boot=BootTimes(((1, boot),)),
                      clock=Clock.READY),
        )  # fmt: skip
        found[name] = simulate(jobs, Scenario(pools=pools, growth=OnDemand())).figures
    wait, spot_wait = found["on demand"].mean_wait, found["spot"].mean_wait
    return [
        *(
            within(f"4 EC3 makespan, {name} (stand-in jobs)", found[name].makespan, paper, "s",
                   0.25 * paper)
            for name, paper in (("on demand", 38_832), ("spot", 39_381))
        ),
        holds("4 EC3 spot waits longer than on demand by (paper: 175)", spot_wait - wait, "s",
              ok=spot_wait > wait, goal="> 0"),
        noted("4 EC3 mean wait, on demand (paper: 434)", wait, "s"),
        noted("4 EC3 mean wait, spot (paper: 609)", spot_wait, "s"),
    ]  # fmt: skip


def ec3_figure(directory: Path) -> list[Row]:
    """6 to 8: what checkpoints save when the price crosses the bid."""
    path = directory / "spot_prices" / "m3.medium_us-east-1a_2015.csv.gz"
    if not path.is_file():
        return []
    curve = _crossing_at(path, CROSSING)
    policies: dict[str, AnyPolicy] = {
        "none": Never(), "hour": Hour(200), "threshold": Threshold(200),
    }  # fmt: skip
    runs = {name: _thirteen(curve, policy) for name, policy in policies.items()}
    plain = _thirteen(None, Never())
    dear = plain.figures.cost
    ratios = {name: run.figures.cost / dear for name, run in runs.items()}
    over = {name: run.figures.makespan / plain.figures.makespan - 1 for name, run in runs.items()}
    ordered = ratios["threshold"] <= ratios["hour"] * 1.001 and ratios["hour"] < ratios["none"] < 1
    rows = [
        within(
            f"6 EC3 cost to on demand, {name} (other prices)", ratios[name], paper, "", paper / 10
        )
        for name, paper in (("none", 0.270), ("hour", 0.211), ("threshold", 0.211))
    ]
    rows.append(
        holds("6 EC3 threshold <= hour < none < on demand", ratios["none"], "", ok=ordered,
              goal="order")
    )  # fmt: skip
    for name, ok, goal in (
        ("none", over["none"] > 0.5, "> 0.5"),
        ("hour", over["hour"] < 0.03, "< 0.03"),
        ("threshold", over["threshold"] < 0.03, "< 0.03"),
    ):
        rows.append(holds(f"7 EC3 time overhead, {name}", over[name], "", ok=ok, goal=goal))
    for name in ("hour", "threshold"):
        stopped = _thirteen(curve, policies[name], blocking=True).figures.makespan
        rows.append(noted(f"7 EC3 time overhead, {name}, jobs stopped meanwhile",
                          stopped / plain.figures.makespan - 1, ""))  # fmt: skip
    counts = [runs[name].figures.checkpoints for name in ("hour", "threshold")]
    apart = abs(counts[0] - counts[1]) / max(*counts, 1)
    return [
        *rows,
        noted("7 EC3 interruptions of 13 jobs", runs["hour"].figures.interruptions, ""),
        holds("8 EC3 hour and threshold: checkpoints apart (other prices)", apart, "",
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


def _crossing_at(path: Path, when: int) -> Curve:
    """The prices, on a clock on which they exceed the bid at ``when`` for the first time."""
    (series,) = load_trace(path).series.values()
    points = list(zip(series.times, series.prices, strict=True))
    calm = points[0][0]
    for (_, before), (time, price) in pairwise(points):
        if before > BID >= price:
            calm = time
        if before <= BID < price and time - calm >= when:
            return Curve([round(t - time) + when for t, _ in points], [p for _, p in points])
    raise SlurmElasticError(f"{path}: the price never exceeds {BID} after {when} s below it")


def users_vary(jobs: Jobs) -> list[Row]:
    """18: how much the node-hours per active user vary between days, weeks and months."""
    papers = (("day", DAY, 0.7741), ("week", 7 * DAY, 0.2533), ("month", 30 * DAY, 0.1323))
    found = [_variation(jobs, window) for _, window, _ in papers]
    rows = [
        within(f"18 SEC variation of users' node-hours, {name}", ours, paper, "", 0.3 * paper)
        for (name, _, paper), ours in zip(papers, found, strict=True)
    ]
    falls = found == sorted(found, reverse=True)
    return [
        *rows,
        holds("18 SEC variation falls with the window", found[-1], "", ok=falls, goal="falls"),
    ]


def _variation(jobs: Jobs, window: int) -> float:
    """Standard deviation by mean, over the windows, of node-hours by users who came in them."""
    hours: dict[int, float] = {}
    users: dict[int, set[int]] = {}
    whole = (jobs.submit[-1] - jobs.submit[0]) // window
    for submit, run, procs, user in zip(jobs.submit, jobs.run, jobs.procs, jobs.user, strict=True):
        slot = (submit - jobs.submit[0]) // window
        if slot >= whole:  # the last one is cut short
            continue
        hours[slot] = hours.get(slot, 0.0) + -(-procs // 16) * run / HOUR
        users.setdefault(slot, set()).add(user)
    each = [hours[slot] / len(users[slot]) for slot in hours]
    mean = sum(each) / len(each)
    return math.sqrt(sum((value - mean) ** 2 for value in each) / len(each)) / mean
