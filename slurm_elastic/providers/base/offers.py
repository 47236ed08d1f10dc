"""Offers of a cloud whose types and prices are those of the configuration. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

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


def offers_with(
    settings: CloudSettings, pool: Pool, room: Callable[[str], Room | None]
) -> Sequence[Offer]:
    """One for each type that the pool takes, in each zone, on each market that both have. ``room``
    is asked once for a type that is offered; None: the cloud has it not.
    """
    zones = [z for z in settings.known_zones if not pool.zones or z in pool.zones]
    places = [(z, m) for z in zones for m in pool.markets if m in settings.markets]
    types, where = settings.shapes, (settings.name, settings.location)
    names = [n for n in pool.instance_types or types if n in types] if places else []
    return tuple(
        typed_offer(where, name, types[name], zone, market, free)
        for name in names
        if (free := room(name)) is not None
        for zone, market in places
    )


def plain_offers(
    settings: CloudSettings, pool: Pool, there: Container[str], free: int | None = None
) -> Sequence[Offer]:
    """The same for types that are ``there``, or not; ``free`` as of ``Offer``."""
    return offers_with(settings, pool, lambda name: (free, "") if name in there else None)
