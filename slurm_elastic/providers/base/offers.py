"""Offers of a cloud whose types and prices are those of the configuration. Pure."""

from __future__ import annotations

from collections.abc import Container, Sequence

from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.model.cluster import Location, Market, Offer, Pool

Room = tuple[int | None, str]
"""How many more of a type there is room for (None: nobody tells), and why no more."""

NOT_TOLD: Room = (None, "")


def typed_offer(
    place: tuple[str, Location],
    name: str,
    kind: InstanceType,
    zone: str,
    market: Market,
    room: Room = NOT_TOLD,
) -> Offer:
    """An offer of the type ``name`` at the price ($/h) that the configuration gives it. ``place``:
    the cloud's name, and where it is.
    """
    free, why = room
    return Offer(
        cloud=place[0],
        location=place[1],
        instance_type=name,
        zone=zone,
        market=market,
        price=kind.price,
        on_demand_price=kind.price,
        cpus=kind.cpus,
        memory=kind.memory,
        gres=kind.gres,
        free=free,
        free_reason=why,
    )


def plain_offers(
    settings: CloudSettings, pool: Pool, there: Container[str], free: int | None = None
) -> Sequence[Offer]:
    """One for each type that the pool takes and that is ``there``, in each zone, on each market
    that both have. ``free`` as of ``Offer``.
    """
    types, place = settings.shapes, (settings.name, settings.location)
    return tuple(
        typed_offer(place, name, types[name], zone, market, (free, ""))
        for name in pool.instance_types or types
        if name in types and name in there
        for zone in settings.known_zones
        if not pool.zones or zone in pool.zones
        for market in pool.markets
        if market in settings.markets
    )
