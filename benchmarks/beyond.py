"""Beyond the papers: our checkpoint and deadline policies on every trace at hand.

``scripts/bench beyond [--only checkpoints|deadline] [--seed N]``

checkpoints: a job of four hours every six, on a spot machine of its own, along each trace, with
``first_of(on_notice, daly)`` against ``hour`` and ``threshold``. A trace is won by less waste
(work lost, checkpoints, restarts). Nothing is set per trace. Once with a dump of 60 s, which fits
into the notice of 120 s, and once with EC3's 160 s, which does not.

deadline: a job of 48 h with a deadline of 60 h and restarts of 0.2 h, from 300 random starts on
each availability trace of October 2022; how much of its work was done on spot machines. Its cost,
on the traces of 2022 and 2023, is beside that of uniform progress as printed and beside a bound
that no plan could go below, even one that knew the trace; what is saved is also told by trace, and
apart for traces that were not at hand while the policy was made. ``--seed``: other random starts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import hindsight
from benchmarks.report import Report, Row, holds, noted, report, spread
from benchmarks.report import compared as beside
from benchmarks.traces import VARIABLE, data
from slurm_elastic.policies.checkpoint.checkpoint import AnyPolicy, Hour, Threshold, parse
from slurm_elastic.policies.checkpoint.deadline import (
    DeadlineChoice,
    Race,
    Where,
    choose,
    greedy,
    pay,
    uniform,
)
from slurm_elastic.policies.growth.release import AtOnce
from slurm_elastic.providers.base.prices.trace import load_trace
from slurm_elastic.simulate.availability import load_availability
from slurm_elastic.simulate.bills.billing import Billing, Curve, Hourly, PerSecond
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.outcome import Figures
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.studies.deadline import race, tried

HOUR, DAY = 3600, 86400
WORK_A_JOB = 4 * HOUR
NOTICE = 120
OURS = "first_of(on_notice, daly)"
ON_DEMAND_2015 = 0.067
FLAT_SPOT, FLAT_ON_DEMAND = 0.3, 1.0
PLENTY = 2**30
WORK, DEADLINE, RESTART = 48 * HOUR, 60 * HOUR, 720
STARTS = 300
MEAN_GOAL = 30.6
PLAIN = {"2a_k80": 42.4, "2a_v100": 38.3, "2b_k80": 3.5, "2b_v100": 34.6}
KNOWN = frozenset((
    *(f"2022-10_us-west-{name}_1.json" for name in PLAIN),
    *(f"2023-04_us-east-1{zone}_r5.16xlarge_preemption.json.gz" for zone in "bc"),
))  # fmt: skip
"""The traces by which the deadline policy was made."""
SPOT_PRICES = (0.3, 0.5, 0.7)
GAIN = 0.97
BOUND_STARTS = 30
UNSEEN = "not at hand while this was built"
SAME = 0.05
"""Machine-hours of waste that make no difference."""


class Trace(NamedTuple):
    """A spot market over ``seconds``, and how its machines are billed; a ``group`` shares a row."""

    group: str
    name: str
    market: SpotMarket
    price: float
    billing: Billing
    seconds: int


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench beyond")
    parser.add_argument("--only", choices=("checkpoints", "deadline"), help="one group of rows")
    parser.add_argument("--seed", type=int, default=0, help="of the starts with a deadline")
    options = parser.parse_args(arguments)
    directory = data()
    if directory is None:
        print(f"no traces are at hand (set ${VARIABLE})", file=sys.stderr)
        return report("beyond", [])
    groups: dict[str, Callable[[Path], list[Row]]] = {
        "checkpoints": checkpoints,
        "deadline": lambda directory: deadline(directory, options.seed),
    }
    chosen = [options.only] if options.only else list(groups)
    return report("beyond", [row for name in chosen for row in groups[name](directory)])


def checkpoints(directory: Path) -> list[Row]:
    """Wins, ties and losses, for a dump that fits into the notice and for one that does not."""
    traces = [*priced(directory), *available(directory), *lifetimes(directory)]
    return [row for dump in (60, 160) for row in compared(traces, dump)]


def compared(traces: Sequence[Trace], dump: int) -> list[Row]:
    margin = dump + 40
    others: dict[str, AnyPolicy] = {"hour": Hour(margin), "threshold": Threshold(margin)}
    ours = [ridden(trace, parse(OURS), dump) for trace in traces]
    rows = []
    for name, policy in others.items():
        pairs = [
            Pair(trace, mine, ridden(trace, policy, dump))
            for trace, mine in zip(traces, ours, strict=True)
        ]
        rows += verdicts(f"dump {dump} s, {name}", pairs, dump)
    return rows


class Pair(NamedTuple):
    """A trace, and what ours and the other policy made of it."""

    trace: Trace
    mine: Figures
    other: Figures

    @property
    def gain(self) -> float:
        return waste(self.other) - waste(self.mine)


def verdicts(case: str, pairs: Sequence[Pair], dump: int) -> list[Row]:
    """A row a group of traces, then the sums."""
    rows = []
    for group in dict.fromkeys(pair.trace.group for pair in pairs):
        some = [pair for pair in pairs if pair.trace.group == group]
        gain = sum(pair.gain for pair in some)
        rows.append(noted(f"{case}: {group}: {_verdict(some, dump)}; saved", gain, "machine-h"))
    mine, other = [pair.mine for pair in pairs], [pair.other for pair in pairs]
    losses = sum(pair.gain < -SAME for pair in pairs)
    rows.append(noted(f"{case}: lost traces", losses, f"of {len(pairs)}"))
    sums: Sequence[tuple[str, str, Callable[[Figures], float]]] = (
        ("work lost", "machine-h", lambda f: f.lost_hours),
        ("work lost, checkpoints, restarts", "machine-h", waste),
        ("cost", "$", lambda f: f.cost),
    )
    for what, unit, of in sums:
        ours, theirs = sum(map(of, mine)), sum(map(of, other))
        goal = f"<= {theirs:.2f}"
        rows.append(holds(f"{case}: {what} in all", ours, unit, ok=ours <= theirs, goal=goal))
    return rows


def _verdict(some: Sequence[Pair], dump: int) -> str:
    wins = sum(pair.gain > SAME for pair in some)
    lost = [pair for pair in some if pair.gain < -SAME]
    parts = [f"{wins} won", f"{len(some) - wins - len(lost)} tied", f"{len(lost)} lost"]
    return ", ".join(parts) + "".join(f" ({why(p.mine, p.other, dump)})" for p in lost[:2])


def why(mine: Figures, other: Figures, dump: int) -> str:
    """The cause of the difference, from what was counted."""
    if dump > NOTICE and mine.lost_hours > other.lost_hours:
        return f"a notice of {NOTICE} s is shorter than a dump"
    if mine.interruptions == 0:
        return f"nothing was ever taken, {mine.checkpoints} dumps against {other.checkpoints}"
    return (
        f"{mine.checkpoints} dumps against {other.checkpoints}, {mine.lost_hours:.1f} h lost"
        f" against {other.lost_hours:.1f}, in {mine.interruptions} interruptions"
    )


def waste(figures: Figures) -> float:
    return figures.lost_hours + figures.overhead_hours


def ridden(trace: Trace, policy: AnyPolicy, dump: int) -> Figures:
    """Four hours of work begin every six hours, each on a machine of its own."""
    jobs = Jobs(
        Job(number, when, WORK_A_JOB, WORK_A_JOB, 1)
        for number, when in enumerate(range(0, max(trace.seconds - DAY, 1), 6 * HOUR))
    )
    pool = PoolModel(
        name="spot", machines=4, price=trace.price, billing=trace.billing, spot=trace.market,
        release=AtOnce(),
    )  # fmt: skip
    how = Checkpoints(policy=policy, dump=dump, restart=60)
    return simulate(jobs, Scenario(pools=(pool,), checkpoints=how)).figures


def priced(directory: Path) -> Iterator[Trace]:
    """Markets by price until 2017: lost above the on-demand price, the hour then free. The prices
    of 2021 take nobody's machine.
    """
    for path in sorted((directory / "spot_prices").glob("*.csv.gz")):
        for key, series in load_trace(path).series.items():
            begin = int(series.times[0])
            curve = Curve([int(t) - begin for t in series.times], list(series.prices))
            seconds = int(series.times[-1]) - begin
            file = path.name.removesuffix(".csv.gz")
            name = f"{file} {'/'.join(key)}"
            if "2021" in file:
                price = max(series.prices) * 1.01
                market = SpotMarket(curve, notice=NOTICE)
                yield Trace(file, name, market, price, PerSecond(), seconds)
            else:
                market = SpotMarket(curve, bid=ON_DEMAND_2015, notice=NOTICE)
                yield Trace(file, name, market, ON_DEMAND_2015, Hourly(refund=True), seconds)


def available(directory: Path) -> Iterator[Trace]:
    """Markets by capacity: machines that were to be had at each tick."""
    for path in sorted((directory / "availability").glob("20*.json*")):
        trace = load_availability(path)
        counts = [(i * trace.gap, PLENTY if count else 0) for i, count in enumerate(trace.counts)]
        yield _by_capacity(path.name.split(".json")[0], counts, len(counts) * trace.gap)


def lifetimes(directory: Path) -> Iterator[Trace]:
    """One machine after the other, each for as long as one of 2019's preemptible ones lived."""
    path = directory / "availability" / "gcp_preemptible_2019.json.gz"
    if not path.is_file():
        return
    document = json.loads(gzip.decompress(path.read_bytes()))
    counts, at = [], 0
    for seconds in _seconds(document):
        counts += [(at, PLENTY), (at + seconds, 0)]
        at += seconds + 60
    yield _by_capacity("gcp preemptible 2019", counts, at)


def _by_capacity(name: str, counts: Sequence[tuple[int, int]], seconds: int) -> Trace:
    market = SpotMarket(Curve.flat(FLAT_SPOT), available=counts, notice=NOTICE)
    return Trace(name, name, market, FLAT_ON_DEMAND, PerSecond(), seconds)


def _seconds(document: Mapping[str, Mapping[str, float]]) -> list[int]:
    return [max(round(one["time_in_sec"]), 1) for one in document.values()]


def deadline(directory: Path, seed: int = 0) -> list[Row]:
    """Ours on the traces of October 2022, and the greedy policy beside it."""
    rows, means, late = [], [], 0
    for path in sorted((directory / "availability").glob("2022-10_*.json")):
        trace = load_availability(path)
        short = path.stem.removeprefix("2022-10_us-west-").removesuffix("_1")
        mine, missed = ridden_to_deadline(trace.counts, trace.gap, choose, seed)
        others, _ = ridden_to_deadline(trace.counts, trace.gap, greedy, seed)
        plain = PLAIN.get(short)
        if plain:
            rows.append(beside(f"deadline, {short}: spot hours (plain)", mine, plain, "h"))
        rows.append(noted(f"deadline, {short}: greedy", others, "h"))
        means.append(mine)
        late += missed
    rows += dollars(directory, seed)
    if means:
        mean = sum(means) / len(means)
        goal = f">= {MEAN_GOAL}"
        rows.append(holds("deadline: mean spot hours", mean, "h", ok=mean >= MEAN_GOAL, goal=goal))
        rows.append(
            holds("deadline: missed", late, f"of {STARTS * len(means)}", ok=not late, goal="0")
        )
    return rows


def dollars(directory: Path, seed: int = 0) -> list[Row]:
    """The cost of a job under ours and under uniform progress as printed, in machine-hours at the
    on-demand price, on all availability traces of 2022 and 2023; never above on demand.
    """
    rows = []
    paths = sorted((directory / "availability").glob("202*.json*"))
    for some, which in (
        ([path for path in paths if path.name in KNOWN], "traces"),
        ([path for path in paths if path.name not in KNOWN], UNSEEN),
    ):
        rows += _dollars(some, which, seed)
    return rows


def _dollars(paths: Sequence[Path], which: str, seed: int) -> list[Row]:
    rows: list[Row] = []
    for price in SPOT_PRICES:
        sums, bare, late, above = [0.0, 0.0], 0.0, 0, 0
        saved: list[float] = []
        for path in paths:
            trace = load_availability(path)
            ours, plain, paid = (
                tried(
                    trace.counts, trace.gap, work=WORK, deadline=DEADLINE, restart=RESTART,
                    choose=policy, starts=STARTS, price=price, seed=seed,
                )
                for policy in (choose, uniform, pay)
            )  # fmt: skip
            costs = [(o.paid_spot * price + o.paid_on_demand) / HOUR for o in (ours, plain)]
            sums = [total + cost for total, cost in zip(sums, costs, strict=True)]
            saved.append(100 * (1 - costs[0] / costs[1]))
            bare += paid.paid_on_demand / HOUR
            above += costs[0] > paid.paid_on_demand / HOUR
            late += ours.missed
        case = f"deadline, spot at {price:g} of on-demand"
        case += "" if which == "traces" else f", {which}"
        if paths:
            rows.append(
                beside(f"{case}: cost (printed)", sums[0], sums[1], "machine-h", at_most=GAIN)
            )
            goal = f"<= {bare:.1f}"
            ok = not above and not late
            rows.append(
                holds(
                    f"{case}: on demand; 0 traces above, 0 late",
                    sums[0],
                    "machine-h",
                    ok=ok,
                    goal=goal,
                )
            )
            rows += spread(f"{case}: below printed", saved, "%", "traces")
            share = foreseen(paths, price)
            rows.append(noted(f"{case}: hindsight (bound) / printed", share, "ratio"))
    return rows


def foreseen(paths: Sequence[Path], price: float) -> float:
    """The least that any plan could cost that knew the trace, as a share of what uniform progress
    as printed costs from the same starts.
    """
    bound = plain = 0.0
    known = {"work": WORK, "deadline": DEADLINE, "restart": RESTART, "price": price}
    for path in paths:
        trace = load_availability(path)
        for window in hindsight.windows(trace.counts, trace.gap, DEADLINE, BOUND_STARTS):
            bound += hindsight.least(window, trace.gap, **known)
            paid = race(
                window, trace.gap, work=WORK, deadline=DEADLINE, restart=RESTART, choose=uniform,
                price=price,
            ).paid  # fmt: skip
            plain += paid[Where.SPOT] * price + paid[Where.ON_DEMAND]
    return bound / plain


def ridden_to_deadline(
    counts: Sequence[int], gap: int, policy: Callable[[Race], DeadlineChoice], seed: int
) -> tuple[float, int]:
    """Mean hours of work on spot machines, and how many starts missed the deadline."""
    found = tried(
        counts, gap, work=WORK, deadline=DEADLINE, restart=RESTART, choose=policy, starts=STARTS,
        seed=seed,
    )  # fmt: skip
    return found.spot / HOUR, found.missed
