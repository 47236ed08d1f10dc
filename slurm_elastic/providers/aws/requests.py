"""Builds the requests to RunInstances and CreateFleet. Pure, so the same launch always makes the
same request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import LaunchSpec, Market, Offer, Pool
from slurm_elastic.model.reserved import TARGETED, ReservationKind
from slurm_elastic.providers.aws import hardware
from slurm_elastic.providers.aws.hardware import NO_FACTS, HardwareFacts
from slurm_elastic.providers.aws.settings import Allocation, AwsCloud
from slurm_elastic.providers.aws.tags import MAX_NODE_TAGS, fleet_tags
from slurm_elastic.providers.base.joining import facts_of
from slurm_elastic.providers.base.tags import node_tags, tags_of
from slurm_elastic.providers.base.user_data import Form, compose

MAX_PER_CALL = 1000
USER_DATA = Form(Path(__file__).with_name("boothook.py"), 16384, 2048, "EC2")
"""EC2 limits user data to 16 KiB before base64."""
_MAX_TOKEN = 64
_MIN_SPOT_BOUND = 0.001
"""EC2 accepts only a MaxPrice above this ($/h, "SpotMarketOptions"). No machine is that cheap."""
_TAGGED = ("instance", "volume")
METADATA: dict[str, object] = {
    "HttpTokens": "required",
    "HttpEndpoint": "enabled",
    "InstanceMetadataTags": "enabled",
}


def chunks(nodes: Sequence[str], settings: AwsCloud) -> Iterator[Sequence[str]]:
    """Split the nodes into one part for each call: at most 1000 or as many as EC2 starts at once,
    and only as many as the tags can list.
    """
    start = 0
    while start < len(nodes):
        size = min(settings.launch_burst or MAX_PER_CALL, MAX_PER_CALL)
        while len(node_tags(nodes[start : start + size])) > MAX_NODE_TAGS:
            size //= 2
        yield nodes[start : start + size]
        start += size


def least_of(spec: LaunchSpec, nodes: Sequence[str]) -> int:
    """Return the fewest machines of the call for ``nodes`` that are of use. The calls of a launch
    get its nodes in their order, and the first calls have given all their machines.
    """
    before = spec.nodes.index(nodes[0]) if nodes else 0
    return max(min(spec.least - before, len(nodes)), 1)


def client_token(cluster: Cluster, generation: str, number: int) -> str:
    """EC2's idempotency token for call ``number`` of a launch, at most 64 characters.

    Tokens belong to an account, which several clusters may share. So a token begins with the
    cluster's UUID.
    """
    token = f"{(cluster.uuid or '')[:8]}-{generation}-{number}"
    if len(token) > _MAX_TOKEN or not token.isascii():
        return hashlib.sha256(f"{cluster.uuid}/{generation}/{number}".encode()).hexdigest()
    return token


def run_instances(
    settings: AwsCloud,
    cluster: Cluster,
    spec: LaunchSpec,
    nodes: Sequence[str],
    *,
    number: int,
    parts: tuple[str, ...],
    site: Mapping[str, Any] | None = None,
    facts: HardwareFacts = NO_FACTS,
) -> dict[str, Any]:
    """The request for ``nodes``, which are part ``number`` of ``spec``. ``site``: the content of
    the site's own template, if it has one.
    """
    site = site or {}
    tags = tags_of(spec, nodes, cluster, settings.name)
    node_list = ",".join(node_tags(nodes).values())
    kinds = (*_TAGGED, "spot-instances-request") if _spot(spec) else _TAGGED
    request: dict[str, Any] = {
        "ImageId": settings.image,
        "InstanceType": spec.offer.instance_type,
        # If EC2 has fewer machines, the launch is partial, or refused if they would be useless.
        "MinCount": least_of(spec, nodes),
        "MaxCount": len(nodes),
        "ClientToken": client_token(cluster, spec.generation, number),
        "TagSpecifications": [{"ResourceType": kind, "Tags": tag_list(tags)} for kind in kinds],
        # A machine that powers itself off (dead-man switch) must not keep costing money for its
        # disk.
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": metadata_over(site, spec.pool),
        "UserData": compose(facts_of(cluster, spec), node_list, parts, USER_DATA),
    }
    if settings.launch_template is not None:
        request["LaunchTemplate"] = site_template(settings.launch_template)
    request |= hardware.options(settings, cluster, spec.pool, facts, site)
    request |= _market(spec) | _reservation(spec) | settings_of_site(settings)
    subnet = settings.subnets.get(spec.offer.zone)
    if not subnet:
        placement = request.get("Placement", site.get("Placement", {}))
        request["Placement"] = {**placement, "AvailabilityZone": spec.offer.zone}
    if facts.efa_interfaces:
        request["NetworkInterfaces"] = hardware.interfaces(settings, facts.efa_interfaces, subnet)
        # EC2 refuses groups beside interfaces that name their own.
        request.pop("SecurityGroupIds", None)
    elif subnet:
        request["SubnetId"] = subnet
    return request


def _spot(spec: LaunchSpec) -> bool:
    return spec.offer.market is Market.SPOT


def site_template(template: str) -> dict[str, str]:
    """The reference to the site's launch template in requests, by id or name; always its default
    version.
    """
    key = "LaunchTemplateId" if template.startswith("lt-") else "LaunchTemplateName"
    return {key: template, "Version": "$Default"}


def metadata_over(site: Mapping[str, Any], pool: Pool) -> Mapping[str, object]:
    """The site template's metadata options with our own merged over them.

    The metadata options of a request replace all metadata options of the template. So without this
    a hop limit in the template would be lost.
    """
    return {
        **site.get("MetadataOptions", {}),
        **METADATA,
        **hardware.metadata_hops(pool),
    }


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """The tags in the form that requests have."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def spot_bound(pool: Pool, offer: Offer) -> str | None:
    """The MaxPrice of a spot offer. None if EC2 should use the on-demand price."""
    if offer.market is not Market.SPOT:
        return None
    bid = pool.bid(offer)
    if bid is None or bid <= _MIN_SPOT_BOUND:
        return None
    # EC2 itself never charges more than the on-demand price, so a bound above it is left out.
    highest = offer.on_demand_price if offer.highest_spot is None else offer.highest_spot
    is_lower = highest is None or bid < offer.published(highest)
    return f"{bid:.6f}" if is_lower else None


def _market(spec: LaunchSpec) -> dict[str, object]:
    """The options for one-time spot machines; none for on-demand machines."""
    if not _spot(spec):
        return {}
    options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    bound = spot_bound(spec.pool, spec.offer)
    if bound is not None:
        options["MaxPrice"] = bound
    return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": options}}


def _reservation(spec: LaunchSpec) -> dict[str, object]:
    """The options for machines in a capacity reservation or block. Reserved instances and savings
    plans cover machines on EC2's bill, so a launch does not name them.
    """
    held = spec.offer.held
    if held is None or held.kind not in TARGETED:
        return {}
    target = {"CapacityReservationTarget": {"CapacityReservationId": held.id}}
    request: dict[str, object] = {"CapacityReservationSpecification": target}
    if held.kind is ReservationKind.BLOCK:
        request["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    return request


def settings_of_site(settings: AwsCloud) -> dict[str, object]:
    """The site's optional settings in the form that requests and launch templates share."""
    request: dict[str, object] = {}
    if settings.security_groups:
        request["SecurityGroupIds"] = list(settings.security_groups)
    if settings.key_name:
        request["KeyName"] = settings.key_name
    if settings.instance_profile:
        kind = "Arn" if settings.instance_profile.startswith("arn:") else "Name"
        request["IamInstanceProfile"] = {kind: settings.instance_profile}
    return request


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
) -> dict[str, object]:
    """The request for ``nodes``, which are part ``number`` of ``spec``. ``attempt`` counts
    repetitions after an answer without machines; each needs a token of its own.
    """
    tags = tag_list(fleet_tags(spec, nodes, cluster, settings.name))
    market = "spot" if _spot(spec) else "on-demand"
    options: dict[str, object] = {
        "AllocationStrategy": _STRATEGIES[settings.allocation, spec.offer.market]
    }
    if not spec.alternatives:
        # EC2 accepts a minimum capacity only for a single type or zone (CreateFleet, API
        # reference).
        single_pool = {"SingleInstanceType": True, "SingleAvailabilityZone": True}
        options |= {**single_pool, "MinTargetCapacity": least_of(spec, nodes)}
    if market == "spot":
        options["InstanceInterruptionBehavior"] = "terminate"
    # The first attempt has the plain generation, so that a repeated launch after a crash has the
    # same token.
    token = f"{spec.generation}-{attempt}" if attempt else spec.generation
    return {
        "Type": "instant",
        "ClientToken": client_token(cluster, token, number),
        "LaunchTemplateConfigs": [
            {
                # Templates of ours have only version 1, and it never changes.
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
        # EC2 tries the lowest number first.
        override["Priority"] = float(n)
    bound = spot_bound(spec.pool, offer)
    return override if bound is None else override | {"MaxPrice": bound}


def offer_of(settings: AwsCloud, spec: LaunchSpec, entry: Mapping[str, Any]) -> Offer | None:
    """The offer that an entry of the answer (machines or an error) is about. None if the entry does
    not say it.
    """
    override = entry.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    kind = override.get("InstanceType") or entry.get("InstanceType")
    # Often the entry has only the subnet that the request named, which may be the pool's own.
    subnets = hardware.for_pool(settings, spec.pool).subnets
    zones = {subnet: zone for zone, subnet in subnets.items()}
    zone = override.get("AvailabilityZone") or zones.get(override.get("SubnetId", ""))
    fitting = [
        offer
        for offer in spec.offers
        if kind in (None, offer.instance_type) and zone in (None, offer.zone)
    ]
    # An entry with only a type or only a zone is certain if a single offer fits.
    return fitting[0] if len(fitting) == 1 or (fitting and kind and zone) else None
