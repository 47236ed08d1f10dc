"""How sure it is that one policy is cheaper, or has jobs wait less, than another. Pure.

One history is one sample of what a site's users do. Its weeks are drawn anew, as many as there are,
again and again, and the differences in the middle nine tenths of these draws are the interval: the
percentile bootstrap with blocks of a week, in which jobs depend on each other (Efron, Tibshirani:
"An Introduction to the Bootstrap", 1993, sections 8.6 and 13.3).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec import Struct

from slurm_elastic.simulate import series
from slurm_elastic.simulate.breakdown import spent
from slurm_elastic.simulate.outcome import Outcome

WEEK = 7 * 86400
LEAST = 4
"""Weeks below which a history says nothing of this."""
DRAWS = 1000
SHARE = 0.9
"""The part of the draws within the interval."""


class Interval(Struct, frozen=True, kw_only=True):
    """A value, and between what it lies in nine of ten draws."""

    value: float
    low: float
    high: float

    @property
    def is_sure(self) -> bool:
        """Whether nearly all draws say which way it goes."""
        return self.low > 0 or self.high < 0


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


def compared(ours: Outcome, other: Outcome, seed: int = 0) -> Comparison | None:
    """None where the history is too short, or costs nothing under the other policy."""
    pairs = list(zip(weeks(ours), weeks(other), strict=True))
    if len(pairs) < LEAST or not _saving(pairs):
        return None
    draw = random.Random(seed)  # noqa: S311 - repeatable, not secret
    drawn = [draw.choices(pairs, k=len(pairs)) for _ in range(DRAWS)]
    savings = [found for one in drawn for found in _saving(one)]
    return Comparison(
        saving=_interval(_saving(pairs)[0], savings),
        wait=_interval(_wait(pairs), [_wait(one) for one in drawn]),
        weeks=len(pairs),
    )


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


_Pairs = Sequence[tuple[Week, Week]]


def _saving(pairs: _Pairs) -> list[float]:
    """One share, or none where nothing was paid."""
    paid = sum(other.cost for _, other in pairs)
    return [1 - sum(ours.cost for ours, _ in pairs) / paid] if paid else []


def _wait(pairs: _Pairs) -> float:
    ours, other = (
        sum(pair[side].waited for pair in pairs) / max(sum(pair[side].jobs for pair in pairs), 1)
        for side in (0, 1)
    )
    return ours - other


def _interval(value: float, draws: Sequence[float]) -> Interval:
    ordered = sorted(draws)
    edge = (1 - SHARE) / 2
    low, high = (ordered[round(part * (len(ordered) - 1))] for part in (edge, 1 - edge))
    return Interval(value=value, low=low, high=high)
