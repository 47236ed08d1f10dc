"""Offers of a cloud with the types and prices of the configuration. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.model.cluster import Location, Market, Offer, Pool

Room = tuple[int | None, str]
"""How many more machines of a type fit (None: the cloud does not report it), and why not more."""

ROOM_UNKNOWN: Room = (None, "")


def typed_offer(
    place: tuple[str, Location],
    name: str,
    kind: InstanceType,
    zone: str,
    market: Market,
    room: Room = ROOM_UNKNOWN,
) -> Offer:
    """An offer of the type ``name`` at the configured price ($/h). ``place``: the cloud's name and
    location.
    """
    free, reason = room
    return Offer(
        cloud=place[0],
        location=place[1],
        instance_type=name,
        zone=zone,
        market=market,
        price=kind.price,
        # The configuration has one price per type, and these clouds have no spot market.
        on_demand_price=kind.price,
        cpus=kind.cpus,
        memory=kind.memory,
        gres=kind.gres,
        free=free,
        free_reason=reason,
    )


def offers_with(
    settings: CloudSettings, pool: Pool, room: Callable[[str], Room | None]
) -> Sequence[Offer]:
    """One offer for each type of the pool, in each zone, on each market that pool and cloud both
    have. ``room`` is called once for each type; None says that the cloud does not have the type.
    """
    zones = [z for z in settings.known_zones if not pool.zones or z in pool.zones]
    places = [(z, m) for z in zones for m in pool.markets if m in settings.markets]
    types, place = settings.shapes, (settings.name, settings.location)
    names = [n for n in pool.instance_types or types if n in types] if places else []
    return tuple(
        typed_offer(place, name, types[name], zone, market, free)
        for name in names
        if (free := room(name)) is not None
        for zone, market in places
    )


def plain_offers(
    settings: CloudSettings, pool: Pool, available: Container[str], free: int | None = None
) -> Sequence[Offer]:
    """The same for the types in ``available``; ``free`` has the meaning of ``Offer.free``."""
    return offers_with(settings, pool, lambda name: (free, "") if name in available else None)
