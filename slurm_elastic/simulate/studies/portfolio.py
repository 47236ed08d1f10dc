"""How much reserved machines would have saved over a history, and their risk. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from slurm_elastic.policies.planning.held import HeldPlan, Risk, above_blocks, plan_with
from slurm_elastic.policies.planning.portfolio import (
    Bill,
    Bought,
    ReservedClass,
    Usage,
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
ANY_RISK = Risk()


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
    """The result of ``plan reserve``.

    ``missed``: by which share of the cost on demand the purchases of ``trailing`` cost more than
    the best ones, which are known only in hindsight. ``breakeven_left``: if less than this share of
    the demand remains, the purchases cost more than machines on demand (0: never; None: nothing was
    bought). ``held``: what to buy now besides the machines that the site holds. ``outlook``: the
    share of the cost on demand that these machines and the purchase save, estimated from the
    history's weeks (None: neither). The use that capacity blocks serve does not count.
    """

    weeks: int
    classes: tuple[ReservedClass, ...]
    shares: tuple[float | None, ...]
    on_demand: float
    bound: float
    choices: tuple[PurchaseChoice, ...]
    falls: tuple[Fall, ...]
    breakeven_left: float | None
    held: HeldPlan
    missed: float
    outlook: Interval | None = None


def plan_of(
    usage: Usage,
    classes: tuple[ReservedClass, ...],
    on_demand: float,
    held: Sequence[int] = (),
    risk: Risk = ANY_RISK,
    blocks: int = 0,
) -> PurchasePlan:
    """Return all results of ``plan reserve``. ``classes`` are ordered from the heaviest, which pays
    off only for the longest use. ``on_demand``: dollars per hour of a machine on demand. ``held``:
    the site's machines by class (empty: none). ``risk``, ``blocks``: see ``held.plan_with``.
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

    past = until_now(trailing(usage, classes, on_demand))
    shares = breakevens(classes, on_demand)
    advice = plan_with(usage, classes, on_demand, held or [0] * len(classes), risk, blocks)
    owned = [have + more for have, more in zip(advice.held, advice.buy, strict=True)]
    best = choice("best of each rank, all known", by_rank(usage, classes, on_demand)[0])
    weekly = choice("week by week", past)
    return PurchasePlan(
        weeks=len(usage),
        classes=classes,
        shares=tuple(share if share <= 1 else None for share in shares),
        on_demand=bare,
        bound=least,
        choices=(
            choice("on demand only", ()),
            best,
            choice("greedy, all known", offline(usage, classes, on_demand)),
            weekly,
            choice("week by week by forecast", until_now(online(usage, classes, on_demand))),
        ),
        falls=tuple(
            _fall(usage, demand_share, past, classes, on_demand) for demand_share in DEMAND_SHARES
        ),
        breakeven_left=_breakeven_left(usage, past, classes, on_demand) if past else None,
        held=advice,
        missed=max(best.saving - weekly.saving, 0.0),
        outlook=outlook(above_blocks(usage, blocks), owned, classes, on_demand),
    )


def outlook(
    usage: Usage, held: Sequence[int], classes: Sequence[ReservedClass], on_demand: float
) -> Interval | None:
    """Return the share of the cost on demand that ``held`` machines of each class would save in
    these weeks. None if there are none, or no use. ``usage``: what capacity blocks leave of the
    use (``held.above_blocks``).
    """
    bare = [sum(row) * on_demand for row in usage]
    if not any(held) or not any(bare):
        return None
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
