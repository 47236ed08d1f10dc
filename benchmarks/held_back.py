"""The intervals of plan policy against weeks held back: did what followed lie within them?

Each history is played through on two sites (nodes of its own and a cloud; a cloud alone) under
several policies. From each run of weeks the comparison with Slurm's own policy is told, and looked
up in as many weeks that followed. A run of weeks begins half its length after the last one.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence

from benchmarks.report import Report, Row, noted, report
from benchmarks.traces import history
from slurm_elastic.simulate import swf
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.comparison import Interval, Pairs, Week, of_weeks, weeks
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.site import scenario_of

OWN = "slurm"
POLICIES = (
    "on_demand+idle(600)",
    "on_demand+idle(60)",
    "semi_elastic(wait_limit=300)+idle(600)",
    "semi_elastic(wait_limit=1800)+idle(600)",
    "bursts(waste=180)+idle(600)",
    "ratio(slots=1)+idle(600)",
)
SITES = {
    "SDSC-DS-2004-2.1-cln": (16, ((80, 24), (0, 104))),
    "SDSC-SP2-1998-4.2-cln": (8, ((12, 6), (0, 16))),
    "KTH-SP2-1996-2.1-cln": (8, ((10, 6), (0, 12))),
}
"""Processors of a machine; own nodes and machines of the cloud of each site. The fourth history,
``lublin_256``, has twelve weeks: none to hold back.
"""
RUNS = (8, 12, 20)
"""Weeks from which a comparison is told, and in which it is looked up."""
PART = 0.8
SAME_SHARE, SAME_SECONDS = 0.0005, 0.5
"""Differences that no table shows."""


def main(arguments: Sequence[str]) -> Report:
    """All histories that are at hand, or those that are named."""
    parser = argparse.ArgumentParser(prog="scripts/bench held_back")
    parser.add_argument("--history", action="append", choices=SITES, help="this one alone")
    names = parser.parse_args(arguments).history or list(SITES)
    found: dict[str, list[tuple[bool, bool]]] = {}
    for name in names:
        for case, told in _of(name):
            found.setdefault(case, []).extend(told)
    rows = [row for case, told in found.items() for row in _rows(case, told)]
    return report("held_back", [*rows, *_summary(found)])


def held_back(pairs: Pairs, run: int) -> Iterator[tuple[bool, bool]]:
    """For each run of weeks, whether saving and wait of the next one lie in the interval."""
    for first in range(0, len(pairs) - 2 * run + 1, run // 2):
        told = of_weeks(pairs[first : first + run])
        came = of_weeks(pairs[first + run : first + 2 * run])
        if told is None or came is None:
            continue
        yield (
            _within(told.saving, came.saving.value, SAME_SHARE),
            _within(told.wait, came.wait.value, SAME_SECONDS),
        )


def _of(name: str) -> Iterator[tuple[str, list[tuple[bool, bool]]]]:
    path = history(name)
    if path is None:
        return
    jobs = swf.load(path).jobs
    procs, sites = SITES[name]
    for own, cloud in sites:
        base = Scenario(pools=_pools(own, cloud, procs), depth=500)

        def played(policy: str, base: Scenario = base) -> list[Week]:
            return weeks(simulate(jobs, scenario_of(policy, base.pools, base)))

        beside = played(OWN)
        found = [list(zip(played(policy), beside, strict=True)) for policy in POLICIES]
        told = [one for pairs in found for run in RUNS for one in held_back(pairs, run)]
        yield f"{name}, {own} nodes and {cloud} machines", told


def _pools(own: int, cloud: int, procs: int) -> tuple[PoolModel, ...]:
    bought = PoolModel(
        name="cloud", machines=cloud, procs=procs, shared=True, price=1.0,
        boot=BootTimes(((1, 120),)),
    )  # fmt: skip
    if not own:
        return (bought,)
    standing = PoolModel(
        name="static", machines=own, standing=own, procs=procs, shared=True, public=False,
        limited=False,
    )  # fmt: skip
    return standing, bought


def _within(told: Interval, came: float, same: float) -> bool:
    return told.low - same <= came <= told.high + same


def _rows(case: str, told: Sequence[tuple[bool, bool]]) -> Iterator[Row]:
    for index, what in enumerate(("savings", "waits")):
        yield noted(f"{case}: {what} within, of {len(told)}", _part(told, index), "share")


def _summary(found: dict[str, list[tuple[bool, bool]]]) -> Iterator[Row]:
    every = [one for told in found.values() for one in told]
    for index, what in enumerate(("savings", "waits")):
        parts = sorted(_part(told, index) for told in found.values())
        if not parts:
            continue
        all_of = _part(every, index)
        yield Row(
            case=f"{what} within, of all {len(every)}", ours=all_of, reference=PART, unit="share",
            ratio=all_of / PART, goal=f">= {PART:g}", ok=all_of >= PART,
        )  # fmt: skip
        for name, value in (
            ("least", parts[0]), ("median", statistics.median(parts)), ("most", parts[-1]),
        ):  # fmt: skip
            yield noted(f"{what} within, {name} of {len(parts)} sites", value, "share")


def _part(told: Sequence[tuple[bool, bool]], index: int) -> float:
    return sum(one[index] for one in told) / max(len(told), 1)
