"""Reserving by trailing use on public histories, beside a forecast and the best of each rank.

Prices: EC2's cc2.8xlarge of 2014 (on demand $2.40), and savings plans as they are sold in 2026, at
typical discounts on the same price. The best of each rank knows all; a point is one percent of the
cost on demand. The histories with names were at hand while the rule was made; whatever else is in
the directory is counted by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.report import Report, Row, report, spread
from benchmarks.traces import history, others
from slurm_elastic.policies.growth.capacity import Slurm
from slurm_elastic.policies.growth.release import Delayed, Idle
from slurm_elastic.policies.planning.portfolio import (
    Bought,
    ReservedClass,
    Usage,
    active,
    bill,
    heaviest_first,
    offline,
    online,
)
from slurm_elastic.policies.planning.reserve import by_rank, trailing, usage_of_steps
from slurm_elastic.simulate.bills.billing import Billing, Hourly, PerSecond
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories import swf
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.studies.certainty import MIN_COMPARED_WEEKS
from slurm_elastic.simulate.studies.portfolio import outlook

HISTORIES = {
    "SDSC-DS-2004-2.1-cln": 16,
    "SDSC-SP2-1998-4.2-cln": 8,
    "KTH-SP2-1996-2.1-cln": 8,
    "lublin_256": 16,
}
"""And the processors of a machine."""
PROCESSORS = 8
"""The same in other histories."""
ON_DEMAND = 2.40
YEAR = 8760
POINTS = 3.0
PART = 0.8
UNSEEN = "cases that were not at hand while this was built"


def _plan(name: str, years: int, share: float, upfront: float) -> ReservedClass:
    hourly = ON_DEMAND * share
    return ReservedClass(
        name=name, term=years * YEAR, upfront=hourly * upfront * years * YEAR,
        price=hourly * (1 - upfront), always=True,
    )  # fmt: skip


CLASSES = {
    "2014": heaviest_first(
        [
            ReservedClass(
                name=f"{years}Y {name}",
                term=years * YEAR,
                upfront=upfront[years],
                price=price,
                always=name == "heavy",
            )
            for name, price, upfront in (
                ("light", 0.904, {1: 1762, 3: 2710}),
                ("medium", 0.54, {1: 4146, 3: 6378}),
                ("heavy", 0.361, {1: 5000, 3: 7670}),
            )
            for years in (1, 3)
        ]
    ),
    "2026": heaviest_first(
        [
            _plan("1Y no upfront", 1, 0.73, 0),
            _plan("1Y all upfront", 1, 0.68, 1),
            _plan("3Y no upfront", 3, 0.50, 0),
            _plan("3Y all upfront", 3, 0.46, 1),
        ]
    ),
}
BILLING: dict[str, tuple[Billing, Delayed | Idle]] = {
    "by the hour": (Hourly(), Delayed(before_end=60)),
    "by the second": (PerSecond(), Idle(600)),
}


def main(arguments: Sequence[str]) -> Report:
    """All histories that are at hand, under both ways of paying."""
    del arguments
    rows = _all_of(HISTORIES, "cases")
    return report(
        "portfolio", [*rows, *_all_of(dict.fromkeys(others(HISTORIES), PROCESSORS), UNSEEN)]
    )


def _all_of(histories: Mapping[str, int], cases: str) -> list[Row]:
    """The rows of these histories, and what they come to."""
    rows: list[Row] = []
    told: list[bool] = []
    for name, processors in histories.items():
        path = history(name)
        jobs = swf.load(path).jobs if path else None
        for billing in BILLING if jobs else ():
            usage = _usage(jobs, processors, billing)
            for year, classes in CLASSES.items():
                rows += _compared(f"{name} {billing}, {year}", usage, classes)
                told += _held_back(usage, classes)
    ours = [row.ours for row in rows if row.goal is not None]
    rows += spread("over the best", ours, "points", cases)
    if ours:
        near = sum(value <= POINTS for value in ours)
        title = f"within {POINTS:g} points of the best, of {len(ours)} {cases}"
        rows.append(_row(title, near, "cases", len(ours) / 2))
    if told:
        title = f"outlook held, of {len(told)} in {cases}"
        rows.append(_row(title, sum(told) / len(told), "share", PART))
    return rows


def _held_back(usage: Usage, classes: tuple[ReservedClass, ...]) -> Iterator[bool]:
    """After each eight weeks more: whether as many that followed saved the share that the weeks so
    far say is saved with what is held then. Nothing if nothing is held, or used.
    """
    for now in range(MIN_COMPARED_WEEKS, len(usage) // 2 + 1, MIN_COMPARED_WEEKS):
        past, came = usage[:now], usage[now : 2 * now]
        held = active(now, trailing(past, classes, ON_DEMAND), classes)
        told = outlook(past, held, classes, ON_DEMAND)
        held_up = outlook(came, held, classes, ON_DEMAND)
        if told and held_up:
            yield told.low <= held_up.value <= told.high


def _usage(jobs: Jobs | None, processors: int, billing: str) -> Usage:
    counted, release = BILLING[billing]
    pool = PoolModel(
        name="cloud", machines=10**6, procs=processors, price=ON_DEMAND, billing=counted,
        release=release, boot=BootTimes(((1, 120),)), check=60,
    )  # fmt: skip
    assert jobs is not None
    return usage_of_steps(simulate(jobs, Scenario(pools=(pool,), growth=Slurm())).paid_steps())


def _compared(case: str, usage: Usage, classes: tuple[ReservedClass, ...]) -> Iterator[Row]:
    def cost(bought: tuple[Bought, ...]) -> float:
        return bill(usage, bought, classes, ON_DEMAND).cost

    bare, (_, best) = cost(()), by_rank(usage, classes, ON_DEMAND)

    def points(bought: tuple[Bought, ...]) -> float:
        return 100 * (cost(bought) - best) / bare

    ours = points(trailing(usage, classes, ON_DEMAND))
    dearest = 100 * (bare - best) / bare
    yield Row(
        case=f"{case}: trailing use, over the best", ours=ours, reference=dearest, unit="points",
        ratio=ours / dearest if dearest else None, goal="not dearer than on demand",
        ok=ours <= dearest,
    )  # fmt: skip
    for name, bought in (
        ("the paper's forecast", online(usage, classes, ON_DEMAND)),
        ("greedy, all known", offline(usage, classes, ON_DEMAND)),
    ):
        yield Row(
            case=f"{case}: {name}", ours=points(bought), reference=dearest, unit="points",
            ratio=None, goal=None, ok=None,
        )  # fmt: skip


def _row(case: str, ours: float, unit: str, least: float) -> Row:
    return Row(
        case=case, ours=ours, reference=None, unit=unit, ratio=None, goal=f"> {least:g}",
        ok=ours > least,
    )  # fmt: skip
