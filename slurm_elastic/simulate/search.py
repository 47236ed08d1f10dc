"""Chooses which policies to try on a history, and which results are worth a look. Pure functions.

First we try a coarse grid, then the neighbours of the policies on the Pareto front of cost against
mean wait: each number of a policy halved and doubled. The order of everything is fixed, so that the
same history gives the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from slurm_elastic.simulate.outcome import Figures

GROWTHS = (
    "slurm",
    "on_demand",
    "bursts(waste=180)",
    "group_bursts(group=2)",
    "ratio(slots=1)",
    "semi_elastic(wait_limit=60)",
    "semi_elastic(wait_limit=300)",
    "semi_elastic(wait_limit=1800)",
    "semi_elastic(wait_limit=300, size=first)",
    "semi_elastic(wait_limit=300, size=sum)",
)
RELEASES = ("idle(60)", "idle(600)", "idle(3600)", "delayed(before_end=60)")
STEADY = ("steady_stream(waste=180)+flagged",)
NEAR = 0.005
"""Two policies are equally good if they differ by no more than this share in cost and wait."""
NUMBER = re.compile(r"(?<==)\d+|(?<=idle\()\d+")


class Tried(Struct, frozen=True, kw_only=True):
    """A policy and what it did to the history."""

    policy: str
    figures: Figures


def grid() -> list[str]:
    """The first policies to try; combinations without sense are refused by the scenario."""
    return [f"{growth}+{release}" for growth in GROWTHS for release in RELEASES] + [*STEADY]


def neighbours(policies: Iterable[str], known: Iterable[str]) -> list[str]:
    """Each number of each policy halved and doubled, without policies that are known."""
    seen, found = set(known), []
    for policy in policies:
        for variant in _variants(policy):
            if variant not in seen:
                seen.add(variant)
                found.append(variant)
    return found


def front(tried: Sequence[Tried]) -> list[Tried]:
    """The policies that no other beats in both cost and mean wait, cheapest first."""
    best: list[Tried] = []
    for one in sorted(tried, key=lambda t: (_dollars(t), t.figures.mean_wait)):
        if not best or one.figures.mean_wait < best[-1].figures.mean_wait:
            best.append(one)
    return best


def apart(best: Sequence[Tried], *, keep: Sequence[Tried | None] = ()) -> list[Tried]:
    """A front's policies that are worth a line: each differs from the one before it by more than
    ``NEAR`` in cost or wait; those of ``keep``, the first and the last stay.
    """
    found: list[Tried] = []
    for one in best:
        last = found[-1].figures if found else None
        if last is None or one in (*keep, best[-1]) or _differ(last, one.figures):
            found.append(one)
    return found


def _differ(one: Figures, other: Figures) -> bool:
    pairs = ((one.cost, other.cost), (one.mean_wait, other.mean_wait))
    return any(abs(a - b) > NEAR * max(a, b) for a, b in pairs)


def within(tried: Sequence[Tried], wait: float | None, cost: float | None) -> Tried | None:
    """The cheapest policy whose mean wait is at most ``wait`` seconds, or the one with the shortest
    wait for at most ``cost`` dollars; None if there is none. Without limits: the one with the
    smallest sum of squares of both, each relative to its range on the front.
    """
    best = front(tried)
    if wait is not None:
        return next((one for one in best if one.figures.mean_wait <= wait), None)
    if cost is not None:
        return next((one for one in reversed(best) if one.figures.cost <= cost), None)
    return min(best, key=lambda one: _distance(one, best), default=None)


def _distance(one: Tried, best: Sequence[Tried]) -> float:
    cheap, quick = best[0].figures, best[-1].figures
    dear = max(quick.cost - cheap.cost, 1e-9)
    slow = max(cheap.mean_wait - quick.mean_wait, 1e-9)
    relative = (
        (one.figures.cost - cheap.cost) / dear,
        (one.figures.mean_wait - quick.mean_wait) / slow,
    )
    return relative[0] ** 2 + relative[1] ** 2


def _dollars(one: Tried) -> float:
    return round(one.figures.cost, 2)  # a cent more is no reason to wait


def _variants(policy: str) -> Iterator[str]:
    for match in NUMBER.finditer(policy):
        value = int(match.group())
        for other in (value // 2, value * 2):
            if other >= 1:
                yield policy[: match.start()] + str(other) + policy[match.end() :]
