"""Chooses the policies to try on a history, and the results to show. Pure functions.

The search tries a coarse grid first. Then it tries the neighbours of the policies on the Pareto
front of cost against mean wait: each number of a policy halved and doubled. All orders are fixed,
so that the same history gives the same answer.
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
    """A policy and its figures on the history."""

    policy: str
    figures: Figures


def grid() -> list[str]:
    """Return the first policies to try. ``Scenario.problems`` sorts out senseless combinations."""
    return [f"{growth}+{release}" for growth in GROWTHS for release in RELEASES] + [*STEADY]


def neighbours(policies: Iterable[str], known_policies: Iterable[str]) -> list[str]:
    """Return variants of policies with each number halved and doubled, without known policies."""
    policies_seen, variants = set(known_policies), []
    for policy in policies:
        for variant in _variants(policy):
            if variant not in policies_seen:
                policies_seen.add(variant)
                variants.append(variant)
    return variants


def of_most_jobs(tried: Sequence[Tried]) -> list[Tried]:
    """Return the policies under which no fewer jobs run than under any other. Cost and wait are
    those of the jobs that run, so a policy that leaves jobs out would look cheap and quick.
    """
    fewest = min(map(_jobs_left, tried), default=0)
    return [candidate for candidate in tried if _jobs_left(candidate) == fewest]


def front(tried: Sequence[Tried]) -> list[Tried]:
    """Return the policies that no other beats in both cost and mean wait, cheapest first. Only
    those ``of_most_jobs`` count.
    """
    best: list[Tried] = []
    for candidate in sorted(of_most_jobs(tried), key=lambda t: (_dollars(t), t.figures.mean_wait)):
        if not best or candidate.figures.mean_wait < best[-1].figures.mean_wait:
            best.append(candidate)
    return best


def apart(best: Sequence[Tried], *, keep: Sequence[Tried | None] = ()) -> list[Tried]:
    """Return the policies of a front worth a line. Each differs from the policy before it
    by more than ``NEAR`` in cost or wait. The first, the last and those in ``keep`` always stay.
    """
    kept: list[Tried] = []
    for candidate in best:
        last_figures = kept[-1].figures if kept else None
        if (
            last_figures is None
            or candidate in (*keep, best[-1])
            or _differ(last_figures, candidate.figures)
        ):
            kept.append(candidate)
    return kept


def _differ(figures: Figures, other: Figures) -> bool:
    pairs = ((figures.cost, other.cost), (figures.mean_wait, other.mean_wait))
    return any(abs(a - b) > NEAR * max(a, b) for a, b in pairs)


def within(tried: Sequence[Tried], wait: float | None, cost: float | None) -> Tried | None:
    """Return the cheapest policy with a mean wait of at most ``wait`` seconds, or the policy with
    the shortest wait for at most ``cost`` dollars; None if there is none.

    If both are None, return the policy with the smallest sum of squares of wait and cost, each
    relative to its range on the front.
    """
    best = front(tried)
    if wait is not None:
        return next((candidate for candidate in best if candidate.figures.mean_wait <= wait), None)
    if cost is not None:
        return next(
            (candidate for candidate in reversed(best) if candidate.figures.cost <= cost), None
        )
    return min(best, key=lambda candidate: _distance(candidate, best), default=None)


def _distance(candidate: Tried, best: Sequence[Tried]) -> float:
    cheap, quick = best[0].figures, best[-1].figures
    dear = max(quick.cost - cheap.cost, 1e-9)
    slow = max(cheap.mean_wait - quick.mean_wait, 1e-9)
    relative = (
        (candidate.figures.cost - cheap.cost) / dear,
        (candidate.figures.mean_wait - quick.mean_wait) / slow,
    )
    return relative[0] ** 2 + relative[1] ** 2


def _jobs_left(candidate: Tried) -> int:
    return candidate.figures.unserved + candidate.figures.too_large


def _dollars(candidate: Tried) -> float:
    return round(candidate.figures.cost, 2)  # fractions of a cent do not make a policy better


def _variants(policy: str) -> Iterator[str]:
    for match in NUMBER.finditer(policy):
        value = int(match.group())
        for other in (value // 2, value * 2):
            if other >= 1:
                yield policy[: match.start()] + str(other) + policy[match.end() :]
