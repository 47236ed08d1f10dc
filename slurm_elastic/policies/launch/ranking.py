"""Ranks the offers that serve a request: reject unfit offers, order the others. Pure.

The order is data: a list of names of ``KEYS``, compared as a tuple, smaller first. The default
prefers on-premises to public, reserved to spot to on-demand (the precedence of Karpenter's
NodePools), then the cheaper machine, then the machine that wastes less.
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
from slurm_elastic.model.cluster import Limits, Location, Market, NodeRequest, Offer, Pool, Usage
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.model.placement import Placement, Ranked, Rejected
from slurm_elastic.policies.launch import reservations
from slurm_elastic.policies.launch.exclusions import Excluded
from slurm_elastic.policies.launch.ranking_keys import KeyTable

ROUNDED = 1.01
"""A reference price may exceed the typed price by this factor, because people round prices."""
NO_LIMITS = Limits()
MEBIBYTES = "MiB"
MARKET_ORDER = {Market.RESERVED: 0, Market.SPOT: 1, Market.ON_DEMAND: 2}
SPOT_NOT_CHEAPER = MARKET_ORDER[Market.ON_DEMAND] + 0.5
"""The place of spot offers that save nothing: the cloud may still take the machine."""


class Scope(Struct, frozen=True, kw_only=True):
    """All bounds of a request except its pool: limits by scope, usage now, exclusions.

    ``cloud_limits``: by cloud name. ``pool_nodes``: maximum of machines by pool, if it differs from
    the pool's ``max_nodes``. ``blocked``: by cloud, why nothing may start there: a budget is spent,
    the time of day, an operator's pause (``controller/launching/budget.py``). ``booting``: counts
    of machines that have not registered (``pool:NAME``, ``cloud:NAME``). ``boot_s``: the longest
    time (s) in which a machine registers.
    ``packed_clouds``: the clouds whose hosts are filled one by one.
    """

    limits: Limits = field(default_factory=Limits)
    cloud_limits: Mapping[str, Limits] = field(default_factory=dict)
    pool_nodes: Mapping[str, int | None] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    exclusions: tuple[Exclusion, ...] = ()
    blocked: Mapping[str, AnyCause] = field(default_factory=dict)
    booting: Mapping[str, int] = field(default_factory=dict)
    boot_s: float = 0.0
    packed_clouds: frozenset[str] = frozenset()


def location(_request: NodeRequest, offer: Offer) -> float:
    """Rank on-premises offers before public ones."""
    return 0.0 if offer.location is Location.ON_PREMISES else 1.0


def market(_request: NodeRequest, offer: Offer) -> float:
    """Rank reserved offers first, then spot, then on-demand, then spot that costs no less than
    on-demand.
    """
    if offer.market is Market.SPOT and not _spot_is_cheaper(offer):
        return SPOT_NOT_CHEAPER
    return float(MARKET_ORDER[offer.market])


def price(_request: NodeRequest, offer: Offer) -> float:
    """Rank the cheaper machine first (dollars per machine-hour)."""
    return offer.marginal_price


def risk(request: NodeRequest, offer: Offer) -> float:
    """Rank by the dollars for one hour of work that is not lost: the price, plus the price of work
    that spot interruptions destroy.

    With ``rate`` interruptions per hour, each of which loses ``loss`` hours, one hour of kept work
    takes ``1 + rate * loss`` machine-hours, to first order in ``rate * loss`` (as in J. T. Daly,
    FGCS 22 (2006), eq. 9, where ``loss`` is half an interval and the restart). The idea comes from
    EC2's price-capacity-optimized and from SpotOn (SoCC 2015): the market with the least expected
    cost.
    """
    return offer.marginal_price * (1 + lost_share(request, offer))


def lost_share(request: NodeRequest, offer: Offer) -> float:
    """The share of the work that interruptions of a spot machine are expected to destroy."""
    is_spot = offer.market is Market.SPOT
    return offer.interruption_rate * request.pool.interruption_loss / 3600 if is_spot else 0.0


def waste(request: NodeRequest, offer: Offer) -> float:
    """The share of the machine that the pool's nodes cannot use: the larger of CPUs and memory."""
    pool = request.pool
    return max(1 - pool.cpus / offer.cpus, 1 - pool.real_memory / offer.memory)


KEYS = KeyTable(
    {"location": location, "market": market, "price": price, "risk": risk, "waste": waste}
)
"""All keys, also keys of other packages (``config/ranking_kinds.py``)."""
DEFAULT_KEYS = ("location", "market", "price", "waste")


def rank(
    request: NodeRequest,
    offers: Iterable[Offer],
    scope: Scope,
    now: float,
    keys: Sequence[str] = DEFAULT_KEYS,
) -> Placement:
    """Return the offers that can serve ``request`` now, best first, each with its room, and the
    rejected offers, each with its cause. ``now`` (Unix s).
    """
    ranked: list[Ranked] = []
    rejected: list[Rejected] = []
    offers = tuple(offers)
    excluded = Excluded(
        request.pool, scope.exclusions, now, request.jobs, refused_spot=request.no_spot
    )
    resting = excluded.among(offers)
    for offer in offers:
        cause = (
            _rejection(request.pool, offer, scope, excluded)
            or resting.get(offer.key)
            or reservations.misfit(offer, request.needs_s, scope.boot_s, now)
        )
        room, bound = (0, cause) if cause is not None else _room(request, offer, scope, excluded)
        if room < 1:
            rejected.append(Rejected(offer=offer, cause=bound or NoOffers()))
        else:
            ranked.append(Ranked(offer=offer, room=room, bound=bound))
    order = [KEYS[name] for name in keys]
    # The key decides between equal offers, so that the order in which clouds answer does not
    # matter.
    ranked.sort(
        key=lambda r: (
            *(key(request, r.offer) for key in order),
            packing(request, r.offer, scope),
            r.offer.key,
        )
    )
    rejected.sort(key=lambda r: r.offer.key)
    return Placement(request=request, ranked=tuple(ranked), rejected=tuple(rejected))


def packing(request: NodeRequest, offer: Offer, scope: Scope) -> tuple[int, int]:
    """Return a key that fills the hosts of ``packed_clouds`` one after the other, so that others
    get empty: of the hosts with room for all nodes the fullest one comes first, then the emptiest
    other one. Offers of other clouds get the same key.
    """
    if offer.cloud not in scope.packed_clouds or offer.free is None:
        return (0, 0)
    return (0, offer.free) if offer.free >= len(request.nodes) else (1, -offer.free)


def serving(
    request: NodeRequest,
    offers: Iterable[Offer],
    scope: Scope,
    now: float,
    keys: Sequence[str] = DEFAULT_KEYS,
    *,
    full_ranking: Placement | None = None,
) -> tuple[Ranked, ...]:
    """Return the launches that would serve ``request``, best first.

    Each launch stays within what the earlier ones leave of the bounds, so the sum of their rooms is
    the number of available nodes. ``full_ranking``: the ranking of the whole request, if the caller
    has it already.
    """
    remaining_offers, nodes = list(offers), request.nodes
    chosen: list[Ranked] = []
    while nodes:
        placement = full_ranking or rank(
            replace(request, nodes=nodes), remaining_offers, scope, now, keys
        )
        ranked, full_ranking = placement.ranked, None
        if not ranked:
            break
        best = ranked[0]
        chosen.append(best)
        nodes = nodes[best.room :]
        if not nodes:
            break
        remaining_offers.remove(best.offer)
        scope = counted(scope, request.pool, best.offer, best.room)
    return tuple(chosen)


def counted(scope: Scope, pool: Pool, offer: Offer, count: int) -> Scope:
    """Return ``scope`` with ``count`` more booting machines of ``offer``. A decided launch counts
    for the limits as if its machines existed.
    """
    booting = scope.booting.get(f"pool:{pool.name}", 0) + count
    return replace(
        scope,
        usage=used_by(scope.usage, pool, offer, count),
        booting={**scope.booting, f"pool:{pool.name}": booting},
    )


def ceiling(
    request: NodeRequest, offers: Iterable[Offer], scope: Scope
) -> tuple[int, AnyCause | None]:
    """Return how many nodes of ``request`` these offers could ever provide under the limits of
    ``scope``, and the bound that decides.

    It assumes that nothing is in use, nothing was refused, all stock is free, spot costs nothing,
    and typed prices are true, because a bound that passes cannot prove that a job never fits.
    """
    bounds: list[AnyCause | None] = []
    misfits: list[AnyCause | None] = []
    nodes, usage, no_exclusions = request.nodes, Usage(), Excluded(request.pool, (), 0.0)
    # Count the cheapest offers first, because the site's own order might skip any other.
    for offer in sorted(map(_at_best, offers), key=lambda o: (o.worst_price, o.key)):
        calm = Scope(
            limits=scope.limits, cloud_limits=scope.cloud_limits, pool_nodes=scope.pool_nodes,
            usage=usage,
        )  # fmt: skip
        cause = _rejection(request.pool, offer, calm, no_exclusions)
        if cause is not None:
            misfits.append(cause)
            continue
        room, bound = _room(replace(request, nodes=nodes), offer, calm, no_exclusions)
        bounds.append(bound)
        usage = used_by(usage, request.pool, offer, room)
        nodes = nodes[room:]
    return len(request.nodes) - len(nodes), next(iter([*bounds, *misfits]), None)


def _at_best(offer: Offer) -> Offer:
    """Return the offer under the best conditions that may come."""
    price = 0.0 if offer.market is Market.SPOT else offer.price
    return replace(offer, free=None, price=price, reference_price=None)


def unsold(
    pool: Pool, offers: Iterable[Offer], types: Iterable[str]
) -> tuple[tuple[str, Market], ...]:
    """Return the types and markets that the pool may use, among the cloud's ``types``, without an
    offer in any zone. A cloud without types sells any machine, so nothing is unsold there.
    """
    sold = {(offer.instance_type, offer.market) for offer in offers}
    wished = ((name, of_market) for name in types for of_market in pool.markets)
    return tuple(wish for wish in wished if wish not in sold)


def shortfall(
    request: NodeRequest,
    offers: Sequence[Offer],
    scope: Scope,
    now: float,
    keys: Sequence[str] = DEFAULT_KEYS,
) -> AnyCause | None:
    """Return why these offers cannot serve all of ``request`` now; None if they can."""
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
    """Return ``usage`` with ``count`` more machines of ``offer``."""
    cloud = f"cloud:{offer.cloud}"
    # Not today's price: a spot price may rise while the machine runs (docs/design/10).
    scopes = ["", cloud, f"pool:{pool.name}", f"market:{offer.market}", f"{cloud}:{offer.market}"]
    costs = dict.fromkeys(scopes[:2], offer.capped_price)
    if offer.held is not None:
        scopes.append(offer.held.key)
        costs[offer.held.key] = offer.covered_price
    nodes = {scope: usage.nodes.get(scope, 0) + count for scope in scopes}
    spent = usage.dollars_per_hour
    dollars = {scope: spent.get(scope, 0.0) + count * cost for scope, cost in costs.items()}
    return Usage(
        nodes={**usage.nodes, **nodes}, dollars_per_hour={**usage.dollars_per_hour, **dollars}
    )


def _rejection(pool: Pool, offer: Offer, scope: Scope, excluded: Excluded) -> AnyCause | None:
    """Return why ``offer`` cannot serve ``pool`` now, whatever the limits and cool-downs; None if
    it can. ``ceiling`` treats the answer as permanent, so it calls this without conditions that
    pass.
    """
    # The order decides which cause people read: a stop of the site before a fault of the offer.
    if offer.cloud in scope.blocked:
        return scope.blocked[offer.cloud]
    return excluded.pause or _misfit(pool, offer) or mispriced(offer) or _too_dear(pool, offer)


def mispriced(offer: Offer) -> PriceMistyped | None:
    """Return why the configured on-demand price of the machine cannot be true; None if nothing
    contradicts it.

    It matters in any market, because limits would count too little with this price.
    """
    typed, reference = offer.on_demand_price, offer.reference_price
    if typed is None or reference is None or reference <= typed * ROUNDED:
        return None
    return PriceMistyped(
        cloud=offer.cloud,
        instance_type=offer.instance_type,
        typed=typed,
        asked=reference,
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
    highest = pool.highest_price(offer.market, offer.instance_type, offer.on_demand_price)
    if highest is not None and offer.marginal_price > highest:
        return TooDear(price=offer.marginal_price, maximum=highest)
    if offer.market is Market.SPOT and not _spot_is_cheaper(offer):
        return SpotNotCheaper(price=offer.price, on_demand=offer.on_demand_price or 0.0)
    return None


def _spot_is_cheaper(offer: Offer) -> bool:
    return offer.on_demand_price is None or offer.price < offer.on_demand_price


def _room(
    request: NodeRequest, offer: Offer, scope: Scope, excluded: Excluded
) -> tuple[int, AnyCause | None]:
    """Return how many nodes the tightest bound allows, and that bound; None for the bound if it is
    the request itself.
    """
    bounds: list[tuple[int, AnyCause | None]] = [(len(request.nodes), None)]
    if offer.free is not None:
        few_free = FewFree(cloud=offer.cloud, free=offer.free, cloud_message=offer.free_reason)
        bounds.append((offer.free, few_free))
    if (reserved_room := reservations.room(offer, scope.usage)) is not None:
        bounds.append(reserved_room)
    pool = request.pool
    if excluded.trial:
        # A paused pool tries one machine at a time, until it registers.
        bounds.append((max(1 - scope.booting.get(f"pool:{pool.name}", 0), 0), excluded.trial))
    used = scope.usage.nodes
    # An operator's order may have changed the configured maximum.
    max_nodes = scope.pool_nodes.get(pool.name, pool.max_nodes)
    if max_nodes is not None:
        key = f"pool:{pool.name}"
        bounds.append(_left(key, max_nodes, used.get(key, 0)))
    if scope.limits != NO_LIMITS:
        bounds += _limit_bounds(scope.limits, "", offer, scope.usage)
    cloud_limits = scope.cloud_limits.get(offer.cloud, NO_LIMITS)
    if cloud_limits != NO_LIMITS:
        bounds += _limit_bounds(cloud_limits, f"cloud:{offer.cloud}", offer, scope.usage)
    # Of equal bounds the first one counts: if all nodes fit, the request itself is the bound.
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
    worst = offer.capped_price
    # Machines without a price, such as those on the premises, fit under any cap.
    if limits.dollars_per_hour is not None and worst > 0:
        spent = usage.dollars_per_hour.get(scope, 0.0)
        # A billionth of slack against rounding: ten machines of $0.10 fit a cap of $1.00.
        count = math.floor((limits.dollars_per_hour - spent) / worst + 1e-9)
        limit = DollarsLimited(scope=scope, limit=limits.dollars_per_hour, spent=spent, price=worst)
        bounds.append((max(count, 0), limit))
    return bounds


def _left(scope: str, limit: int, used: int, market: str = "") -> tuple[int, AnyCause | None]:
    bound = NodesLimited(scope=scope, limit=limit, used=used, market=market)
    return max(limit - used, 0), bound
