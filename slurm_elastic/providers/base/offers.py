"""Offers of a cloud whose types and prices are those of the configuration. Pure."""

from __future__ import annotations

from collections.abc import Container, Sequence

from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model import Offer, Pool


def plain_offers(
    settings: CloudSettings, pool: Pool, there: Container[str], free: int | None = None
) -> Sequence[Offer]:
    """Of each type that the pool takes and that is ``there``, in each zone, on each market that
    both have. ``free`` as of ``Offer``.
    """
    types = settings.shapes
    return tuple(
        Offer(
            cloud=settings.name,
            location=settings.location,
            instance_type=name,
            zone=zone,
            market=market,
            price=types[name].price,
            on_demand_price=types[name].price,
            cpus=types[name].cpus,
            memory=types[name].memory,
            gres=types[name].gres,
            free=free,
        )
        for name in pool.instance_types or types
        if name in types and name in there
        for zone in settings.known_zones
        if not pool.zones or zone in pool.zones
        for market in pool.markets
        if market in settings.markets
    )
