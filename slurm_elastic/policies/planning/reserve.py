"""Two ways to reserve machines besides the paper's: by trailing use, and with the whole history
known. Pure.

Both treat each rank separately (see ``portfolio.Usage``): the use of one more machine. A rank is
used whenever a higher rank is, so reservations always serve the lowest ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurm_elastic.policies.planning.portfolio import (
    WEEK,
    Bought,
    ReservedClass,
    Usage,
    active,
    breakevens,
    week_cost,
)

HOUR = 3600
TRAILING = 12
"""Weeks over which the mean use of a rank is taken."""
SETTLE = 2
"""Weeks of a history in which nothing is bought."""
REGRET = 0.02
"""Buy no more while the purchases so far cost this share more than machines on demand."""


def usage_of_steps(steps: Mapping[int, int]) -> list[list[float]]:
    """Return the usage table of a history. ``steps``: by second, the change in the number of paid
    machines. Hours are fractions; an unfinished week is left out.
    """
    width, seconds, count, time = WEEK * HOUR, 0, 0, 0
    table: list[list[float]] = [[] for _ in range(max(steps, default=0) // width)]
    for when, change in sorted(steps.items()):
        while time < when and time // width < len(table):
            end = min(when, (time // width + 1) * width)
            row, seconds = table[time // width], end - time
            row += [0.0] * (count - len(row))
            if count:
                row[count - 1] += seconds / HOUR
            time = end
        time, count = when, count + change
    for row in table:
        for rank in range(len(row) - 2, -1, -1):
            row[rank] += row[rank + 1]
    return table


def trailing(
    usage: Usage,
    classes: Sequence[ReservedClass],
    on_demand: float,
    *,
    weeks: int = TRAILING,
    settle: int = SETTLE,
    regret: float = REGRET,
) -> tuple[Bought, ...]:
    """At the end of each week, buy for each unserved rank the cheapest class for the rank's mean
    use over the last ``weeks``, if that use reaches its break-even; ``classes`` heaviest first.

    Nothing is bought in the first ``settle`` weeks, nor while the purchases cost over ``regret``
    more than machines on demand would have. A purchase in week ``len(usage)`` is the recommendation
    for now.
    """
    shares = breakevens(classes, on_demand)
    bought: list[Bought] = []
    paid = bare = 0.0
    for week, row in enumerate(usage, 1):
        paid += week_cost(row, active(week - 1, bought, classes), classes, on_demand)
        bare += sum(row) * on_demand
        if week < settle or paid > bare * (1 + regret):
            continue
        mean_hours = means(usage[max(week - weeks, 0) : week])
        served = sum(active(week, bought, classes))
        counts = _cheapest(mean_hours[served:], classes, shares)
        bought += [Bought(week, kind, count) for kind, count in enumerate(counts) if count]
    return tuple(bought)


def by_rank(
    usage: Usage, classes: Sequence[ReservedClass], on_demand: float
) -> tuple[tuple[Bought, ...], float]:
    """Return the purchases and the dollars of the cheapest portfolio if the whole history is known
    and each rank buys for itself.

    It is exact for separate ranks: a dynamic programme over weeks, each either on demand or the
    first of a class's term.
    """
    bought: dict[tuple[int, int], int] = {}
    total = 0.0
    for rank in range(max((len(row) for row in usage), default=0)):
        used = [row[rank] if rank < len(row) else 0.0 for row in usage]
        cost, chosen = _one_rank(used, classes, on_demand)
        total += cost
        for purchase in chosen:
            bought[purchase] = bought.get(purchase, 0) + 1
    purchases = (Bought(week, kind, count) for (week, kind), count in sorted(bought.items()))
    return tuple(purchases), total


def _one_rank(
    used: Sequence[float], classes: Sequence[ReservedClass], on_demand: float
) -> tuple[float, list[tuple[int, int]]]:
    """Return the dollars from the first week on, and (week, class) of each purchase."""
    weeks = len(used)
    sums = [0.0]
    for hours in used:
        sums.append(sums[-1] + hours)
    best = [0.0] * (weeks + 1)
    choice = [-1] * weeks
    for week in range(weeks - 1, -1, -1):
        best[week] = used[week] * on_demand + best[week + 1]
        for kind, reserved_class in enumerate(classes):
            end = min(week + reserved_class.weeks, weeks)
            paid = WEEK * (end - week) if reserved_class.always else sums[end] - sums[week]
            cost = (
                reserved_class.upfront / reserved_class.weeks * (end - week)
                + paid * reserved_class.price
                + best[end]
            )
            if cost < best[week] - 1e-9:
                best[week], choice[week] = cost, kind
    bought, week = [], 0
    while week < weeks:
        kind = choice[week]
        if kind >= 0:
            bought.append((week, kind))
        week += classes[kind].weeks if kind >= 0 else 1
    return best[0], bought


def means(rows: Usage) -> list[float]:
    """Return each rank's mean hours a week."""
    sums = [0.0] * max((len(row) for row in rows), default=0)
    for row in rows:
        for rank, hours in enumerate(row):
            sums[rank] += hours
    return [hours / len(rows) for hours in sums]


def cheapest_class(
    kinds: Iterable[int], mean: float, classes: Sequence[ReservedClass]
) -> int | None:
    """Return which of these classes costs least for ``mean`` hours of use a week: the first of
    several, None of none.
    """
    # A longer term is not always cheaper. Rounded, so that equal classes stay equal.
    return min(kinds, key=lambda kind: round(classes[kind].cost(mean, WEEK), 6), default=None)


def _cheapest(
    mean_hours: Sequence[float], classes: Sequence[ReservedClass], shares: Sequence[float]
) -> list[int]:
    """Return how many machines of each class these ranks are worth."""
    counts = [0] * len(shares)
    for mean in mean_hours:
        paying = (kind for kind, share in enumerate(shares) if mean >= share * WEEK)
        kind = cheapest_class(paying, mean, classes)
        if kind is None:
            break  # means descend with the ranks
        counts[kind] += 1
    return counts
