"""How many machines the bounds of purchases leave to a growth policy: limits, prices, the stock of
the clouds, and cool-downs. Pure.

A growth policy starts nodes, and each purchase meets these bounds only afterwards. A multi-node job
that lacks one machine then would leave all its other machines idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from msgspec import Struct

from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.cluster import Limits, Market, NodeRequest, Offer
from slurm_elastic.model.placement import Ranked
from slurm_elastic.policies.growth.scaling import SharedRoom
from slurm_elastic.policies.launch.ranking import DEFAULT_KEYS, Scope, serving, shortfall


class PurchaseRoom(Struct, frozen=True, kw_only=True):
    """The machines of one pool that may be bought now. ``unlaunched``: how many of them nodes get
    that boot without a machine so far. ``bound``: why there are not more.

    ``left``: by bound, the rest of it. ``costs``: by bound, the part that a machine takes on
    average. So no pool alone gets fewer machines by these than by ``machines``.
    """

    machines: int
    unlaunched: int = 0
    bound: AnyCause | None = None
    left: Mapping[str, float] = {}
    costs: Mapping[str, float] = {}

    @property
    def room(self) -> int:
        """How many machines may be bought for further nodes."""
        return max(self.machines - self.unlaunched, 0)


def purchase_room(
    request: NodeRequest,
    offers: Sequence[Offer],
    scope: Scope,
    now: float,
    keys: Sequence[str] = DEFAULT_KEYS,
    *,
    unlaunched: int = 0,
) -> PurchaseRoom:
    """Return the machines that may be bought for the nodes of ``request``. ``unlaunched``: so many
    of these nodes boot. ``now`` (Unix s).
    """
    launches = serving(request, offers, scope, now, keys)
    machines = sum(launch.room for launch in launches)
    lacks = machines < len(request.nodes)
    left, costs = _bounds(request.pool.cloud, launches, scope)
    return PurchaseRoom(
        machines=machines,
        unlaunched=unlaunched,
        bound=shortfall(request, offers, scope, now, keys) if lacks else None,
        left=left,
        costs={key: cost / machines for key, cost in costs.items()},
    )


def shared_rooms(rooms: Mapping[str, PurchaseRoom]) -> tuple[SharedRoom, ...]:
    """Return the bounds that several of these pools share. ``rooms``: by pool."""
    pools_of: dict[str, list[str]] = {}
    for pool, room in rooms.items():
        for key in room.costs:
            pools_of.setdefault(key, []).append(pool)
    return tuple(
        SharedRoom(
            left=min(rooms[pool].left[key] for pool in pools)
            - sum(rooms[pool].costs[key] * rooms[pool].unlaunched for pool in pools),
            costs={pool: rooms[pool].costs[key] for pool in pools},
        )
        for key, pools in pools_of.items()
        if len(pools) > 1
    )


def _bounds(
    cloud: str, launches: Iterable[Ranked], scope: Scope
) -> tuple[dict[str, float], dict[str, float]]:
    """Return by bound what is left, and how much of it all these launches take."""
    left: dict[str, float] = {}
    costs: dict[str, float] = {}
    scopes = (("", scope.limits), (f"cloud:{cloud}", scope.cloud_limits.get(cloud, Limits())))
    for launch in launches:
        offer, count = launch.offer, launch.room
        rows = [row for name, limits in scopes for row in _limits(name, limits, offer, scope)]
        if offer.free is not None:
            rows.append((f"stock of {offer.key}", float(offer.free), 1.0))
        for key, rest, cost in rows:
            left[key] = min(rest, left.get(key, inf))
            costs[key] = costs.get(key, 0.0) + count * cost
    return left, {key: cost for key, cost in costs.items() if cost > 0}


def _limits(
    name: str, limits: Limits, offer: Offer, scope: Scope
) -> Iterable[tuple[str, float, float]]:
    """Yield for each limit its key, what is left, and what a machine of the offer takes."""
    used, market = scope.usage.nodes, offer.market
    if limits.nodes is not None:
        yield f"nodes of {name}", limits.nodes - used.get(name, 0), 1.0
    by_market = {Market.SPOT: limits.spot, Market.ON_DEMAND: limits.on_demand}.get(market)
    if by_market is not None:
        key = f"{name}:{market}" if name else f"market:{market}"
        yield f"nodes of {key}", by_market - used.get(key, 0), 1.0
    if limits.dollars_per_hour is not None:
        spent = scope.usage.dollars_per_hour.get(name, 0.0)
        yield f"dollars of {name}", limits.dollars_per_hour - spent, offer.capped_price
