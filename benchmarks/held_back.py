"""The intervals of plan policy against weeks held back: did what followed lie within them?

Each history is played through on two sites (nodes of its own and a cloud; a cloud alone) under
several policies. From each run of weeks the comparison with Slurm's own policy is told, and looked
up in as many weeks that followed. A run of weeks begins half its length after the last one.

So it is for policies that were named before. For those that ``plan policy`` chooses, the choice is
made anew in each run of weeks, among the same policies and Slurm's own, by the rule of the product
(the cheapest; the nearest to the least cost and wait), and its interval looked up. ``--grid`` has
it choose among all that ``plan policy`` tries first; a quarter of an hour. ``--halves`` measures
windows that are replayed on their own instead, and computes the widths (``benchmarks/halves.py``).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from benchmarks import halves
from benchmarks.report import Report, Row, noted, report, spread
from benchmarks.traces import history
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories import swf
from slurm_elastic.simulate.outcome import Figures
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.site import scenario_of
from slurm_elastic.simulate.studies.certainty import (
    Comparison,
    Interval,
    Pairs,
    Week,
    extra_wait,
    of_weeks,
    saving_of,
    weeks,
)
from slurm_elastic.simulate.studies.search import Tried, grid, within

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
CHOICES: Mapping[str, Callable[[Sequence[Tried]], Tried | None]] = {
    "cheapest": lambda tried: within(tried, math.inf, None),
    "nearest": lambda tried: within(tried, None, None),
}
"""By which ``plan policy`` chooses, with a wait that all keep and without a limit."""
Told = tuple[bool, bool]
"""Whether saving and wait of the weeks that followed lay within."""


class Played(Struct, frozen=True):
    """A policy's whole history, and its single weeks."""

    figures: Figures
    weeks: list[Week]


def main(arguments: Sequence[str]) -> Report:
    """All histories that are at hand, or those that are named."""
    parser = argparse.ArgumentParser(prog="scripts/bench held_back")
    parser.add_argument("--history", action="append", choices=SITES, help="this one alone")
    parser.add_argument(
        "--grid", action="store_true", help="also choose among all that plan policy tries first"
    )
    parser.add_argument(
        "--halves", action="store_true", help="windows of ten weeks instead, each on its own"
    )
    options = parser.parse_args(arguments)
    if options.halves:
        return report("held_back", list(halves.rows(_halves(options.history or list(SITES)))))
    named: dict[str, list[Told]] = {}
    picked: dict[str, dict[str, list[Told]]] = {}
    for name in options.history or list(SITES):
        for case, played in _of(name, [*grid(), *POLICIES] if options.grid else POLICIES):
            few = {policy: played[policy] for policy in (OWN, *POLICIES)}
            named[case] = [
                told
                for policy in POLICIES
                for run in RUNS
                for told in held_back(_pairs(played, policy), run)
            ]
            for among in (few, played) if options.grid else (few,):
                for how in CHOICES:
                    what = f"chosen of {len(among)}, {how}"
                    picked.setdefault(what, {})[case] = [
                        told for run in RUNS for told in chosen(among, how, run)
                    ]
    rows = [row for case, told in named.items() for row in _rows(case, told)]
    rows += _summary(named)
    for what, found in picked.items():
        rows += _chosen_rows(what, found)
    return report("held_back", rows)


def _halves(names: Sequence[str]) -> dict[str, list[halves.Known]]:
    """The comparisons of each history that is at hand."""
    cases: dict[str, list[halves.Known]] = {}
    for name in names:
        path = history(name)
        if path is None:
            continue
        jobs = swf.load(path).jobs
        procs, sites = SITES[name]
        for own, cloud in sites:
            for billing in halves.BILLINGS.values():
                pools = halves.billed(_pools(own, cloud, procs), billing)
                cases.setdefault(name, []).extend(halves.known(halves.windows(jobs, pools)))
    return cases


def held_back(pairs: Pairs, run: int) -> Iterator[Told]:
    """For each run of weeks, whether saving and wait of the next one lie in the interval."""
    for first in _firsts(len(pairs), run):
        told = _looked_up(pairs, first, run)
        if told is not None:
            yield told


def chosen(played: Mapping[str, Played], how: str, run: int) -> Iterator[Told]:
    """The same of the policy that is chosen from the figures of each run of weeks, where it is not
    Slurm's own.
    """
    for first in _firsts(len(played[OWN].weeks), run):
        best = CHOICES[how]([_tried(name, one, first, run) for name, one in played.items()])
        if best is None or best.policy == OWN:
            continue
        told = _looked_up(_pairs(played, best.policy), first, run)
        if told is not None:
            yield told


def _firsts(weeks: int, run: int) -> range:
    return range(0, weeks - 2 * run + 1, run // 2)


def _looked_up(pairs: Pairs, first: int, run: int) -> Told | None:
    told = of_weeks(pairs[first : first + run])
    later = pairs[first + run : first + 2 * run]
    saving, wait = saving_of(later), extra_wait(later)
    # Without a range nothing is promised.
    if not isinstance(told, Comparison) or saving is None or wait is None:
        return None
    return (
        _within(told.saving, saving, SAME_SHARE),
        _within(told.wait, wait, SAME_SECONDS),
    )


def _tried(policy: str, played: Played, first: int, run: int) -> Tried:
    """All that ``plan policy`` would know of it after these weeks alone."""
    some = played.weeks[first : first + run]
    wait = sum(week.waited for week in some) / max(sum(week.jobs for week in some), 1)
    cost = sum(week.cost for week in some)
    return Tried(policy=policy, figures=replace(played.figures, cost=cost, mean_wait=wait))


def _pairs(played: Mapping[str, Played], policy: str) -> Pairs:
    return list(zip(played[policy].weeks, played[OWN].weeks, strict=True))


def _of(name: str, policies: Sequence[str]) -> Iterator[tuple[str, dict[str, Played]]]:
    path = history(name)
    if path is None:
        return
    jobs = swf.load(path).jobs
    procs, sites = SITES[name]
    for own, cloud in sites:
        base = Scenario(pools=_pools(own, cloud, procs), depth=500)
        played = {}
        for policy in dict.fromkeys((OWN, *policies)):
            try:
                scenario = scenario_of(policy, base.pools, base)
            except ConfigError:  # no sense here: plan policy passes over it, too
                continue
            outcome = simulate(jobs, scenario)
            played[policy] = Played(outcome.figures, weeks(outcome))
        yield f"{name}, {own} nodes and {cloud} machines", played


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


def _rows(case: str, told: Sequence[Told]) -> Iterator[Row]:
    for index, what in enumerate(("savings", "waits")):
        yield noted(f"{case}: {what} within, of {len(told)}", _part(told, index), "share")


def _chosen_rows(case: str, found: Mapping[str, Sequence[Told]]) -> Iterator[Row]:
    """Rows of all sites in which something else than Slurm's own policy was ever chosen."""
    sites = [told for told in found.values() if told]
    every = [one for told in sites for one in told]
    for site, told in found.items() if len(sites) > 1 else ():
        yield from _rows(f"{case}, {site}", told) if told else ()
    for index, what in enumerate(("savings", "waits") if every else ()):
        title = f"{case}: {what} within"
        yield noted(f"{title}, of {len(every)}", _part(every, index), "share")
        yield from spread(title, [_part(told, index) for told in sites], "share", "sites")


def _summary(found: Mapping[str, Sequence[Told]]) -> Iterator[Row]:
    every = [one for told in found.values() for one in told]
    for index, what in enumerate(("savings", "waits") if found else ()):
        all_of = _part(every, index)
        yield Row(
            case=f"{what} within, of all {len(every)}", ours=all_of, reference=PART, unit="share",
            ratio=all_of / PART, goal=f">= {PART:g}", ok=all_of >= PART,
        )  # fmt: skip
        parts = [_part(told, index) for told in found.values()]
        yield from spread(f"{what} within", parts, "share", "sites")


def _part(told: Sequence[Told], index: int) -> float:
    return sum(one[index] for one in told) / max(len(told), 1)
