"""What a machine costs by docs/configuration-clouds.md, "Discounts and fees", written apart."""

from __future__ import annotations

from fnmatch import fnmatchcase

from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.cluster import Market


def dearest_price(cloud: CloudSettings, instance_type: str, market: Market) -> float:
    """$/h of a machine whose published price is that on demand: discounts one after the other, then
    the fees.
    """
    fitting = [
        entry
        for entry in cloud.discounts
        if (not entry.markets or market in entry.markets)
        and (not entry.types or any(fnmatchcase(instance_type, of) for of in entry.types))
    ]
    price = cloud.shapes[instance_type].price
    for entry in fitting:
        price *= 1 - entry.discount
    return price + sum(entry.fee for entry in fitting)
