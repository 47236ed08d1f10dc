"""The order in which one job uses the pools of all clouds. Pure.

Slurm tries the partitions of a job in the order of its list, and each cloud has one partition. So
this order decides which cloud sells the job's machines. The keys are the site's (``ranking``), as
for the offers of one cloud; here the key ``price`` is the cost of the whole job.

The submit filter calculates the same in Lua (``slurm/hooks/job_order.lua``), from the numbers that
slurm-elasticd publishes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic.base.billing import HOUR_S, MINIMUM_S, paid_seconds
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.misfits import Misfit
from slurm_elastic.model.causes.refusals import NoOffers
from slurm_elastic.model.cluster import Location, Market, NodeRequest, Offer
from slurm_elastic.model.placement import Placement
from slurm_elastic.policies.launch.job_data import NO_DATA, JobData
from slurm_elastic.policies.launch.ranking import (
    KEYS,
    MARKET_ORDER,
    SPOT_NOT_CHEAPER,
    Scope,
    lost_share,
    rank,
    serving,
)
from slurm_elastic.policies.launch.reservations import SLACK_S

AVAILABLE = "available"
"""The key that puts pools whose cloud cannot sell now behind all others."""
MARKET, PRICE, RISK = "market", "price", "risk"
COSTS = (PRICE, RISK)
"""The keys that depend on the job. The numbers of all other keys are the pool's."""
DEFAULT_RUN_S = 86400.0
"""The assumed run time (s) of a job without a time limit."""


class PricedRoom(Struct, frozen=True, kw_only=True):
    """Up to ``room`` machines of one offer at ``price`` ($/h). ``lost_share``: the share of the
    work that interruptions are expected to destroy. ``max_run_s``: how long a job may run there,
    because the reservation ends.
    """

    room: int
    market: Market
    price: float
    lost_share: float = 0.0
    max_run_s: float = math.inf


class TrafficTerms(Struct, frozen=True, kw_only=True):
    """The prices of a cloud's traffic ($/GB) and its bandwidth (Mbit/s)."""

    price_in: float = 0.0
    price_out: float = 0.0
    bandwidth: float = math.inf

    def seconds(self, data: JobData) -> float:
        """Return how long the data moves; the job's machines are paid for that time."""
        return (data.gb_in + data.gb_out) * 8000 / self.bandwidth

    def dollars(self, data: JobData) -> float:
        """Return the dollars for the traffic."""
        return data.gb_in * self.price_in + data.gb_out * self.price_out


FREE_TRAFFIC = TrafficTerms()


class PoolTerms(Struct, frozen=True, kw_only=True):
    """The terms on which a pool would serve a job now.

    ``offers``: best first. ``on_demand``: the lowest on-demand price ($/h) of a public offer that
    can serve the pool, infinite if there is none. ``boot_s``: seconds of a boot, which are paid.
    ``lease_s``: how many seconds are billed at a time. ``minimum_s``: the least number of billed
    seconds of a machine that is billed by the second.
    ``keys``: the numbers of the ranking keys that do not depend on the job. ``unavailable``: why
    the cloud cannot sell now. ``traffic``: of jobs that say how much data they move.
    """

    pool: str
    cloud: str
    partition: str
    offers: tuple[PricedRoom, ...] = ()
    on_demand: float = math.inf
    boot_s: float = 0.0
    lease_s: float = 1.0
    minimum_s: float = MINIMUM_S
    keys: Mapping[str, float] = field(default_factory=dict)
    unavailable: AnyCause | None = None
    traffic: TrafficTerms = FREE_TRAFFIC

    def without_spot(self) -> PoolTerms:
        """Return the terms for a job that must stay off spot machines."""
        offers = tuple(offer for offer in self.offers if offer.market is not Market.SPOT)
        # Spot machines may suffice for the pool, so that no on-demand offer is among its offers.
        if self.on_demand < math.inf and Market.ON_DEMAND not in [o.market for o in offers]:
            offers += (PricedRoom(room=0, market=Market.ON_DEMAND, price=self.on_demand),)
        return replace(self, offers=offers)

    def billed_hours(self, seconds: float) -> float:
        """Return the paid hours of a machine that lasts so many seconds: whole leases."""
        return paid_seconds(seconds, self.lease_s, self.minimum_s) / HOUR_S


class JobShape(Struct, frozen=True, kw_only=True):
    """The facts about a job that decide its cost: for each pool that can hold it the number of
    machines that it takes there, how long it runs (seconds: its time limit), and the ``data`` that
    it moves.
    """

    machines: Mapping[str, int]
    seconds: float
    data: JobData = NO_DATA

    def offers_of(self, terms: PoolTerms) -> tuple[PricedRoom, ...]:
        """Return the pool's offers that last until the job's end, best first."""
        return tuple(offer for offer in terms.offers if self.seconds <= offer.max_run_s)


class RankedPool(Struct, frozen=True, kw_only=True):
    """A pool in the order of a job: its ``cost`` there ($) and the numbers that were compared."""

    terms: PoolTerms
    machines: int
    cost: float
    keys: tuple[float, ...]


def keys_of(ranking: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of the order: the site's, with ``available`` in its place.

    Whether a cloud can sell now counts before everything but a leading location. A busy on-premises
    cloud comes first all the same: a machine of its own may become free at any time.
    """
    lead = 1 if ranking[0] == "location" else 0
    return (*ranking[:lead], AVAILABLE, *ranking[lead:])


def terms_of(
    request: NodeRequest,
    partition: str,
    offers: Sequence[Offer],
    scope: Scope,
    now: float,
    ranking: Sequence[str],
    *,
    boot_s: float,
    lease_s: float = 1.0,
    minimum_s: float = MINIMUM_S,
    has_idle: bool = False,
    unavailable: AnyCause | None = None,
    traffic: TrafficTerms = FREE_TRAFFIC,
) -> PoolTerms:
    """Return the terms of the request's pool.

    ``request.nodes``: the nodes that could get a machine, or all nodes of the pool if each has one.
    ``has_idle``: a machine of the pool waits for jobs, so that the pool can serve even if its cloud
    sells nothing. ``unavailable``: why the cloud gave no offers.
    """
    placement = rank(request, offers, scope, now, ranking)
    launches = serving(request, offers, scope, now, ranking, full_ranking=placement)
    priced = [(launch.offer, launch.room) for launch in launches] or _unsold(placement, ranking)
    # The machines of a capacity block may suffice, but not for a job that outlasts the block.
    lasting = next((row for row in placement.ranked if _end_of(row.offer) == math.inf), None)
    if lasting is not None and lasting.offer not in [offer for offer, _ in priced]:
        priced.append((lasting.offer, lasting.room))
    first = priced[0][0] if priced else None
    if unavailable is None and not launches:
        unavailable = next((row.cause for row in placement.rejected), NoOffers())
    # A machine that waits for jobs serves the job without any purchase.
    if has_idle and first is not None:
        unavailable = None
    return PoolTerms(
        pool=request.pool.name,
        cloud=request.pool.cloud,
        partition=partition,
        offers=tuple(
            _priced_room(request, offer, room, _end_of(offer) - now - boot_s - SLACK_S)
            for offer, room in priced
        ),
        on_demand=min(map(_on_demand, (row.offer for row in placement.ranked)), default=math.inf),
        boot_s=boot_s,
        lease_s=lease_s,
        minimum_s=minimum_s,
        keys=_own_numbers(request, first, ranking),
        unavailable=unavailable,
        traffic=traffic,
    )


def job_order(
    job: JobShape, table: Iterable[PoolTerms], ranking: Sequence[str]
) -> list[RankedPool]:
    """Return the pools that can hold the job, best first. ``table``: in the order of the submit
    filter, which decides between equal pools.
    """
    rows = [terms for terms in table if terms.pool in job.machines]
    on_demand = min(
        (
            _hours(job, terms) * terms.on_demand * job.machines[terms.pool]
            + terms.traffic.dollars(job.data)
            for terms in rows
            if terms.on_demand < math.inf
        ),
        default=math.inf,
    )
    ranked = [
        RankedPool(
            terms=terms,
            machines=job.machines[terms.pool],
            cost=cost(job, terms),
            keys=tuple(_key(name, job, terms, on_demand) for name in keys_of(ranking)),
        )
        for terms in rows
    ]
    # Sorting is stable, so the table's order decides between equal keys.
    return sorted(ranked, key=lambda row: row.keys)


def partition_order(
    job: JobShape, table: Sequence[PoolTerms], ranking: Sequence[str]
) -> list[RankedPool]:
    """Return the pool that would serve the job in each partition, best partition first.

    Within a partition the nodes' weights decide and not this order: Slurm takes the first pool of
    the file that can serve.
    """
    serving_pools: dict[str, PoolTerms] = {}
    for terms in table:
        earlier = serving_pools.get(terms.partition)
        if terms.pool in job.machines and (
            earlier is None or (earlier.unavailable and not terms.unavailable)
        ):
            serving_pools[terms.partition] = terms
    chosen = {terms.pool for terms in serving_pools.values()}
    return [row for row in job_order(job, table, ranking) if row.terms.pool in chosen]


def cost(job: JobShape, terms: PoolTerms, *, with_risk: bool = False) -> float:
    """Return what the job costs in the pool ($): its machines from their boot to the job's end, and
    its traffic.

    ``with_risk``: also the work that interruptions are expected to destroy (``ranking.risk``).
    Machines beyond the room of all offers cost as much as the last. Infinite without an offer.
    """
    offers = job.offers_of(terms)
    if not offers:
        return math.inf
    lacking, dollars = job.machines[terms.pool], 0.0
    paid_ahead_s = terms.boot_s + terms.traffic.seconds(job.data)
    for offer in offers:
        count = lacking if offer is offers[-1] else min(offer.room, lacking)
        lost = offer.lost_share if with_risk else 0.0
        hours = terms.billed_hours(paid_ahead_s + job.seconds * (1 + lost))
        dollars += count * offer.price * hours
        lacking -= count
    return dollars + terms.traffic.dollars(job.data)


def _unsold(placement: Placement, ranking: Sequence[str]) -> list[tuple[Offer, int]]:
    """Return the best offer that fits the pool, with a room of 0 machines, because no offer can
    serve now. Empty if no offer fits.
    """
    order = [KEYS[name] for name in ranking]
    # An offer that does not fit the pool says nothing about the price of the job there.
    offers = [row.offer for row in placement.rejected if not isinstance(row.cause, Misfit)]
    offers.sort(key=lambda o: (*(key(placement.request, o) for key in order), o.key))
    return [(offer, 0) for offer in offers[:1]]


def _end_of(offer: Offer) -> float:
    """Return when the cloud ends the machines of the offer (Unix time); infinite if it does not."""
    end = None if offer.held is None else offer.held.machines_end_at
    return math.inf if end is None else end


def _priced_room(request: NodeRequest, offer: Offer, room: int, max_run_s: float) -> PricedRoom:
    return PricedRoom(
        room=room,
        market=offer.market,
        price=offer.marginal_price,
        lost_share=lost_share(request, offer),
        max_run_s=max_run_s,
    )


def _on_demand(offer: Offer) -> float:
    """Return the price ($/h) of a public on-demand offer; infinite for any other offer."""
    is_meant = offer.market is Market.ON_DEMAND and offer.location is Location.PUBLIC
    return offer.price if is_meant else math.inf


def _own_numbers(
    request: NodeRequest, offer: Offer | None, ranking: Sequence[str]
) -> dict[str, float]:
    names = [name for name in ranking if name not in (*COSTS, MARKET)]
    return {} if offer is None else {name: KEYS[name](request, offer) for name in names}


def _hours(job: JobShape, terms: PoolTerms) -> float:
    return terms.billed_hours(terms.boot_s + terms.traffic.seconds(job.data) + job.seconds)


def _key(name: str, job: JobShape, terms: PoolTerms, on_demand: float) -> float:
    """Return the number of one key. ``on_demand``: the lowest cost of the job ($) on demand in any
    public cloud that can hold it.
    """
    if name == AVAILABLE:
        return 0.0 if terms.unavailable is None else 1.0
    if name in COSTS:
        return cost(job, terms, with_risk=name == RISK)
    if name != MARKET:
        return terms.keys.get(name, math.inf)
    offers = job.offers_of(terms)
    if not offers:
        return math.inf
    # Spot that costs as much as on demand in another cloud saves nothing, and may be taken away.
    market = offers[0].market
    is_spot_dear = market is Market.SPOT and cost(job, terms) >= on_demand
    return SPOT_NOT_CHEAPER if is_spot_dear else float(MARKET_ORDER[market])
