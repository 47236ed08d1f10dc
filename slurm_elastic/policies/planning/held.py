"""Decides what to reserve now, given what the site has reserved already. Pure.

It follows the rule of ``reserve.trailing``, with a real inventory instead of the purchases that the
rule itself would have made: held machines serve the lowest ranks, and each rank above them gets the
class that is the cheapest for its mean use of the last weeks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from slurm_elastic.policies.planning.portfolio import (
    WEEK,
    ReservedClass,
    Usage,
    breakevens,
    shrunk,
    week_cost,
)
from slurm_elastic.policies.planning.reserve import TRAILING, cheapest_class, means

DEMANDS = (0.5, 0.75, 1.0, 1.25, 1.5)
"""The demand of the coming weeks, as shares of the last weeks' demand."""


class Risk(Struct, frozen=True, kw_only=True):
    """The site's bounds of its risk. ``at_most``: by class index, how many machines may be held.
    ``prefer_short``: of the classes that pay off, buy the one with the shortest term.
    """

    at_most: Mapping[int, int] = {}
    prefer_short: bool = False


class DemandCase(Struct, frozen=True, kw_only=True):
    """A demand of ``share`` of the last weeks'. ``buy``: by class, what to buy now if it comes.

    Dollars per week, upfront payments spread over their terms: ``on_demand``: with machines on
    demand alone; ``held``: with what is held now; ``bought``: with what is held and what is advised
    for an unchanged demand.
    """

    share: float
    buy: tuple[int, ...]
    on_demand: float
    held: float
    bought: float


class HeldPlan(Struct, frozen=True, kw_only=True):
    """What to buy now: by class ``buy``, for ``upfront`` dollars today. ``held``: machines by
    class. ``weeks``: of how many weeks the use was taken.
    """

    held: tuple[int, ...]
    buy: tuple[int, ...]
    upfront: float
    weeks: int
    cases: tuple[DemandCase, ...]


def buy_now(
    usage: Usage,
    classes: Sequence[ReservedClass],
    on_demand: float,
    held: Sequence[int],
    risk: Risk,
) -> tuple[int, ...]:
    """Return how many machines of each class to buy at the end of ``usage``; ``classes`` heaviest
    first.
    """
    shares = breakevens(classes, on_demand)
    counts = [0] * len(classes)
    for mean in means(usage[-TRAILING:])[sum(held) :]:
        fitting = [
            kind
            for kind in range(len(classes))
            if mean >= shares[kind] * WEEK
            and held[kind] + counts[kind] < risk.at_most.get(kind, held[kind] + counts[kind] + 1)
        ]
        if risk.prefer_short:
            shortest = min((classes[kind].term for kind in fitting), default=0)
            fitting = [kind for kind in fitting if classes[kind].term == shortest]
        kind = cheapest_class(fitting, mean, classes)
        if kind is None:
            break  # means descend with the ranks, and bounds only tighten
        counts[kind] += 1
    return tuple(counts)


def plan_with(
    usage: Usage,
    classes: Sequence[ReservedClass],
    on_demand: float,
    held: Sequence[int],
    risk: Risk,
    blocks: int = 0,
) -> HeldPlan:
    """Return what to buy now, and what it costs if the demand grows or shrinks.

    ``blocks``: machines of capacity blocks. They are paid in any case, so they serve the lowest
    ranks, and neither these nor the price of the blocks count.
    """
    weeks = usage[-TRAILING:]
    buy = buy_now(above_blocks(weeks, blocks), classes, on_demand, held, risk)
    owned = [have + more for have, more in zip(held, buy, strict=True)]

    def cost(rows: Usage, machines: Sequence[int]) -> float:
        return sum(week_cost(row, machines, classes, on_demand) for row in rows) / len(rows)

    cases = []
    for share in DEMANDS:
        rows = above_blocks(weeks if share == 1 else shrunk(weeks, share), blocks)
        case = DemandCase(
            share=share,
            buy=buy_now(rows, classes, on_demand, held, risk),
            on_demand=cost(rows, [0] * len(classes)),
            held=cost(rows, held),
            bought=cost(rows, owned),
        )
        cases.append(case)
    upfront = sum(count * kind.upfront for count, kind in zip(buy, classes, strict=True))
    return HeldPlan(
        held=tuple(held), buy=buy, upfront=upfront, weeks=len(weeks), cases=tuple(cases)
    )


def above_blocks(rows: Usage, blocks: int) -> Usage:
    """Return the use of the ranks that blocks do not serve."""
    return [row[blocks:] for row in rows] if blocks else rows
