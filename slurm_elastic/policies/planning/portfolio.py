"""Decides which machines to reserve for years ahead: classes, Algorithm 1, its online form. Pure.

Usage is a table ``usage[week][rank]``: the hours of the week in which more than ``rank`` machines
ran at a time, so each row descends. A class is worth its upfront payment for a rank that is used
for a large enough share of the term (``breakeven``).

Source: Niu et al., "Building semi-elastic virtual clusters" (SC '13; IEEE TPDS 2015): Algorithm 1,
Equations 1 and 2, and the five online steps. The paper leaves points open. Usage beyond the end of
the history is unknown, so we take the share of the known part. Among classes of several terms we
try the longest term first. For its forecast see ``forecast``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from msgspec import Struct

from slurm_elastic.policies.growth.forecast import Smoothed

WEEK = 168
"""Hours: the step of all decisions (the paper's tau)."""

MOST_GROWTH = 2.0
"""The forecast is at most so many times the highest week so far. The paper has no such bound, and
three years ahead the parabola of Equation 3 leaves all reason. The savings of the forecast depend
much on the bound (``scripts/bench papers``).
"""
ROUNDING = 1e-9
"""Factors that should be whole come out of sums of floats."""

Usage = Sequence[Sequence[float]]


class ReservedClass(Struct, frozen=True, kw_only=True):
    """Machines bought ahead: ``upfront`` dollars for ``term`` hours, then ``price`` per hour of
    use. With ``always`` each hour of the term is paid, used or not (EC2's heavy reservations, and
    all reserved instances and savings plans of today).
    """

    name: str
    term: int
    upfront: float
    price: float
    always: bool = False

    def cost(self, used: float, hours: float) -> float:
        """Return the dollars of one machine for ``used`` of ``hours`` hours, with its share of the
        upfront payment.
        """
        paid = hours if self.always else used
        return self.upfront * hours / self.term + paid * self.price

    @property
    def weeks(self) -> int:
        """The term in whole weeks, at least one."""
        return max(self.term // WEEK, 1)


class Bought(NamedTuple):
    """``machines`` of the class with this index, reserved at the beginning of ``week``."""

    week: int
    kind: int
    machines: int


class Bill(Struct, frozen=True, kw_only=True):
    """The cost of a portfolio over the history. ``cost`` counts upfront payments by the part of
    their term within the history; ``upfront`` is the full sum paid. ``hours``: by class, the last
    is on demand.
    """

    cost: float
    upfront: float
    hours: tuple[float, ...]


def breakeven(heavier: ReservedClass, lighter: ReservedClass | None, on_demand: float) -> float:
    """Return the share of the time from which ``heavier`` is cheaper than the next lighter class
    (None: than on-demand machines); over 1: it never is. Raises ValueError if the terms differ.
    """
    if lighter is not None and lighter.term != heavier.term:
        raise ValueError(f"{heavier.name} and {lighter.name} have different terms")
    upfront = heavier.upfront - (lighter.upfront if lighter else 0.0)
    price = lighter.price if lighter else on_demand
    if lighter is not None and lighter.always:
        standing = upfront + (heavier.price - lighter.price) * heavier.term
        return 0.0 if standing <= 0 else float("inf")
    if heavier.always:
        return (upfront + heavier.price * heavier.term) / (price * heavier.term)
    if price <= heavier.price:
        return float("inf")
    return upfront / ((price - heavier.price) * heavier.term)


def allocate(concurrent: Sequence[int], classes: Sequence[tuple[int, float]]) -> list[int]:
    """Return the machine-hours of each class and, last, on demand. In each hour the first machines
    are of the first class, and so on. ``concurrent``: machines in each hour; ``classes``:
    (machines, $/h).
    """
    hours = [0] * (len(classes) + 1)
    for machines in concurrent:
        remaining = machines
        for index, (count, _) in enumerate(classes):
            used = min(remaining, count)
            hours[index] += used
            remaining -= used
        hours[-1] += remaining
    return hours


def heaviest_first(classes: Sequence[ReservedClass]) -> tuple[ReservedClass, ...]:
    """Return the order in which classes are offered to ranks: longest term, then cheapest hour."""
    return tuple(sorted(classes, key=lambda c: (-c.term, not c.always, c.price, -c.upfront)))


def breakevens(classes: Sequence[ReservedClass], on_demand: float) -> tuple[float, ...]:
    """Return, for each class, the share of use from which it is cheaper than the next lighter class
    of its term.

    A class that is never the cheapest of its term has an infinite share, and the next heavier class
    is compared with the class below it.
    """
    shares = [float("inf")] * len(classes)
    for term in {kind.term for kind in classes}:
        kept: list[int] = []
        for index in reversed([i for i, kind in enumerate(classes) if kind.term == term]):
            share = _share(classes, kept, index, on_demand)
            while kept and share <= shares[kept[-1]]:
                shares[kept.pop()] = float("inf")
                share = _share(classes, kept, index, on_demand)
            if share <= 1:
                shares[index] = share
                kept.append(index)
    return tuple(shares)


def offline(usage: Usage, classes: Sequence[ReservedClass], on_demand: float) -> tuple[Bought, ...]:
    """Algorithm 1 with the whole history known; ``classes`` heaviest first."""
    shares = breakevens(classes, on_demand)
    totals = _Totals(usage)
    bought: list[Bought] = []
    for week in range(len(usage)):
        counts = demand(totals, week, classes, shares)
        bought += _buy(week, counts, bought, classes)
    return tuple(bought)


def online(
    usage: Usage,
    classes: Sequence[ReservedClass],
    on_demand: float,
    *,
    settle: int = 4,
    most: float = MOST_GROWTH,
) -> tuple[Bought, ...]:
    """The five steps at the end of each week, each with the weeks before it only.

    Nothing is bought in the first ``settle`` weeks. A purchase in week ``len(usage)`` is the
    recommendation for now. ``most``: see ``forecast``.
    """
    shares = breakevens(classes, on_demand)
    horizon = max((kind.weeks for kind in classes), default=0)
    total: Smoothed | None = None
    sums: list[float] = []
    bought: list[Bought] = []
    for week, row in enumerate(usage, 1):
        hours = sum(row)
        total = Smoothed(hours, highest=hours) if total is None else total.after(hours)
        sums = [used + more for used, more in zip_longest(sums, row, fillvalue=0.0)]
        if week < settle:
            continue
        # One week more than the longest term, as Algorithm 1 also looks at the week behind a term.
        expected = forecast(total, [used / week for used in sums], horizon + 1, most)
        counts = demand(_Totals(_uncovered(expected, week, bought, classes)), 0, classes, shares)
        bought += [Bought(week, kind, count) for kind, count in enumerate(counts) if count]
    return tuple(bought)


def forecast(
    total: Smoothed, mean_row: Sequence[float], weeks: int, most: float = MOST_GROWTH
) -> list[list[float]]:
    """Return the usage of the next weeks. As in the paper, Equations 3 and 4 predict the machine-
    hours of a whole week, here at most ``most`` times those of the highest week so far.

    The paper leaves open how the hours spread over the ranks. We scale the mean row of the weeks so
    far (see ``scaled``).
    """
    mean = sum(mean_row)
    if not mean:
        return [[] for _ in range(weeks)]
    return [scaled(mean_row, total.ahead(step, most) / mean) for step in range(1, weeks + 1)]


def demand(
    totals: _Totals, week: int, classes: Sequence[ReservedClass], shares: Sequence[float]
) -> list[int]:
    """How many machines of each class the ranks are worth from ``week`` on (Algorithm 1's D)."""
    counts = [0] * len(classes)
    for rank in range(totals.ranks(week)):
        now = totals.hours(rank, week, week + 1)
        for index, kind in enumerate(classes):
            end = min(week + kind.weeks, totals.weeks)
            if totals.hours(rank, week, end) < shares[index] * WEEK * (end - week):
                continue
            later = totals.hours(rank, week + kind.weeks, week + kind.weeks + 1)
            # A rank that this week does not use can wait for the week that does.
            if now > 0 and (now >= shares[index] * WEEK or now >= later):
                counts[index] += 1
            break
    return counts


def top_up(have: Sequence[int], want: Sequence[int]) -> list[int]:
    """Return the purchases to add to ``have`` that minimise Equation 1: the squares of each class's
    surplus, plus the square of (number of classes x the whole surplus).

    The sum is convex, so steps of one machine find the minimum.
    """
    surplus = [h - w for h, w in zip(have, want, strict=True)]
    added = [0] * len(surplus)
    weight = len(surplus) ** 2
    while surplus:
        index = min(range(len(surplus)), key=surplus.__getitem__)
        total = sum(surplus)
        # The change of the sum by one more: (s+1)^2 - s^2 and the same of the whole.
        if 2 * surplus[index] + 1 + weight * (2 * total + 1) >= 0:
            break
        surplus[index] += 1
        added[index] += 1
    return added


def bill(
    usage: Usage, bought: Sequence[Bought], classes: Sequence[ReservedClass], on_demand: float
) -> Bill:
    """The cost of the history with these purchases; heavier classes are used first."""
    hours = [0.0] * (len(classes) + 1)
    cost = upfront = 0.0
    for week, row in enumerate(usage):
        machines = active(week, bought, classes)
        rank = 0
        for index, count in enumerate(machines):
            hours[index] += sum(row[rank : rank + count])
            rank += count
        hours[-1] += sum(row[rank:])
        cost += week_cost(row, machines, classes, on_demand)
    for week, index, count in bought:
        upfront += count * classes[index].upfront if week < len(usage) else 0.0
    return Bill(cost=cost, upfront=upfront, hours=tuple(hours))


def week_cost(
    row: Sequence[float],
    machines: Sequence[int],
    classes: Sequence[ReservedClass],
    on_demand: float,
) -> float:
    """Dollars of a week with so many machines of each class; heavier classes are used first."""
    cost, rank = 0.0, 0
    for kind, count in zip(classes, machines, strict=True):
        used = count * WEEK if kind.always else sum(row[rank : rank + count])
        cost += used * kind.price + count * kind.upfront / kind.weeks
        rank += count
    return cost + sum(row[rank:]) * on_demand


def bound(usage: Usage, classes: Sequence[ReservedClass], on_demand: float) -> float:
    """Dollars that no portfolio can go below (Equation 2): each rank's week in its best class."""
    total = 0.0
    for row in usage:
        for used in row:
            total += min(
                on_demand * used,
                *(
                    kind.upfront / kind.weeks + kind.price * (WEEK if kind.always else used)
                    for kind in classes
                ),
            )
    return total


def active(week: int, bought: Sequence[Bought], classes: Sequence[ReservedClass]) -> list[int]:
    """How many machines of each class are reserved in a week."""
    machines = [0] * len(classes)
    for begin, index, count in bought:
        if begin <= week < begin + classes[index].weeks:
            machines[index] += count
    return machines


def shrunk(usage: Usage, factor: float) -> list[list[float]]:
    """The usage if only ``factor`` (over 0, up to 1) of the machines were needed at each time."""
    return [scaled(row, factor) for row in usage]


def scaled(row: Sequence[float], factor: float) -> list[float]:
    """The usage of a week if ``factor`` times the machines were needed at each time."""
    # The last ranks of a shrunk row, and rounding errors, must not leave the row.
    return [
        row[min(int(rank / factor + ROUNDING), len(row) - 1)]
        for rank in range(round(len(row) * factor))
    ]


class _Totals:
    """Sums of each rank's hours over weeks, each in constant time."""

    def __init__(self, usage: Usage) -> None:
        self.weeks = len(usage)
        self._rows = [len(row) for row in usage]
        width = max(self._rows, default=0)
        self._sums = [[0.0] * (self.weeks + 1) for _ in range(width)]
        for week, row in enumerate(usage):
            for rank, sums in enumerate(self._sums):
                sums[week + 1] = sums[week] + (row[rank] if rank < len(row) else 0.0)

    def ranks(self, week: int) -> int:
        """Return how many ranks are used in the week or later; higher ranks need no machine."""
        return max(self._rows[week:], default=0)

    def hours(self, rank: int, begin: int, end: int) -> float:
        """The use of the rank from week ``begin`` to before ``end``; 0 beyond the table."""
        sums = self._sums[rank]
        return sums[min(end, self.weeks)] - sums[min(begin, self.weeks)]


def _share(
    classes: Sequence[ReservedClass], kept: Sequence[int], index: int, on_demand: float
) -> float:
    lighter = classes[kept[-1]] if kept else None
    return breakeven(classes[index], lighter, on_demand)


def _buy(
    week: int, counts: Sequence[int], bought: Sequence[Bought], classes: Sequence[ReservedClass]
) -> list[Bought]:
    """Apply Equation 1 to the present reservations, each counted as the class that its remaining
    life makes it.
    """
    have = [0] * len(classes)
    for begin, index, count in bought:
        remaining_weeks = begin + classes[index].weeks - week
        if remaining_weeks > 0:
            have[_counts_as(index, remaining_weeks, classes)] += count
    added = top_up(have, counts)
    return [Bought(week, index, count) for index, count in enumerate(added) if count]


def _counts_as(index: int, remaining_weeks: int, classes: Sequence[ReservedClass]) -> int:
    """A reservation near its end counts like a reservation of a shorter term with the same hourly
    price.
    """
    reservation = classes[index]
    alike = [
        other
        for other, kind in enumerate(classes)
        if (kind.price, kind.always) == (reservation.price, reservation.always)
        and kind.weeks >= remaining_weeks
    ]
    return min(alike, key=lambda other: classes[other].weeks, default=index)


def _uncovered(
    expected: Usage, week: int, bought: Sequence[Bought], classes: Sequence[ReservedClass]
) -> list[list[float]]:
    """Step 3: subtract the active reservations from the forecast."""
    return [
        list(row[sum(active(week + step, bought, classes)) :]) for step, row in enumerate(expected)
    ]
