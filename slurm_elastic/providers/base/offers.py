"""Offers of a cloud with the types and prices of the configuration. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.config.machine_prices import extra_price, paid_price, paid_share
from slurm_elastic.model.cluster import Location, Market, Offer, Pool

Room = tuple[int | None, str]
"""How many more machines of a type fit (None: the cloud does not report it), and why not more."""

ROOM_UNKNOWN: Room = (None, "")


class PublishedPrices(Struct, frozen=True, kw_only=True):
    """The prices ($/h) that a cloud publishes now, by type and market. ``source``: their source, as
    it follows a price in a sentence.
    """

    prices: Mapping[tuple[str, Market], float] = {}
    source: str = ""

    def on(self, offer: Offer) -> Offer:
        """Return the offer with these prices. A spot price replaces the configured one. An
        on-demand price only checks the configured one, because the caps count with that everywhere.
        """
        name = offer.instance_type
        reference = self.prices.get((name, Market.ON_DEMAND))
        price = offer.price
        if offer.market is Market.SPOT:
            price = self.prices.get((name, Market.SPOT), price)
        source = "" if reference is None else self.source
        return replace(offer, price=price, reference_price=reference, reference=source)


UNPUBLISHED = PublishedPrices()
"""Of a cloud that publishes no prices. The configured prices count."""


def typed_offer(
    place: tuple[str, Location],
    name: str,
    kind: InstanceType,
    zone: str,
    market: Market,
    room: Room = ROOM_UNKNOWN,
) -> Offer:
    """An offer of the type ``name`` at the published price of the market ($/h). ``place``: the
    cloud's name and location. ``paid_offer`` replaces them by the prices that the site pays.
    """
    free, reason = room
    price = kind.price_on(market)
    return Offer(
        cloud=place[0],
        location=place[1],
        instance_type=name,
        zone=zone,
        market=market,
        # Callers that know a price of their own, such as a live spot price, replace this one.
        price=kind.price if price is None else price,
        on_demand_price=kind.price,
        cpus=kind.cpus,
        memory=kind.memory,
        gres=kind.gres,
        free=free,
        free_reason=reason,
    )


def paid_offer(offer: Offer, settings: CloudSettings, pool: Pool) -> Offer:
    """Return the offer, which has published prices, at the prices that the site pays: less its
    discounts, with its fees and the pool's disks.
    """
    if not (settings.discounts or pool.machine.disk_price):
        return offer
    name, market = offer.instance_type, offer.market
    # The price of a reservation is its contract's.
    share = 1.0 if offer.held is not None else paid_share(settings, name, market)
    extra = extra_price(settings, pool.machine, name, market)
    at_on_demand = partial(paid_price, settings, pool.machine, name, Market.ON_DEMAND)
    published, reference = offer.on_demand_price, offer.reference_price
    paid = replace(
        offer,
        price=offer.price * share + extra,
        on_demand_price=None if published is None else at_on_demand(published),
        # The ranking compares it with the on-demand price.
        reference_price=None if reference is None else at_on_demand(reference),
        disk_price=extra,
        paid_share=share,
    )
    # A discount on demand alone leaves a spot price that may rise over the on-demand price.
    if market is Market.SPOT and published is not None and settings.discounts:
        return replace(paid, highest_spot=paid.paid(published))
    return paid


def reserved_offers(settings: CloudSettings, pool: Pool, zones: Sequence[str]) -> Sequence[Offer]:
    """One offer for each type and zone of the pool that a reservation of the cloud covers. The
    ranking decides which of them run now, and how many machines they have left.
    """
    if Market.RESERVED not in pool.markets or not settings.reservations:
        return ()
    types, place = settings.shapes, (settings.name, settings.location)
    offers = (
        replace(
            typed_offer(place, name, types[name], zone, Market.RESERVED),
            price=held.machine_price(
                types[name].price * paid_share(settings, name, Market.ON_DEMAND), name
            ),
            held=held,
        )
        for held in settings.held
        for name in pool.instance_types or types
        if name in types
        for zone in zones
        if held.covers_type(name, zone)
    )
    # A cloud bills disks beside a reservation, and takes nothing off their price.
    return tuple(paid_offer(offer, settings, pool) for offer in offers)


def offers_with(
    settings: CloudSettings,
    pool: Pool,
    room: Callable[[str], Room | None],
    published: PublishedPrices = UNPUBLISHED,
) -> Sequence[Offer]:
    """One offer for each type of the pool, in each zone, on each market that pool and cloud both
    have and for which the type has a price, at the prices that the site pays. ``room`` is called
    once for each type; None says that the cloud does not have the type. A type with a published
    spot price needs no configured one.
    """
    zones = [z for z in settings.known_zones if not pool.zones or z in pool.zones]
    markets = [m for m in pool.markets if m in settings.markets]
    if settings.location is Location.PUBLIC:
        markets = [m for m in markets if m is not Market.RESERVED]
    places = [(zone, market) for zone in zones for market in markets]
    types, place = settings.shapes, (settings.name, settings.location)
    names = [n for n in pool.instance_types or types if n in types] if places else []
    typed_offers = (
        published.on(typed_offer(place, name, types[name], zone, market, free))
        for name in names
        if (free := room(name)) is not None
        for zone, market in places
        if types[name].price_on(market) is not None or (name, market) in published.prices
    )
    paid_offers = (paid_offer(offer, settings, pool) for offer in typed_offers)
    return (*reserved_offers(settings, pool, zones), *paid_offers)


def plain_offers(
    settings: CloudSettings, pool: Pool, available: Container[str], free: int | None = None
) -> Sequence[Offer]:
    """The offers as in ``offers_with``, for the types in ``available``. ``free`` has the meaning of
    ``Offer.free``.
    """
    return offers_with(settings, pool, lambda name: (free, "") if name in available else None)
