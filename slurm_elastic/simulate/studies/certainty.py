"""How certain it is that one policy is cheaper, or makes jobs wait less, than another. Pure
functions.

A history is one sample of the users' behaviour, and the coming weeks are another. How far the two
may differ follows from the differences between single weeks of the history, each weighted by its
jobs or dollars: their standard deviation, and a little more (``SAVING_FLOOR``, ``WAIT_FLOOR``),
because weeks that hardly differ are no promise. This is the scale of a range.

The half width of a range is this scale times a factor (``WIDTHS``) that was calibrated on other
histories by normalized conformal prediction (Papadopoulos, Gammerman and Vovk, "Normalized
nonconformity measures for regression conformal prediction", 2008): the factor is a high quantile of
the differences between what half a history says and what the other half then shows, each divided by
its scale. The choice of the policy is repeated in each half, so the factor of a chosen policy
includes that it looks better on the history on which it was chosen. ``scripts/bench held_back
--halves`` computes the factors, and how many ranges hold on a history that it left out.

Drawing weeks at random (the bootstrap) shows only how certain the value for this history is. That
is not enough: 90 % intervals from draws contained two thirds of the savings, and half of the waits,
of the following weeks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from math import hypot, sqrt
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from slurm_elastic.simulate import series
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.studies.breakdown import spent

WEEK_S = 7 * 86400
MIN_COMPARED_WEEKS = 8  # weeks; a shorter history shows too little to compare
SAVING_DEVIATIONS = 1.0
"""The half width of the range of ``plan reserve``, in standard deviations of single weeks."""
SAVING_FLOOR = 0.002
"""As a share of the cost: added to the standard deviation of the savings of single weeks."""
WAIT_FLOOR = 0.002
"""As a share of the mean wait: added to the standard deviation of the waits of single weeks."""


MAX_SHIFT = 3.0
"""Standard errors by which the two halves of a history may differ."""


class Choice(Enum):
    """How the policy came to be compared: a person named it, or a search over the same history
    chose it.
    """

    NAMED = "named"
    CHOSEN = "chosen"


class Widths(NamedTuple):
    """A number for each range: its scale, the factor by which it is multiplied, or its value."""

    saving: float
    wait: float


WIDTHS: Mapping[Choice, Widths] = MappingProxyType(
    {
        Choice.NAMED: Widths(saving=1.1, wait=3.5),
        Choice.CHOSEN: Widths(saving=1.4, wait=2.7),
    }
)
"""The factors that ``scripts/bench held_back --halves`` computes from three public histories (KTH
SP2, SDSC SP2 and SDSC DataStar), rounded up: of each history the quantile of 93 %, of these the
largest. Three histories are few, so the commands promise nine in ten.
"""


class Interval(Struct, frozen=True, kw_only=True):
    """A value of a history, and the range in which we expect it for as many coming weeks."""

    value: float
    low: float
    high: float


class Comparison(Struct, frozen=True, kw_only=True):
    """A policy compared with another on the whole ``weeks`` of a history. ``saving``: the share of
    the other policy's cost; ``wait``: how many seconds longer jobs wait on average.
    """

    saving: Interval
    wait: Interval
    weeks: int


class Unlike(Struct, frozen=True, kw_only=True):
    """In place of a ``Comparison``: the history's two halves differ by more than the variation
    between single weeks explains, so its past says nothing about coming weeks.
    """

    savings: tuple[float, float]
    waits: tuple[float, float]
    weeks: int


class Week(Struct, frozen=True, kw_only=True):
    """The jobs submitted in a week that ran: their number, total wait (s), and the dollars paid."""

    jobs: int
    waited: int
    cost: float


Pairs = Sequence[tuple[Week, Week]]  # the same weeks under one policy and under the other


def compared(
    outcome: RunResult, other: RunResult, choice: Choice = Choice.NAMED
) -> Comparison | Unlike | None:
    """Compare two runs. None if the history is too short, or costs nothing under ``other``.
    ``choice``: how the policy of ``outcome`` was chosen.
    """
    return of_weeks(list(zip(weeks(outcome), weeks(other), strict=True)), choice)


def of_weeks(pairs: Pairs, choice: Choice = Choice.NAMED) -> Comparison | Unlike | None:
    """Compare the same weeks under two policies. None as for ``compared``."""
    saving, wait = saving_of(pairs), extra_wait(pairs)
    if len(pairs) < MIN_COMPARED_WEEKS or saving is None or wait is None:
        return None
    scale, factor = scales(pairs, saving, wait), WIDTHS[choice]
    return unlike(pairs) or Comparison(
        saving=_around(saving, factor.saving * scale.saving),
        wait=_around(wait, factor.wait * scale.wait),
        weeks=len(pairs),
    )


def scales(pairs: Pairs, saving: float, wait: float) -> Widths:
    """Return the scale of the range of the ``saving``, and of the ``wait`` (s), of these weeks."""
    deviations, floors = _deviations(pairs, saving, wait), _floors(pairs)
    return Widths(deviations.saving + floors.saving, deviations.wait + floors.wait)


def unlike(pairs: Pairs) -> Unlike | None:
    """Return the values of the two halves of the weeks if they differ by more than single weeks
    within each half explain.
    """
    middle = len(pairs) // 2
    halves = [_half_of(half) for half in (pairs[:middle], pairs[middle:])]
    if None in halves:
        return None
    (first, first_errors), (second, second_errors) = (half for half in halves if half is not None)
    floors = _floors(pairs)
    if all(
        abs(first[index] - second[index])
        <= MAX_SHIFT * hypot(first_errors[index], second_errors[index]) + floors[index]
        for index in (0, 1)
    ):
        return None
    return Unlike(
        savings=(first.saving, second.saving), waits=(first.wait, second.wait), weeks=len(pairs)
    )


def _half_of(pairs: Pairs) -> tuple[Widths, Widths] | None:
    """Return the saving and the wait of half a history, and their standard errors."""
    saving, wait = saving_of(pairs), extra_wait(pairs)
    if saving is None or wait is None:
        return None
    deviations = _deviations(pairs, saving, wait)
    root = sqrt(len(pairs))
    return Widths(saving, wait), Widths(deviations.saving / root, deviations.wait / root)


def _deviations(pairs: Pairs, saving: float, wait: float) -> Widths:
    return Widths(
        _deviation(
            saving,
            [other.cost - week.cost for week, other in pairs],
            [other.cost for _, other in pairs],
        ),
        _deviation(
            wait,
            [week.waited - other.waited for week, other in pairs],
            [other.jobs for _, other in pairs],
        ),
    )


def _floors(pairs: Pairs) -> Widths:
    mean_wait = sum(other.waited for _, other in pairs) / sum(other.jobs for _, other in pairs)
    return Widths(SAVING_FLOOR, WAIT_FLOOR * mean_wait)


def expected(
    value: float, numerators: Sequence[float], weights: Sequence[float], deviations: float
) -> Interval:
    """Return the interval of ``value``, the ratio of the sums of ``numerators`` and ``weights``,
    within so many standard ``deviations`` of single weeks.
    """
    return _around(value, deviations * _deviation(value, numerators, weights))


def _around(value: float, half_width: float) -> Interval:
    return Interval(value=value, low=value - half_width, high=value + half_width)


def _deviation(value: float, numerators: Sequence[float], weights: Sequence[float]) -> float:
    """Return the standard deviation of single weeks from ``value``, each by its weight."""
    mean = sum(weights) / len(weights)
    differences = [
        (numerator - value * weight) / mean
        for numerator, weight in zip(numerators, weights, strict=True)
    ]
    # Divided by n - 1: the mean is estimated from the same weeks.
    squares = sum(difference * difference for difference in differences)
    return sqrt(squares / (len(differences) - 1))


def saving_of(pairs: Pairs) -> float | None:
    """Return the saving as a share of the other policy's cost; None if that was 0."""
    paid = sum(other.cost for _, other in pairs)
    return 1 - sum(week.cost for week, _ in pairs) / paid if paid else None


def extra_wait(pairs: Pairs) -> float | None:
    """Return how many seconds longer jobs wait on average; None without jobs."""
    jobs = sum(other.jobs for _, other in pairs)
    return sum(week.waited - other.waited for week, other in pairs) / jobs if jobs else None


def weeks(outcome: RunResult) -> list[Week]:
    """Return the whole weeks of a history, counted from its first job."""
    jobs = outcome.jobs
    first_submit, last_submit = min(jobs.submit, default=0), max(jobs.submit, default=0)
    count = (last_submit - first_submit) // WEEK_S
    number, waited = [0] * count, [0] * count
    for submitted, began in zip(jobs.submit, outcome.starts, strict=True):
        week = (submitted - first_submit) // WEEK_S
        if began >= 0 and week < count:
            number[week] += 1
            waited[week] += began - submitted
    edges = [first_submit + (n + 1) * WEEK_S for n in range(count)]
    rows = zip(number, waited, spent(series.cost(outcome), edges), strict=True)
    return [Week(jobs=n, waited=seconds, cost=cost) for n, seconds, cost in rows]
