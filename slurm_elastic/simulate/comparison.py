"""How sure it is that one policy is cheaper, or has jobs wait less, than another. Pure.

One history is one sample of what a site's users do, and as many weeks to come are another one. How
far the two may differ is told by how far single weeks of the history differ from all of it, each
with the weight of its jobs or dollars: by their standard deviation in the saving, and twice that in
the wait, of which a few bad weeks are most.

Draws of the weeks (the bootstrap) say how sure the value of this history is, which is less than
what is asked: of what the weeks that followed brought, 90 % intervals of draws had two savings in
three and half of the waits. ``scripts/bench held_back`` counts what these here have.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from msgspec import Struct

from slurm_elastic.simulate import series
from slurm_elastic.simulate.breakdown import spent
from slurm_elastic.simulate.outcome import Outcome

WEEK = 7 * 86400
LEAST = 8
"""Weeks below which a history says nothing of this."""
OF_SAVING, OF_WAIT = 1.0, 2.0
"""Standard deviations of single weeks on either side."""


class Interval(Struct, frozen=True, kw_only=True):
    """A value of a history, and between what it is expected in as many weeks to come."""

    value: float
    low: float
    high: float


class Comparison(Struct, frozen=True, kw_only=True):
    """A policy beside another one on the same history: ``saving`` is a share of the other's cost,
    ``wait`` how many seconds more jobs wait in the mean. Over whole ``weeks``.
    """

    saving: Interval
    wait: Interval
    weeks: int


class Week(Struct, frozen=True, kw_only=True):
    """The jobs that were submitted in a week and ran: how many, the seconds that they waited in
    all, and the dollars paid in it.
    """

    jobs: int
    waited: int
    cost: float


Pairs = Sequence[tuple[Week, Week]]
"""The same weeks under one policy and under another."""


def compared(ours: Outcome, other: Outcome) -> Comparison | None:
    """None where the history is too short, or costs nothing under the other policy."""
    return of_weeks(list(zip(weeks(ours), weeks(other), strict=True)))


def of_weeks(pairs: Pairs) -> Comparison | None:
    """The same of these weeks alone."""
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
    """The interval of the ratio of two sums, of ``parts`` and of ``weights`` of each week: so many
    standard ``deviations`` of single weeks around it.
    """
    mean = sum(weights) / len(weights)
    apart = [(part - value * weight) / mean for part, weight in zip(parts, weights, strict=True)]
    most = deviations * sqrt(sum(one * one for one in apart) / (len(apart) - 1))
    return Interval(value=value, low=value - most, high=value + most)


def saved(pairs: Pairs) -> float | None:
    """The share of the other's cost that ours is less; None where nothing was paid."""
    paid = sum(other.cost for _, other in pairs)
    return 1 - sum(ours.cost for ours, _ in pairs) / paid if paid else None


def longer(pairs: Pairs) -> float | None:
    """How many seconds more jobs wait in the mean; None without any."""
    jobs = sum(other.jobs for _, other in pairs)
    return sum(ours.waited - other.waited for ours, other in pairs) / jobs if jobs else None


def weeks(outcome: Outcome) -> list[Week]:
    """The whole weeks of a history, from its first job on."""
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
