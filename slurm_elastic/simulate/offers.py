"""The offers of a simulated cloud, one for each type, zone and market, as its provider lists
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from slurm_elastic.base.units import money
from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.config.pool_rules import cheapest, types_of
from slurm_elastic.model.cluster import Location, Market, Offer, Pool
from slurm_elastic.model.reserved import Held
from slurm_elastic.providers.base.offers import paid_offer, typed_offer
from slurm_elastic.providers.base.prices.trace import PriceTrace, Series
from slurm_elastic.simulate.availability import (
    HistorySpan,
    Supply,
    available,
    check_point_count,
    supplies_of,
)
from slurm_elastic.simulate.bills.billing import Curve
from slurm_elastic.simulate.bills.held import sold_on, zones_of
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.scenario import Sold

BIDS_UNTIL = datetime(2017, 11, 28, tzinfo=UTC).timestamp()
"""Unix time until which EC2 took spot machines when the price exceeded the bid. Later it took
them when it needed the capacity.
"""


class SpotFacts(Struct, frozen=True, kw_only=True):
    """Facts about spot machines (see ``SpotMarket``). ``bid``: for all types, instead of the pools'
    own bids. ``held``: the site's
    reservations, in seconds of the history.
    """

    span: HistorySpan
    bid: float | None = None
    prices: PriceTrace | None = None
    availability: tuple[Supply, ...] = ()
    notice: int = 120
    rebalance: int = 0
    held: tuple[Held, ...] = ()


def offers_of(cloud: CloudSettings, pool: Pool, facts: SpotFacts) -> tuple[Sold, ...]:
    """Return all offers for the pool's machines; on-demand offers if no spot price is known."""
    kinds = _types(cloud, pool)
    zones = _zones(cloud, pool, facts, kinds)
    sold = list(sold_on(cloud, pool, zones, facts.held))
    sold += [
        offer
        for kind in kinds
        for zone in zones
        for offer in _spot_offers(cloud, pool, facts, kind, zone)
    ]
    place = (cloud.name, cloud.location)
    fixed = [
        market
        for market in pool.markets
        if market is Market.ON_DEMAND
        or (market is Market.RESERVED and cloud.location is Location.ON_PREMISES)
    ]
    for market in fixed or ([] if sold else [Market.ON_DEMAND]):
        for name, kind in kinds.items():
            offers = (typed_offer(place, name, kind, zone, market) for zone in zones)
            sold += [Sold(offer=paid_offer(offer, cloud, pool)) for offer in offers]
    return tuple(sold)


def assumptions(pool: str, sold: Sequence[Sold], facts: SpotFacts) -> Iterator[str]:
    """Yield a sentence for each assumption about these spot offers."""
    spot = [spot_offer for spot_offer in sold if spot_offer.market is not None]
    if not spot:
        yield f"pool {pool} runs on demand only: no spot price of its types and zones was given"
        return
    names = ", ".join(
        f"{spot_offer.offer.instance_type} in {spot_offer.offer.zone}" for spot_offer in spot[:4]
    )
    omitted = f" and {len(spot) - 4} more" if len(spot) > 4 else ""
    yield f"pool {pool}: spot machines are ranked by the prices of {names}{omitted}"
    if bid := _bid_text(spot):
        yield f"pool {pool}: spot machines are lost when the price exceeds {bid}"
    zones = dict.fromkeys(spot_offer.offer.zone for spot_offer in spot)
    supplies = {s.name: s for zone in zones for s in supplies_of(pool, zone, facts.availability)}
    if supplies:
        yield f"pool {pool}: spot machines are available as in {' and '.join(supplies)}"
    elif all(spot_offer.market is None or spot_offer.market.bid is None for spot_offer in spot):
        yield (
            f"pool {pool}: no spot machine is ever lost: since 2017-11 prices say nothing"
            " about that (threshold policies do what hour does), and no availability was given"
        )


def _bid_text(spot: Sequence[Sold]) -> str:
    """The bids of these offers. Empty if they have none."""
    bids = [
        (spot_offer.market.bid, spot_offer.offer.on_demand_price)
        for spot_offer in spot
        if spot_offer.market is not None and spot_offer.market.bid is not None
    ]
    if all(bid == on_demand_price for bid, on_demand_price in bids):
        return "the on-demand price" if bids else ""
    lowest, highest = min(bid for bid, _ in bids), max(bid for bid, _ in bids)
    if lowest == highest:
        return f"the bid of {money(lowest)}"
    return f"the bid for its type, of {money(lowest)} to {money(highest)}"


def _types(cloud: CloudSettings, pool: Pool) -> dict[str, InstanceType]:
    """Return the pool's types by name; if its cloud has none, a type of the pool's own size."""
    pool_type = InstanceType(
        cpus=pool.cpus,
        memory=max(pool.real_memory, 1),
        price=cheapest(cloud, pool),
        gres=dict(pool.gres),
    )
    return types_of(cloud, pool) or {pool.name: pool_type}


def _zones(
    cloud: CloudSettings, pool: Pool, facts: SpotFacts, kinds: dict[str, InstanceType]
) -> tuple[str, ...]:
    """Return the zones that the pool may use; if the configuration names none, the zones of the
    price trace and of the cloud's reservations.
    """
    zones = pool.zones or cloud.known_zones
    if not zones:
        traced = {} if facts.prices is None else facts.prices.series
        named = {zone for name, zone in traced if name in kinds}
        zones = tuple(sorted(named | zones_of(cloud.name, facts.held)))
    return zones or ("",)


def _spot_offers(
    cloud: CloudSettings, pool: Pool, facts: SpotFacts, name: str, zone: str
) -> Iterator[Sold]:
    series = None if facts.prices is None else facts.prices.series.get((name, zone))
    if series is None or Market.SPOT not in pool.markets:
        return
    kind = _types(cloud, pool)[name]
    published = typed_offer((cloud.name, cloud.location), name, kind, zone, Market.SPOT)
    offer = paid_offer(published, cloud, pool)
    supplies = supplies_of(pool.name, zone, facts.availability)
    prices = _repeat(series, facts.span)
    market = SpotMarket(
        # Traces have the prices that clouds publish.
        Curve(prices.times, [offer.paid(price) for price in prices.prices]),
        bid=_bid(pool, facts, offer, kind, series),
        available=available(supplies, facts.span),
        notice=facts.notice,
        rebalance=facts.rebalance,
    )
    yield Sold(
        offer=offer,
        market=market,
        stock=" ".join(supply.name for supply in supplies),
    )


def _bid(
    pool: Pool, facts: SpotFacts, offer: Offer, kind: InstanceType, series: Series
) -> float | None:
    """The price above which machines of that offer are lost, as the site pays it: the same bid that
    providers send and ckptman compares prices with. The on-demand price replaces it in prices from
    before BIDS_UNTIL.
    """
    if facts.bid is not None:
        return facts.bid
    bid = pool.bid(offer)
    if bid is None and series.times[-1] >= BIDS_UNTIL:
        return None
    published = kind.price if bid is None else bid
    return offer.paid(published)


def _repeat(series: Series, span: HistorySpan) -> Curve:
    """Return the prices on the history's clock. If they do not cover the history, repeat them."""
    if len(series.times) == 1:
        return Curve([span.begin], series.prices)
    first_time, length = series.times[0], int(series.times[-1] - series.times[0]) + 1
    covers = first_time <= span.origin + span.begin and series.times[-1] >= span.origin + span.end
    shift = -span.origin if covers else span.begin - int(first_time)
    points: dict[int, float] = {}
    rounds = 1 if covers else -(-(span.end - span.begin + 1) // length) + 1
    check_point_count(rounds * len(series.times), "prices", length, span)
    for round_ in range(rounds):
        for when, price in zip(series.times, series.prices, strict=True):
            points[int(when) + shift + round_ * length] = price
    times = sorted(points)
    return Curve(times, [points[when] for when in times])
