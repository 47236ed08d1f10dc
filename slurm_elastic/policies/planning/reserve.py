"""Two ways to reserve machines beside the paper's: by trailing use, and with all known. Pure.

Both take each rank by itself (see ``portfolio.Usage``): what one more machine is used for. A rank
is used whenever a higher one is, so reservations always serve the lowest ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
"""Weeks of which the mean use of a rank is taken."""
SETTLE = 2
"""Weeks of a history in which nothing is bought."""
REGRET = 0.02
"""No more is bought while the purchases so far have cost by more than this share over on demand."""


def usage_of_steps(steps: Mapping[int, int]) -> list[list[float]]:
    """The table of a history from when machines came and went: at each second, by how many more
    were paid from then on. Hours are fractions; an unfinished week is left out.
    """
    width, seconds, count, at = WEEK * HOUR, 0, 0, 0
    table: list[list[float]] = [[] for _ in range(max(steps, default=0) // width)]
    for when, change in sorted(steps.items()):
        while at < when and at // width < len(table):
            end = min(when, (at // width + 1) * width)
            row, seconds = table[at // width], end - at
            row += [0.0] * (count - len(row))
            if count:
                row[count - 1] += seconds / HOUR
            at = end
        at, count = when, count + change
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
    """At the end of each week, for each rank that nothing serves, the heaviest class whose
    break-even its mean use over the last ``weeks`` reaches; ``classes`` heaviest first.

    Nothing is bought in the first ``settle`` weeks, nor while the purchases have cost more than
    machines on demand would have, by over ``regret`` of that. A purchase of week ``len(usage)`` is
    what to buy now.
    """
    shares = breakevens(classes, on_demand)
    bought: list[Bought] = []
    paid = bare = 0.0
    for week, row in enumerate(usage, 1):
        paid += week_cost(row, active(week - 1, bought, classes), classes, on_demand)
        bare += sum(row) * on_demand
        if week < settle or paid > bare * (1 + regret):
            continue
        means = _means(usage[max(week - weeks, 0) : week])
        served = sum(active(week, bought, classes))
        wanted = _heaviest(means[served:], shares)
        bought += [Bought(week, kind, count) for kind, count in enumerate(wanted) if count]
    return tuple(bought)


def by_rank(
    usage: Usage, classes: Sequence[ReservedClass], on_demand: float
) -> tuple[tuple[Bought, ...], float]:
    """The least that the history could have cost with all of it known, where each rank buys for
    itself: what it buys, and dollars. Exact for ranks by themselves: a programme over weeks, each
    either on demand or the first of a class's term.
    """
    bought: dict[tuple[int, int], int] = {}
    total = 0.0
    for rank in range(max((len(row) for row in usage), default=0)):
        used = [row[rank] if rank < len(row) else 0.0 for row in usage]
        cost, chosen = _one_rank(used, classes, on_demand)
        total += cost
        for purchase in chosen:
            bought[purchase] = bought.get(purchase, 0) + 1
    found = (Bought(week, kind, count) for (week, kind), count in sorted(bought.items()))
    return tuple(found), total


def _one_rank(
    used: Sequence[float], classes: Sequence[ReservedClass], on_demand: float
) -> tuple[float, list[tuple[int, int]]]:
    """Dollars from the first week on, and (week, class) of each purchase."""
    weeks = len(used)
    sums = [0.0]
    for hours in used:
        sums.append(sums[-1] + hours)
    best = [0.0] * (weeks + 1)
    choice = [-1] * weeks
    for week in range(weeks - 1, -1, -1):
        best[week] = used[week] * on_demand + best[week + 1]
        for kind, of in enumerate(classes):
            end = min(week + of.weeks, weeks)
            paid = WEEK * (end - week) if of.always else sums[end] - sums[week]
            cost = of.upfront / of.weeks * (end - week) + paid * of.price + best[end]
            if cost < best[week] - 1e-9:
                best[week], choice[week] = cost, kind
    bought, week = [], 0
    while week < weeks:
        kind = choice[week]
        if kind >= 0:
            bought.append((week, kind))
        week += classes[kind].weeks if kind >= 0 else 1
    return best[0], bought


def _means(rows: Usage) -> list[float]:
    """Each rank's mean hours a week."""
    sums = [0.0] * max((len(row) for row in rows), default=0)
    for row in rows:
        for rank, hours in enumerate(row):
            sums[rank] += hours
    return [hours / len(rows) for hours in sums]


def _heaviest(means: Sequence[float], shares: Sequence[float]) -> list[int]:
    """How many machines of each class these ranks are worth."""
    wanted = [0] * len(shares)
    for mean in means:
        kind = next((k for k, share in enumerate(shares) if mean >= share * WEEK), None)
        if kind is None:
            break  # means descend with the ranks
        wanted[kind] += 1
    return wanted
