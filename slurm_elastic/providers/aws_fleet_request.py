"""What is sent to CreateFleet, and of which offer an entry of its answer speaks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import Allocation, AwsCloud
from slurm_elastic.model import LaunchSpec, Market, Offer
from slurm_elastic.providers.aws_request import client_token, spot_bound, tag_list
from slurm_elastic.providers.aws_tags import fleet_tags

_STRATEGIES = {
    (Allocation.PRICE, Market.SPOT): "price-capacity-optimized",
    (Allocation.PRICE, Market.ON_DEMAND): "lowest-price",
    (Allocation.RANK, Market.SPOT): "capacity-optimized-prioritized",
    (Allocation.RANK, Market.ON_DEMAND): "prioritized",
}


def create_fleet(
    settings: AwsCloud,
    cluster: Cluster,
    spec: LaunchSpec,
    nodes: Sequence[str],
    *,
    template: str,
    number: int,
    attempt: int,
    minimum: int,
) -> dict[str, object]:
    """The request for ``nodes``, the ``number``-th part of ``spec``.

    EC2 keeps to a ``minimum`` only within one type or zone; the caller gives the rest back.
    """
    tags = tag_list(fleet_tags(spec, nodes, cluster, settings.name))
    market = "spot" if spec.offer.market is Market.SPOT else "on-demand"
    options: dict[str, object] = {
        "AllocationStrategy": _STRATEGIES[settings.allocation, spec.offer.market]
    }
    if not spec.alternatives:
        one = {"SingleInstanceType": True, "SingleAvailabilityZone": True}
        options |= {**one, "MinTargetCapacity": minimum}
    if market == "spot":
        options["InstanceInterruptionBehavior"] = "terminate"
    token = f"{spec.generation}-{attempt}" if attempt else spec.generation
    return {
        "Type": "instant",
        "ClientToken": client_token(cluster, token, number),
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "1"},
                "Overrides": [_override(settings, spec, n) for n in range(len(spec.offers))],
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": len(nodes),
            "DefaultTargetCapacityType": market,
        },
        "SpotOptions" if market == "spot" else "OnDemandOptions": options,
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tags} for kind in ("fleet", "instance", "volume")
        ],
    }


def _override(settings: AwsCloud, spec: LaunchSpec, n: int) -> dict[str, object]:
    offer = spec.offers[n]
    override: dict[str, object] = {"InstanceType": offer.instance_type}
    subnet = settings.subnets.get(offer.zone)
    override |= {"SubnetId": subnet} if subnet else {"AvailabilityZone": offer.zone}
    if settings.allocation is Allocation.RANK:
        override["Priority"] = float(n)
    bound = spot_bound(spec.pool, offer)
    return override if bound is None else override | {"MaxPrice": bound}


def offer_of(settings: AwsCloud, spec: LaunchSpec, entry: Mapping[str, Any]) -> Offer | None:
    """The offer that an entry of the answer (machines or an error) is about; None if it does not
    say.
    """
    override = entry.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    kind = override.get("InstanceType") or entry.get("InstanceType")
    zones = {subnet: zone for zone, subnet in settings.subnets.items()}
    zone = override.get("AvailabilityZone") or zones.get(override.get("SubnetId", ""))
    fitting = [
        offer
        for offer in spec.offers
        if kind in (None, offer.instance_type) and zone in (None, offer.zone)
    ]
    return fitting[0] if len(fitting) == 1 or (fitting and kind and zone) else None
