"""Which offer serves a request: filter what does not fit, order the rest. Pure.

The order is data: a list of names of ``KEYS``, compared as a tuple, smaller first. The default puts
on-premises before public, reserved before spot before on-demand (the precedence of Karpenter's
NodePools), then the cheaper, then what wastes less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import RoomShort
from slurm_elastic.model.causes.limits import DollarsLimited, FewFree, NodesLimited
from slurm_elastic.model.causes.misfits import (
    MarketNotUsed,
    Misfit,
    OfCloud,
    PriceMistyped,
    SpotNotCheaper,
    TooDear,
    TooSmall,
    TypeNotUsed,
    ZoneNotUsed,
)
from slurm_elastic.model.causes.refusals import NoOffers
from slurm_elastic.model.cluster import (
    Limits,
    Location,
    Market,
    NodeRequest,
    Offer,
    Placement,
    Pool,
    Ranked,
    Rejected,
    Usage,
)
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.model.protocols import RankingKey
from slurm_elastic.policies.launch.exclusions import Excluded

ROUNDED = 1.01
"""A price may be typed with so much less than its digits."""
NO_LIMITS = Limits()
MEBIBYTES = "MiB"
_MARKET_ORDER = {Market.RESERVED: 0, Market.SPOT: 1, Market.ON_DEMAND: 2}


class Scope(Struct, frozen=True, kw_only=True):
    """All that bounds a request beside its pool: limits by scope, usage now, exclusions.

    ``cloud_limits`` by cloud name; ``pool_nodes``: machines by pool, where that is not the pool's
    own ``max_nodes``. ``blocked`` says for a cloud why nothing may start there: a budget that is
    spent, a time of the day, an operator's pause (``controller/budget.py``).
    ``booting`` counts machines that have not registered (``pool:NAME``, ``cloud:NAME``).
    """

    limits: Limits = field(default_factory=Limits)
    cloud_limits: Mapping[str, Limits] = field(default_factory=dict)
    pool_nodes: Mapping[str, int | None] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    exclusions: tuple[Exclusion, ...] = ()
    blocked: Mapping[str, AnyCause] = field(default_factory=dict)
    booting: Mapping[str, int] = field(default_factory=dict)


def location(_request: NodeRequest, offer: Offer) -> float:
    """On-premises before public."""
    return 0.0 if offer.location is Location.ON_PREMISES else 1.0


def market(_request: NodeRequest, offer: Offer) -> float:
    """Reserved, then spot, then on-demand, then spot that costs no less than on-demand."""
    if offer.market is Market.SPOT and not _spot_is_cheaper(offer):
        return float(_MARKET_ORDER[Market.ON_DEMAND]) + 0.5
    return float(_MARKET_ORDER[offer.market])


def price(_request: NodeRequest, offer: Offer) -> float:
    """The cheaper machine first (dollars per machine-hour)."""
    return offer.price


def risk(request: NodeRequest, offer: Offer) -> float:
    """Dollars for an hour of work that is kept: the price, and what is paid for work that a spot
    interruption takes.

    With ``rate`` interruptions an hour, each of which loses ``loss`` hours, an hour of kept work
    takes ``1 + rate * loss`` hours of machine, to first order in ``rate * loss`` (as in J. T. Daly,
    FGCS 22 (2006), eq. 9, where ``loss`` is half an interval and the restart). The idea of EC2's
    price-capacity-optimized, and of SpotOn (SoCC 2015): the market with the least expected cost.
    """
    if offer.market is not Market.SPOT:
        return offer.price
    lost = offer.interruption_rate * request.pool.interruption_loss / 3600
    return offer.price * (1 + lost)


def waste(request: NodeRequest, offer: Offer) -> float:
    """The share of the machine the pool's nodes cannot use: the greater of cpus and memory."""
    pool = request.pool
    return max(1 - pool.cpus / offer.cpus, 1 - pool.real_memory / offer.memory)


KEYS: Mapping[str, RankingKey] = {
    "location": location,
    "market": market,
    "price": price,
    "risk": risk,
    "waste": waste,
}
DEFAULT_KEYS = ("location", "market", "price", "waste")


def rank(
    request: NodeRequest,
    offers: Iterable[Offer],
    scope: Scope,
    now: float,
    keys: Sequence[str] = DEFAULT_KEYS,
) -> Placement:
    """Offers that can serve ``request`` now, best first, with their room; the others with why."""
    ranked: list[Ranked] = []
    rejected: list[Rejected] = []
    offers = tuple(offers)
    excluded = Excluded(request.pool, scope.exclusions, now, request.jobs)
    resting = excluded.among(offers)
    for offer in offers:
        why = _rejection(request.pool, offer, scope, excluded) or resting.get(offer.key)
        room, bound = (0, why) if why is not None else _room(request, offer, scope, excluded)
        if room < 1:
            rejected.append(Rejected(offer=offer, cause=bound or NoOffers()))
        else:
            ranked.append(Ranked(offer=offer, room=room, bound=bound))
    order = [KEYS[name] for name in keys]
    # Of equal ones by their key, so that the order in which clouds answer has no say.
    ranked.sort(key=lambda r: (*(key(request, r.offer) for key in order), r.offer.key))
    rejected.sort(key=lambda r: r.offer.key)
    return Placement(request=request, ranked=tuple(ranked), rejected=tuple(rejected))


def serving(
    request: NodeRequest,
    offers: Iterable[Offer],
    scope: Scope,
    now: float,
    keys: Sequence[str] = DEFAULT_KEYS,
    *,
    first: Placement | None = None,
) -> tuple[Ranked, ...]:
    """The launches that would serve ``request``, best first, each within what the earlier ones
    leave of the bounds; their rooms together are how many nodes can be had. ``first``: the ranking
    of all of it, where that is there already.
    """
    left, nodes = list(offers), request.nodes
    chosen: list[Ranked] = []
    while nodes:
        placement = first or rank(replace(request, nodes=nodes), left, scope, now, keys)
        ranked, first = placement.ranked, None
        if not ranked:
            break
        best = ranked[0]
        chosen.append(best)
        nodes = nodes[best.room :]
        if not nodes:
            break
        left.remove(best.offer)
        booting = scope.booting.get(f"pool:{request.pool.name}", 0) + best.room
        scope = replace(
            scope,
            usage=used_by(scope.usage, request.pool, best.offer, best.room),
            booting={**scope.booting, f"pool:{request.pool.name}": booting},
        )
    return tuple(chosen)


def ceiling(
    request: NodeRequest, offers: Iterable[Offer], scope: Scope
) -> tuple[int, AnyCause | None]:
    """How many nodes of ``request`` could ever be had by these offers under the limits of
    ``scope``, and the bound that says so: with nothing in use, nothing refused, all stock free,
    spot at no price, and typed prices true. A bound that comes and goes says nothing about never.
    """
    bounds: list[AnyCause | None] = []
    misfits: list[AnyCause | None] = []
    nodes, usage, nothing = request.nodes, Usage(), Excluded(request.pool, (), 0.0)
    # Those that may cost least are bought first, as the site's order may pass over any other.
    for offer in sorted(map(_at_best, offers), key=lambda o: (o.worst_price, o.key)):
        calm = Scope(limits=scope.limits, cloud_limits=scope.cloud_limits, usage=usage)
        why = _rejection(request.pool, offer, calm, nothing)
        if why is not None:
            misfits.append(why)
            continue
        room, bound = _room(replace(request, nodes=nodes), offer, calm, nothing)
        bounds.append(bound)
        usage = used_by(usage, request.pool, offer, room)
        nodes = nodes[room:]
    return len(request.nodes) - len(nodes), next(iter([*bounds, *misfits]), None)


def _at_best(offer: Offer) -> Offer:
    """The offer when all that comes and goes is well with it."""
    price = 0.0 if offer.market is Market.SPOT else offer.price
    return replace(offer, free=None, price=price, reference_price=None)


def unsold(
    pool: Pool, offers: Iterable[Offer], types: Iterable[str]
) -> tuple[tuple[str, Market], ...]:
    """Types and markets that the pool may use, of the cloud's ``types``, and that have no offer in
    any zone. A cloud without types sells machines as the pool wants them, which have any name.
    """
    sold = {(offer.instance_type, offer.market) for offer in offers}
    wanted = ((name, of_market) for name in types for of_market in pool.markets)
    return tuple(one for one in wanted if one not in sold)


def shortfall(
    request: NodeRequest,
    offers: Sequence[Offer],
    scope: Scope,
    now: float,
    keys: Sequence[str] = DEFAULT_KEYS,
) -> AnyCause | None:
    """Why these offers cannot serve all of ``request`` now; None if they can."""
    room = sum(launch.room for launch in serving(request, offers, scope, now, keys))
    if room >= len(request.nodes):
        return None
    placement = rank(request, offers, scope, now, keys)
    excluded = Excluded(request.pool, scope.exclusions, now)
    bounds = [_room(request, ranked.offer, scope, excluded)[1] for ranked in placement.ranked]
    bounding = [bound for bound in bounds if bound is not None]
    causes: list[AnyCause] = [*bounding, *(r.cause for r in placement.rejected), NoOffers()]
    return RoomShort(room=room, wanted=len(request.nodes), cause=causes[0]) if room else causes[0]


def used_by(usage: Usage, pool: Pool, offer: Offer, count: int) -> Usage:
    """``usage`` with ``count`` machines of ``offer`` more."""
    cloud = f"cloud:{offer.cloud}"
    scopes = ("", cloud, f"pool:{pool.name}", f"market:{offer.market}", f"{cloud}:{offer.market}")
    cost = count * offer.worst_price
    nodes = {scope: usage.nodes.get(scope, 0) + count for scope in scopes}
    dollars = {scope: usage.dollars_per_hour.get(scope, 0.0) + cost for scope in scopes[:2]}
    return Usage(
        nodes={**usage.nodes, **nodes}, dollars_per_hour={**usage.dollars_per_hour, **dollars}
    )


def _rejection(pool: Pool, offer: Offer, scope: Scope, excluded: Excluded) -> AnyCause | None:
    """Why ``offer`` cannot serve ``pool`` now whatever the limits and cool-downs; None where it
    can. ``ceiling`` takes this for good, so it asks without what passes by itself.
    """
    if offer.cloud in scope.blocked:
        return scope.blocked[offer.cloud]
    return excluded.pause or _misfit(pool, offer) or mispriced(offer) or _too_dear(pool, offer)


def mispriced(offer: Offer) -> PriceMistyped | None:
    """Why the on-demand price of the configuration cannot be true, in whatever market the machine
    is bought: what limits count with it is then too little. None where nothing speaks against it.
    """
    typed, told = offer.on_demand_price, offer.reference_price
    if typed is None or told is None or told <= typed * ROUNDED:
        return None
    return PriceMistyped(
        cloud=offer.cloud,
        instance_type=offer.instance_type,
        typed=typed,
        asked=told,
        reference=offer.reference,
    )


def _misfit(pool: Pool, offer: Offer) -> Misfit | None:
    if offer.cloud != pool.cloud:
        return OfCloud(cloud=offer.cloud, pool_cloud=pool.cloud)
    if offer.market not in pool.markets:
        return MarketNotUsed(market=offer.market)
    if pool.instance_types and offer.instance_type not in pool.instance_types:
        return TypeNotUsed(instance_type=offer.instance_type)
    if pool.zones and offer.zone not in pool.zones:
        return ZoneNotUsed(zone=offer.zone)
    if offer.cpus < pool.cpus:
        return TooSmall(resource="cpus", has=offer.cpus, needed=pool.cpus)
    if offer.memory < pool.real_memory:
        return TooSmall(resource=MEBIBYTES, has=offer.memory, needed=pool.real_memory)
    for name, count in pool.gres.items():
        if offer.gres.get(name, 0) < count:
            return TooSmall(resource=name, has=offer.gres.get(name, 0), needed=count)
    return None


def _too_dear(pool: Pool, offer: Offer) -> Misfit | None:
    if pool.max_price is not None and offer.price > pool.max_price:
        return TooDear(price=offer.price, maximum=pool.max_price)
    if offer.market is Market.SPOT and not _spot_is_cheaper(offer):
        return SpotNotCheaper(price=offer.price, on_demand=offer.on_demand_price or 0.0)
    return None


def _spot_is_cheaper(offer: Offer) -> bool:
    return offer.on_demand_price is None or offer.price < offer.on_demand_price


def _room(
    request: NodeRequest, offer: Offer, scope: Scope, excluded: Excluded
) -> tuple[int, AnyCause | None]:
    """How many nodes the tightest bound leaves, and that bound; None if it is the request's own."""
    bounds: list[tuple[int, AnyCause | None]] = [(len(request.nodes), None)]
    if offer.free is not None:
        few = FewFree(cloud=offer.cloud, free=offer.free, said=offer.free_reason)
        bounds.append((offer.free, few))
    pool = request.pool
    if excluded.trial:
        bounds.append((max(1 - scope.booting.get(f"pool:{pool.name}", 0), 0), excluded.trial))
    used = scope.usage.nodes
    most = scope.pool_nodes.get(pool.name, pool.max_nodes)
    if most is not None:
        key = f"pool:{pool.name}"
        bounds.append(_left(key, most, used.get(key, 0)))
    if scope.limits != NO_LIMITS:
        bounds += _limit_bounds(scope.limits, "", offer, scope.usage)
    cloud_limits = scope.cloud_limits.get(offer.cloud, NO_LIMITS)
    if cloud_limits != NO_LIMITS:
        bounds += _limit_bounds(cloud_limits, f"cloud:{offer.cloud}", offer, scope.usage)
    return min(bounds, key=lambda bound: bound[0])


def _limit_bounds(
    limits: Limits, scope: str, offer: Offer, usage: Usage
) -> list[tuple[int, AnyCause | None]]:
    bounds: list[tuple[int, AnyCause | None]] = []
    if limits.nodes is not None:
        bounds.append(_left(scope, limits.nodes, usage.nodes.get(scope, 0)))
    by_market = {Market.SPOT: limits.spot, Market.ON_DEMAND: limits.on_demand}.get(offer.market)
    if by_market is not None:
        key = f"{scope}:{offer.market}" if scope else f"market:{offer.market}"
        bounds.append(_left(scope, by_market, usage.nodes.get(key, 0), offer.market))
    worst = offer.worst_price
    if limits.dollars_per_hour is not None and worst > 0:
        spent = usage.dollars_per_hour.get(scope, 0.0)
        # A billionth of slack: ten machines of $0.10 fit a cap of $1.00.
        count = math.floor((limits.dollars_per_hour - spent) / worst + 1e-9)
        limit = DollarsLimited(scope=scope, limit=limits.dollars_per_hour, spent=spent, price=worst)
        bounds.append((max(count, 0), limit))
    return bounds


def _left(scope: str, limit: int, used: int, market: str = "") -> tuple[int, AnyCause | None]:
    bound = NodesLimited(scope=scope, limit=limit, used=used, market=market)
    return max(limit - used, 0), bound
