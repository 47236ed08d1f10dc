"""How sure it is that one policy is cheaper, or has jobs wait less, than another. Pure functions.

One history is one sample of what a site's users do, and the weeks to come are another. How far the
two may differ we judge by how far single weeks of the history differ from all of it, each weighted
by its jobs or dollars: by one standard deviation of the saving, and by two of the wait, which comes
mostly from a few bad weeks.

Drawing weeks at random (the bootstrap) tells how sure the value for this history is, which is not
enough: 90 % intervals from draws contained only two in three of the savings, and half of the waits,
that the following weeks brought. ``scripts/bench held_back`` counts how many these intervals
contain.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from msgspec import Struct

from slurm_elastic.simulate import series
from slurm_elastic.simulate.breakdown import spent
from slurm_elastic.simulate.outcome import RunResult

WEEK = 7 * 86400
LEAST = 8  # with fewer weeks a history says nothing about this
OF_SAVING, OF_WAIT = 1.0, 2.0  # standard deviations of single weeks on either side


class Interval(Struct, frozen=True, kw_only=True):
    """A value of a history, and the range in which we expect it in as many weeks to come."""

    value: float
    low: float
    high: float


class Comparison(Struct, frozen=True, kw_only=True):
    """A policy compared with another one on the same history: ``saving`` is a share of the other's
    cost, ``wait`` how many seconds longer jobs wait on average. Over whole ``weeks``.
    """

    saving: Interval
    wait: Interval
    weeks: int


class Week(Struct, frozen=True, kw_only=True):
    """Jobs that were submitted in a week and ran: their number, waits (s), and the dollars paid."""

    jobs: int
    waited: int
    cost: float


Pairs = Sequence[tuple[Week, Week]]  # the same weeks under one policy and under the other


def compared(ours: RunResult, other: RunResult) -> Comparison | None:
    """None if the history is too short, or costs nothing under the other policy."""
    return of_weeks(list(zip(weeks(ours), weeks(other), strict=True)))


def of_weeks(pairs: Pairs) -> Comparison | None:
    """The same for these weeks alone."""
    saving, wait = saved(pairs), longer(pairs)
    if len(pairs) < LEAST or saving is None or wait is None:
        return None
    return Comparison(
        saving=expected(
            saving,
            [other.cost - ours.cost for ours, other in pairs],
            [other.cost for _, other in pairs],
            OF_SAVING,
        ),
        wait=expected(
            wait,
            [ours.waited - other.waited for ours, other in pairs],
            [other.jobs for _, other in pairs],
            OF_WAIT,
        ),
        weeks=len(pairs),
    )


def expected(
    value: float, parts: Sequence[float], weights: Sequence[float], deviations: float
) -> Interval:
    """The ratio of two sums over weeks, within so many ``deviations`` of single weeks."""
    mean = sum(weights) / len(weights)
    apart = [(part - value * weight) / mean for part, weight in zip(parts, weights, strict=True)]
    most = deviations * sqrt(sum(one * one for one in apart) / (len(apart) - 1))
    return Interval(value=value, low=value - most, high=value + most)


def saved(pairs: Pairs) -> float | None:
    """By which share of the other's cost ours is cheaper; None if nothing was paid."""
    paid = sum(other.cost for _, other in pairs)
    return 1 - sum(ours.cost for ours, _ in pairs) / paid if paid else None


def longer(pairs: Pairs) -> float | None:
    """How many seconds longer jobs wait on average; None without jobs."""
    jobs = sum(other.jobs for _, other in pairs)
    return sum(ours.waited - other.waited for ours, other in pairs) / jobs if jobs else None


def weeks(outcome: RunResult) -> list[Week]:
    """The whole weeks of a history, counted from its first job."""
    jobs = outcome.jobs
    first, last = min(jobs.submit, default=0), max(jobs.submit, default=0)
    count = (last - first) // WEEK
    number, waited = [0] * count, [0] * count
    for submitted, began in zip(jobs.submit, outcome.starts, strict=True):
        week = (submitted - first) // WEEK
        if began >= 0 and week < count:
            number[week] += 1
            waited[week] += began - submitted
    edges = [first + (n + 1) * WEEK for n in range(count)]
    rows = zip(number, waited, spent(series.cost(outcome), edges), strict=True)
    return [Week(jobs=n, waited=seconds, cost=cost) for n, seconds, cost in rows]
