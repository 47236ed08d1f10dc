"""How certain it is that one policy is cheaper, or makes jobs wait less, than another. Pure
functions.

A history is one sample of the users' behaviour, and the coming weeks are another. We estimate how
far the two may differ from the differences between single weeks of the history, each weighted by
its jobs or dollars. The interval is one standard deviation of the saving on either side, and two of
the wait, because long waits come from a few bad weeks.

Drawing weeks at random (the bootstrap) shows only how certain the value for this history is. That
is not enough: 90 % intervals from draws contained two thirds of the savings, and half of the waits,
of the following weeks. ``scripts/bench held_back`` counts how many our intervals contain.

A policy that was chosen on the same history looks better there than it is, so its intervals are
wider (``WIDTHS``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from math import sqrt
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from slurm_elastic.simulate import series
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.studies.breakdown import spent

WEEK_S = 7 * 86400
MIN_COMPARED_WEEKS = 8  # weeks; a shorter history shows too little to compare
SAVING_DEVIATIONS, WAIT_DEVIATIONS = 1.0, 2.0  # standard deviations of single weeks on either side


class Choice(Enum):
    """How the policy came to be compared: a person named it, or a search over the same history
    chose it, either the best within a limit or the best compromise.
    """

    NAMED = "named"
    WITHIN_LIMIT = "within a limit"
    COMPROMISE = "compromise"


class Widths(NamedTuple):
    """By how much the half width of each interval is multiplied."""

    saving: float
    wait: float


WIDTHS: Mapping[Choice, Widths] = MappingProxyType(
    {
        Choice.NAMED: Widths(saving=1.0, wait=1.0),
        Choice.WITHIN_LIMIT: Widths(saving=1.5, wait=1.25),
        Choice.COMPROMISE: Widths(saving=1.7, wait=1.25),
    }
)
"""With these values seven in eight intervals of a policy chosen in one half of a history also held
in the other half: 197 policies, 17 windows of 9 to 12 weeks of CTC SP2, HPC2N, SDSC BLUE and
Sandia, in both directions, billed by the second and by the hour. Without them 70 % of the savings
and 86 % of the waits were inside.
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


class Week(Struct, frozen=True, kw_only=True):
    """The jobs submitted in a week that ran: their number, total wait (s), and the dollars paid."""

    jobs: int
    waited: int
    cost: float


Pairs = Sequence[tuple[Week, Week]]  # the same weeks under one policy and under the other


def compared(
    outcome: RunResult, other: RunResult, choice: Choice = Choice.NAMED
) -> Comparison | None:
    """Compare two runs. None if the history is too short, or costs nothing under ``other``.
    ``choice``: how the policy of ``outcome`` was chosen.
    """
    return of_weeks(list(zip(weeks(outcome), weeks(other), strict=True)), choice)


def of_weeks(pairs: Pairs, choice: Choice = Choice.NAMED) -> Comparison | None:
    """Compare the same weeks under two policies. None as for ``compared``."""
    widths = WIDTHS[choice]
    saving, wait = saving_of(pairs), extra_wait(pairs)
    if len(pairs) < MIN_COMPARED_WEEKS or saving is None or wait is None:
        return None
    return Comparison(
        saving=expected(
            saving,
            [other.cost - week.cost for week, other in pairs],
            [other.cost for _, other in pairs],
            SAVING_DEVIATIONS * widths.saving,
        ),
        wait=expected(
            wait,
            [week.waited - other.waited for week, other in pairs],
            [other.jobs for _, other in pairs],
            WAIT_DEVIATIONS * widths.wait,
        ),
        weeks=len(pairs),
    )


def expected(
    value: float, numerators: Sequence[float], weights: Sequence[float], deviations: float
) -> Interval:
    """Return the interval of ``value``, the ratio of the sums of ``numerators`` and ``weights``,
    within so many standard ``deviations`` of single weeks.
    """
    mean = sum(weights) / len(weights)
    differences = [
        (numerator - value * weight) / mean
        for numerator, weight in zip(numerators, weights, strict=True)
    ]
    # Divided by n - 1: the mean is estimated from the same weeks.
    half_width = deviations * sqrt(
        sum(deviation * deviation for deviation in differences) / (len(differences) - 1)
    )
    return Interval(value=value, low=value - half_width, high=value + half_width)


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
