"""The ranges of plan policy against halves of histories, and the factors that make them hold.

A window of ten weeks of a history is replayed on its own under each policy that ``plan policy``
tries first (but those with ``size=`` and ``steady_stream``, which take most of the time), and so is
the next one. Each is once the known and once the unseen half: the policy is
chosen in the known half, by each of the rules of the product, and compared with Slurm's own there
and in the unseen half. The policies that were not chosen count as named ones.

The score of a comparison is the difference between both halves, divided by the scale of the known
one. The factor of a kind of choice is the ``LEVEL`` quantile of the scores of a history, and of the
histories the largest. A history is judged by the factors of the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.report import Row, noted
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.simulate.bills.billing import Billing, Hourly, PerSecond
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.outcome import Figures
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.site import scenario_of
from slurm_elastic.simulate.studies.certainty import (
    MIN_COMPARED_WEEKS,
    WEEK_S,
    Choice,
    Pairs,
    Week,
    Widths,
    expected,
    extra_wait,
    saving_of,
    scales,
    unlike,
    weeks,
)
from slurm_elastic.simulate.studies.search import Tried, grid, within
from slurm_elastic.simulate.studies.together import plain

OWN = "slurm+idle(600)"
POLICIES = [policy for policy in grid() if "size=" not in policy and "steady" not in policy]
WINDOW_WEEKS = 10
LEVEL = 0.93
MAX_WAIT_MORE_S = 300
SAME = Widths(saving=0.0005, wait=0.5)
"""Differences that no table shows."""
BILLINGS: Mapping[str, Billing] = {"second": PerSecond(), "hour": Hourly()}
HELD, EACH, PRINTED, WIDTH = (0.88, 0.97), 0.8, 0.8, 1.6
"""The goals: the share inside, of each kind at least, the share of cases with a range, and the
median width as a multiple of one standard deviation of the savings of single weeks, of two of the
waits.
"""


class Replayed(Struct, frozen=True):
    """A policy in one window."""

    figures: Figures
    weeks: list[Week]


class Known(Struct, frozen=True, kw_only=True):
    """What a half said of a policy, and how far the other half was from that. ``kind``: the rule of
    the choice. ``earlier``: the half widths of one standard deviation of the savings of single
    weeks, and of two of the waits. ``pairs``: the weeks of the known half.
    """

    kind: str
    errors: Widths
    scale: Widths
    earlier: Widths
    pairs: Pairs

    @property
    def choice(self) -> Choice:
        return Choice.NAMED if self.kind == "named" else Choice.CHOSEN


def windows(jobs: Jobs, pools: Sequence[PoolModel]) -> list[dict[str, Replayed]]:
    """Replay each window of the history, under each policy and both billings of public pools."""
    first, length = min(jobs.submit), WINDOW_WEEKS * WEEK_S
    count = (max(jobs.submit) - first) // length
    # The whole weeks of a window end with its last job, so a window has one week less than its
    # length.
    parts = [
        jobs.only([n for n, at in enumerate(jobs.submit) if begin <= at < begin + length])
        for begin in range(first, first + count * length, length)
    ]
    base = Scenario(pools=tuple(pools), depth=500, guarded=True)
    return [dict(_replayed(part, base)) for part in parts]


def billed(pools: Sequence[PoolModel], billing: Billing) -> tuple[PoolModel, ...]:
    """Return the pools with this billing of those of public clouds."""
    return tuple(replace(pool, billing=billing) if pool.public else pool for pool in pools)


def _replayed(jobs: Jobs, base: Scenario) -> Iterator[tuple[str, Replayed]]:
    different: list[tuple[Scenario, Replayed]] = []
    for policy in dict.fromkeys((OWN, *POLICIES)):
        try:
            scenario = plain(scenario_of(policy, base.pools, base))
        except ConfigError:  # no sense here: plan policy passes over it, too
            continue
        replayed = next((found for twin, found in different if twin == scenario), None)
        if replayed is None:
            outcome = simulate(jobs, scenario)
            replayed = Replayed(outcome.figures, weeks(outcome))
            different.append((scenario, replayed))
        yield policy, replayed


def known(halves: Sequence[Mapping[str, Replayed]]) -> Iterator[Known]:
    """Yield the comparisons of neighbouring windows, in both directions."""
    for first, second in pairwise(halves):
        for told, came in ((first, second), (second, first)):
            for kind, policy in _policies(told):
                found = _compared(kind, _pairs(told, policy), _pairs(came, policy))
                if found is not None:
                    yield found


def _policies(told: Mapping[str, Replayed]) -> Iterator[tuple[str, str]]:
    tried = [_tried(policy, one) for policy, one in told.items()]
    own = next(one for one in tried if one.policy == OWN).figures
    rules = {
        "nearest": within(tried, None, None),
        "max-wait": within(tried, own.mean_wait + MAX_WAIT_MORE_S, None),
        "budget": within(tried, None, own.cost),
    }
    yield from ((kind, best.policy) for kind, best in rules.items() if best and best.policy != OWN)
    yield from (("named", policy) for policy in told if policy != OWN)


def _tried(policy: str, one: Replayed) -> Tried:
    wait = sum(week.waited for week in one.weeks) / max(sum(week.jobs for week in one.weeks), 1)
    cost = sum(week.cost for week in one.weeks)
    return Tried(policy=policy, figures=replace(one.figures, cost=cost, mean_wait=wait))


def _pairs(half: Mapping[str, Replayed], policy: str) -> Pairs:
    return list(zip(half[policy].weeks, half[OWN].weeks, strict=True))


def _compared(kind: str, told: Pairs, came: Pairs) -> Known | None:
    saving, wait = saving_of(told), extra_wait(told)
    came_saving, came_wait = saving_of(came), extra_wait(came)
    if saving is None or wait is None or came_saving is None or came_wait is None:
        return None
    if min(len(told), len(came)) < MIN_COMPARED_WEEKS:
        return None
    by_cost = expected(
        saving,
        [other.cost - week.cost for week, other in told],
        [other.cost for _, other in told],
        1.0,
    )
    by_jobs = expected(
        wait,
        [week.waited - other.waited for week, other in told],
        [other.jobs for _, other in told],
        2.0,
    )
    return Known(
        kind=kind,
        pairs=told,
        scale=scales(told, saving, wait),
        errors=Widths(abs(came_saving - saving), abs(came_wait - wait)),
        earlier=Widths(by_cost.high - saving, by_jobs.high - wait),
    )


def rows(cases: Mapping[str, Sequence[Known]]) -> Iterator[Row]:
    """The factors of all histories, and the ranges of each by the factors of the others."""
    for choice in Choice:
        for what, factor in zip(Widths._fields, factors(cases, choice), strict=True):
            yield noted(f"factor of the {what} of a {choice.value} policy", factor, "scales")
    judged = {
        name: [_judged(one, {c: factors(_without(cases, name), c) for c in Choice}) for one in told]
        for name, told in cases.items()
    }
    for name, told in judged.items():
        yield from _held(f"{name}, chosen", [one for one in told if one.kind != "named"])
    every = [one for told in judged.values() for one in told]
    for kind in dict.fromkeys(one.kind for one in every):
        yield from _held(kind, [one for one in every if one.kind == kind], EACH)
    chosen = [one for one in every if one.kind != "named"]
    yield from _held("all chosen", chosen, *HELD)
    printed = sum(one.is_printed for one in chosen) / len(chosen)
    yield _goal("all chosen: a range is printed", printed, PRINTED, 1.0, "share")
    for index, what in enumerate(Widths._fields):
        width = statistics.median(one.widths[index] for one in chosen)
        yield _goal(f"all chosen: median width of the {what}", width, 0.0, WIDTH, "earlier widths")


def factors(cases: Mapping[str, Sequence[Known]], choice: Choice) -> Widths:
    """Return the factors that these histories give: the largest of any."""
    scores = [[one for one in told if one.choice is choice] for told in cases.values()]
    return Widths(
        max(_quantile([_score(one, 0) for one in told]) for told in scores if told),
        max(_quantile([_score(one, 1) for one in told]) for told in scores if told),
    )


class Judged(Struct, frozen=True, kw_only=True):
    """Whether a range was printed, whether it held, and its width beside the ``earlier`` one."""

    kind: str
    is_printed: bool
    held: tuple[bool, bool]
    widths: Widths


def _judged(one: Known, factor: Mapping[Choice, Widths]) -> Judged:
    pairs = zip(factor[one.choice], one.scale, strict=True)
    half_widths = Widths(*(times * scale for times, scale in pairs))
    saving_held, wait_held = (
        error <= half_width + same
        for error, half_width, same in zip(one.errors, half_widths, SAME, strict=True)
    )
    return Judged(
        kind=one.kind,
        is_printed=unlike(one.pairs) is None,
        held=(saving_held, wait_held),
        widths=Widths(
            *(
                half_width / max(earlier, same)
                for half_width, earlier, same in zip(half_widths, one.earlier, SAME, strict=True)
            )
        ),
    )


def _without(cases: Mapping[str, Sequence[Known]], name: str) -> dict[str, Sequence[Known]]:
    return {other: told for other, told in cases.items() if other != name}


def _held(
    title: str, judged: Sequence[Judged], low: float = 0.0, high: float = 1.0
) -> Iterator[Row]:
    printed = [one for one in judged if one.is_printed]
    for index, what in enumerate(("savings", "waits") if printed else ()):
        share = sum(one.held[index] for one in printed) / len(printed)
        case = f"{title}: {what} within, of {len(printed)}"
        yield _goal(case, share, low, high, "share") if low else noted(case, share, "share")


def _goal(case: str, ours: float, low: float, high: float, unit: str) -> Row:
    return Row(
        case=case, ours=ours, reference=None, unit=unit, ratio=None,
        goal=f"{low:g} to {high:g}", ok=low <= ours <= high,
    )  # fmt: skip


def _score(one: Known, index: int) -> float:
    return max(one.errors[index] - SAME[index], 0.0) / max(one.scale[index], 1e-9)


def _quantile(scores: Sequence[float]) -> float:
    """Return the quantile for a finite sample, as conformal prediction counts it."""
    rank = math.ceil((len(scores) + 1) * LEVEL)
    return sorted(scores)[min(rank, len(scores)) - 1]
