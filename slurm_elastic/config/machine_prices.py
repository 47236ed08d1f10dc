"""The one price function: the price of a machine-hour to the site. Pure.

Clouds, price lists, catalogues, price traces and the keys ``price`` and ``spot_price`` of a type
have the published prices. Offers, caps, budgets, bills and simulations have the paid prices.
"""

from __future__ import annotations

import math

from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.machine_options import NO_OPTIONS, MachineOptions


def paid_share(cloud: CloudSettings, instance_type: str, market: Market) -> float:
    """The part of a published price that discounts leave."""
    fitting = [entry for entry in cloud.discounts if entry.fits(instance_type, market)]
    return math.prod((1 - entry.discount for entry in fitting), start=1.0)


def extra_price(
    cloud: CloudSettings, machine: MachineOptions, instance_type: str, market: Market
) -> float:
    """The $/h beside the price of the type, which no reservation covers: disks and fees."""
    fees = (entry.fee for entry in cloud.discounts if entry.fits(instance_type, market))
    return sum(fees, start=machine.disk_price)


def paid_price(
    cloud: CloudSettings,
    machine: MachineOptions,
    instance_type: str,
    market: Market,
    published: float,
) -> float:
    """The price ($/h) of a machine with its disks. ``published``: the price of its type."""
    share = paid_share(cloud, instance_type, market)
    return published * share + extra_price(cloud, machine, instance_type, market)


def configured_price(
    cloud: CloudSettings, machine: MachineOptions | None, instance_type: str, market: Market
) -> float:
    """The price ($/h) of a machine with its disks whose own price is not known: as if bought now at
    the on-demand price of its type. If the file has no such type, the dearest type counts, so that
    caps and budgets never count too little. ``machine``: as for ``on_demand_price``.
    """
    if cloud.flat_price is not None:
        return cloud.flat_price
    shapes = cloud.shapes
    names = (instance_type,) if instance_type in shapes else tuple(shapes)
    options = machine or NO_OPTIONS
    return max(
        (paid_price(cloud, options, name, market, shapes[name].price) for name in names),
        default=extra_price(cloud, options, instance_type, market),
    )


def on_demand_price(
    cloud: CloudSettings, machine: MachineOptions | None, instance_type: str
) -> float | None:
    """The price ($/h) on demand of a machine with its disks. None if the file has no such type.
    ``machine``: of its pool; None if the pool is not known.
    """
    if cloud.flat_price is not None:
        return cloud.flat_price
    kind = cloud.shapes.get(instance_type)
    if kind is None:
        return None
    return paid_price(cloud, machine or NO_OPTIONS, instance_type, Market.ON_DEMAND, kind.price)


def list_price(cloud: CloudSettings, machine: MachineOptions, instance_type: str) -> float | None:
    """The price ($/h) on demand of a machine before discounts, with its disks and fees. None if no
    discount counts, or if the file has no such type.
    """
    kind = cloud.shapes.get(instance_type)
    if kind is None or paid_share(cloud, instance_type, Market.ON_DEMAND) == 1.0:
        return None
    return kind.price + extra_price(cloud, machine, instance_type, Market.ON_DEMAND)
