"""How much reserved machines would have saved over a history, and their risk. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from slurm_elastic.policies.planning.held import HeldPlan
from slurm_elastic.policies.planning.portfolio import (
    Bill,
    Bought,
    ReservedClass,
    Usage,
    active,
    bill,
    bound,
    breakevens,
    offline,
    online,
    shrunk,
    week_cost,
)
from slurm_elastic.policies.planning.reserve import by_rank, trailing
from slurm_elastic.simulate.studies.certainty import SAVING_DEVIATIONS, Interval, expected

DEMAND_SHARES = (0.75, 0.5, 0.25)
STEPS = 40


class PurchaseChoice(Struct, frozen=True, kw_only=True):
    """A strategy of buying. ``saving``: as a share of the cost on demand; ``regret``: the relative
    excess of its cost over the lower bound.
    """

    name: str
    bought: tuple[Bought, ...]
    bill: Bill
    saving: float
    regret: float


class Fall(Struct, frozen=True, kw_only=True):
    """The cost of the purchases of ``trailing`` if only the share ``left`` of the demand remained,
    and the cost of that demand ``on_demand``, in dollars.
    """

    left: float
    cost: float
    on_demand: float


class PurchasePlan(Struct, frozen=True, kw_only=True):
    """The result of ``plan reserve``. ``now``: the purchases to make at the end of the history.

    ``breakeven_left``: if less than this share of the demand remains, the purchases cost more than
    machines on demand (0: never; None: nothing was bought). ``outlook``: the share of the cost on
    demand that the held reservations save, estimated from the history's weeks (None: none held).
    ``held``: the answer for a real inventory, if the user has given one.
    """

    weeks: int
    classes: tuple[ReservedClass, ...]
    shares: tuple[float | None, ...]
    on_demand: float
    bound: float
    choices: tuple[PurchaseChoice, ...]
    now: tuple[Bought, ...]
    falls: tuple[Fall, ...]
    breakeven_left: float | None
    outlook: Interval | None = None
    held: HeldPlan | None = None


def plan_of(usage: Usage, classes: tuple[ReservedClass, ...], on_demand: float) -> PurchasePlan:
    """Return all results of ``plan reserve``. ``classes`` are ordered from the heaviest, which pays
    off only for the longest use. ``on_demand``: dollars per hour of a machine on demand.
    """
    bare = bill(usage, (), classes, on_demand).cost
    least = bound(usage, classes, on_demand)

    def choice(name: str, bought: tuple[Bought, ...]) -> PurchaseChoice:
        bill_of_choice = bill(usage, bought, classes, on_demand)
        return PurchaseChoice(
            name=name,
            bought=bought,
            bill=bill_of_choice,
            saving=1 - bill_of_choice.cost / bare if bare else 0.0,
            regret=bill_of_choice.cost / least - 1 if least else 0.0,
        )

    def until_now(bought: tuple[Bought, ...]) -> tuple[Bought, ...]:
        return tuple(purchase for purchase in bought if purchase.week < len(usage))

    all_bought = trailing(usage, classes, on_demand)
    past = until_now(all_bought)
    shares = breakevens(classes, on_demand)
    held = active(len(usage), all_bought, classes)
    return PurchasePlan(
        weeks=len(usage),
        classes=classes,
        shares=tuple(share if share <= 1 else None for share in shares),
        on_demand=bare,
        bound=least,
        choices=(
            choice("on demand only", ()),
            choice("best of each rank, all known", by_rank(usage, classes, on_demand)[0]),
            choice("greedy, all known", offline(usage, classes, on_demand)),
            choice("week by week", past),
            choice("week by week by forecast", until_now(online(usage, classes, on_demand))),
        ),
        now=tuple(purchase for purchase in all_bought if purchase.week == len(usage)),
        falls=tuple(
            _fall(usage, demand_share, past, classes, on_demand) for demand_share in DEMAND_SHARES
        ),
        breakeven_left=_breakeven_left(usage, past, classes, on_demand) if past else None,
        outlook=outlook(usage, held, classes, on_demand) if any(held) else None,
    )


def outlook(
    usage: Usage, held: Sequence[int], classes: Sequence[ReservedClass], on_demand: float
) -> Interval:
    """Return the share of the cost on demand that ``held`` machines of each class would save in
    these weeks.
    """
    bare = [sum(row) * on_demand for row in usage]
    saved = [
        paid - week_cost(row, held, classes, on_demand)
        for row, paid in zip(usage, bare, strict=True)
    ]
    return expected(sum(saved) / sum(bare), saved, bare, SAVING_DEVIATIONS)


def _fall(
    usage: Usage,
    demand_share: float,
    bought: tuple[Bought, ...],
    classes: tuple[ReservedClass, ...],
    on_demand: float,
) -> Fall:
    less = shrunk(usage, demand_share)
    return Fall(
        left=demand_share,
        cost=bill(less, bought, classes, on_demand).cost,
        on_demand=bill(less, (), classes, on_demand).cost,
    )


def _breakeven_left(
    usage: Usage,
    bought: tuple[Bought, ...],
    classes: tuple[ReservedClass, ...],
    on_demand: float,
) -> float:
    """Return the largest share of the demand, in steps, at which the purchases do not pay off."""
    for step in range(STEPS, 0, -1):
        fall = _fall(usage, step / STEPS, bought, classes, on_demand)
        if fall.cost > fall.on_demand:
            return step / STEPS
    return 0.0
