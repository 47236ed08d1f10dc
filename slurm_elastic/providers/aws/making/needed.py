"""The resources that a site needs in an account of EC2. Pure.

Properties have the names of Terraform's arguments, so that one description serves both.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.config.grants import Holder
from slurm_elastic.config.site_place import ANYWHERE, ResourceGroup, SitePlace
from slurm_elastic.model.site_resources import ACCOUNT, SiteResource, digest_of, site_name
from slurm_elastic.providers.aws.checks.policy import grant, service_of
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.site_rules import GROUP, FirewallRule, rules_of

POLICY_PREFIX = "slurm-elastic-services-"
_ZONES = 16
"""The network is divided into so many parts, one for each letter of a zone."""


class Account(Struct, frozen=True, kw_only=True):
    """Facts about the account. ``zones``: those of the region; ``vpc``: the network of the subnets
    that the configuration names; ``own_ids``: the resources that init made.
    """

    zones: tuple[str, ...] = ()
    vpc: str = ""
    own_ids: frozenset[str] = frozenset()


def name_of(settings: AwsCloud, place: SitePlace) -> str:
    """The name of all resources of the cloud."""
    return site_name(place.cluster.name, settings.name)


def lacks(names: Collection[str], account: Account) -> bool:
    """Whether the configuration names nothing, or only resources that init made."""
    return account.own_ids.issuperset(names)


def needed(settings: AwsCloud, place: SitePlace, account: Account) -> tuple[SiteResource, ...]:
    """The resources, each after those to which it refers."""
    return tuple(_needed(settings, place, account))


def _needed(settings: AwsCloud, place: SitePlace, account: Account) -> Iterator[SiteResource]:
    name = name_of(settings, place)
    vpc = account.vpc
    if ResourceGroup.NETWORK in place.parts:
        if lacks(settings.subnets.values(), account):
            zones = settings.zones or account.zones
            vpc = "@{vpc.id}"
            yield from _network(name, place.cidr, zones)
            subnets = {zone: f"@{{subnet-{zone}.id}}" for zone in zones}
            settings = replace(settings, subnets=subnets)
        else:
            yield _named("subnet", settings.subnets.values())
    if ResourceGroup.SECURITY_GROUP in place.parts:
        if lacks(settings.security_groups, account):
            yield from _group(name, place, vpc)
            settings = replace(settings, security_groups=("@{security-group.id}",))
        else:
            yield _named("security group", settings.security_groups)
    if ResourceGroup.KEY_PAIR in place.parts:
        if lacks(_listed(settings.key_name), account):
            yield SiteResource(
                key="key-pair", kind="key pair", name=name,
                purpose="the head logs in to machines and brings the munge key",
                properties={"key_name": name, "public_key": place.public_key},
            )  # fmt: skip
            settings = replace(settings, key_name=name)
        else:
            yield _named("key pair", _listed(settings.key_name))
    if ResourceGroup.LAUNCH_TEMPLATE in place.parts:
        if lacks(_listed(settings.launch_template), account):
            yield _template(name)
            settings = replace(settings, launch_template="@{launch-template.id}")
        else:
            yield _named("launch template", _listed(settings.launch_template))
    if ResourceGroup.ROLE in place.parts:
        yield from _role(name, settings, place)


def _listed(name: str | None) -> tuple[str, ...]:
    return (name,) if name is not None else ()


def _named(kind: str, names: Collection[str]) -> SiteResource:
    return SiteResource(
        key=f"named-{kind.replace(' ', '-')}", kind=kind, purpose="", named=", ".join(names)
    )


def _network(name: str, cidr: str, zones: Sequence[str]) -> Iterator[SiteResource]:
    yield SiteResource(
        key="vpc", kind="vpc", name=name, purpose="a network for machines alone",
        properties={"cidr_block": cidr},
    )  # fmt: skip
    yield SiteResource(
        key="internet-gateway", kind="internet gateway", name=name,
        purpose="machines reach the head",
    )  # fmt: skip
    yield SiteResource(
        key="gateway-attachment", kind="gateway attachment",
        purpose="the gateway serves this network", part_of="internet-gateway",
        properties={"internet_gateway_id": "@{internet-gateway.id}", "vpc_id": "@{vpc.id}"},
    )  # fmt: skip
    yield SiteResource(
        key="route-table", kind="route table", name=name, purpose="the routes of the subnets",
        properties={"vpc_id": "@{vpc.id}"},
    )  # fmt: skip
    yield SiteResource(
        key="default-route", kind="route", purpose="all else goes through the gateway",
        part_of="route-table", goes_along=True,
        properties={
            "route_table_id": "@{route-table.id}", "destination_cidr_block": ANYWHERE,
            "gateway_id": "@{internet-gateway.id}",
        },
    )  # fmt: skip
    for zone, block in zip(zones, _blocks(cidr, zones), strict=True):
        yield from _subnet(name, zone, block)


def _subnet(name: str, zone: str, block: str) -> Iterator[SiteResource]:
    key = f"subnet-{zone}"
    yield SiteResource(
        key=key, kind="subnet", name=f"{name}-{zone}", purpose=f"machines in {zone}",
        part_of="vpc",
        properties={"vpc_id": "@{vpc.id}", "cidr_block": block, "availability_zone": zone},
    )  # fmt: skip
    yield SiteResource(
        key=f"public-addresses-{zone}", kind="public addresses", name=f"in {zone}",
        purpose="without one no machine reaches the head through the gateway",
        part_of=key, goes_along=True,
        properties={"subnet_id": f"@{{{key}.id}}", "map_public_ip_on_launch": True},
    )  # fmt: skip
    yield SiteResource(
        key=f"association-{zone}", kind="route table association", name=f"in {zone}",
        purpose="the subnet uses these routes", part_of=key,
        properties={"subnet_id": f"@{{{key}.id}}", "route_table_id": "@{route-table.id}"},
    )  # fmt: skip


def _blocks(cidr: str, zones: Sequence[str]) -> Iterator[str]:
    """The block of addresses of each zone. It is chosen by the zone's letter, so that a new zone
    does not move the block of another zone.
    """
    network = ip_network(cidr)
    blocks = [str(block) for block in network.subnets(new_prefix=network.prefixlen + 4)]
    numbers = [ord(zone[-1]) - ord("a") for zone in zones]
    if len(set(numbers)) != len(zones) or not set(numbers) <= set(range(_ZONES)):
        numbers = list(range(len(zones)))
    return (blocks[number] for number in numbers)


def _group(name: str, place: SitePlace, vpc: str) -> Iterator[SiteResource]:
    group = "@{security-group.id}"
    yield SiteResource(
        key="security-group", kind="security group", name=name,
        purpose="the only ports that machines use",
        properties={"name": name, "description": "machines of slurm-elastic", "vpc_id": vpc},
    )  # fmt: skip
    yield SiteResource(
        key="closed-egress", kind="closed egress",
        purpose="takes away EC2's own rule, which lets machines reach everything",
        part_of="security-group", goes_along=True, properties={"security_group_id": group},
    )  # fmt: skip
    for rule in rules_of(place):
        yield SiteResource(
            key=f"rule-{rule.key}", kind="security group rule", name=rule.key,
            purpose=rule.purpose, part_of="security-group", goes_along=True,
            properties={"security_group_id": group, **_rule(rule, group)},
        )  # fmt: skip


def _rule(rule: FirewallRule, group: str) -> Mapping[str, Any]:
    ports = {"from_port": rule.ports[0], "to_port": rule.ports[1]} if rule.ports else {}
    peer = (
        {"referenced_security_group_id": group}
        if rule.peer == GROUP
        else {"cidr_ipv4": rule.peer, "description": rule.purpose}
    )
    protocol = rule.protocol if rule.ports else "-1"
    return {"direction": rule.direction, "ip_protocol": protocol, **ports, **peer}


def _template(name: str) -> SiteResource:
    """A launch template with the settings that have no key in the configuration.

    The hop limit keeps containers on a machine from the machine's credentials. A machine that shuts
    itself down ends, because a stopped machine's disk would still cost money.
    """
    return SiteResource(
        key="launch-template", kind="launch template", name=name,
        purpose="the place for disks and other settings without a key in the configuration",
        properties={
            "name": name,
            "instance_initiated_shutdown_behavior": "terminate",
            "metadata_options": {
                "http_endpoint": "enabled", "http_tokens": "required",
                "http_put_response_hop_limit": 1,
            },
        },
    )  # fmt: skip


def _role(name: str, settings: AwsCloud, place: SitePlace) -> Iterator[SiteResource]:
    partition, service = service_of(settings)
    principals = ({"Service": service}, {"AWS": f"arn:{partition}:iam::{ACCOUNT}:root"})
    yield SiteResource(
        key="role", kind="role", name=name, purpose="the account of the head's services",
        properties={
            "name": name,
            "assume_role_policy": {
                "Version": "2012-10-17",
                "Statement": [
                    {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
                    for principal in principals
                ],
            },
        },
    )  # fmt: skip
    rights = json.loads(grant(settings, place.use, Holder.SERVICES).text)
    policy_name = policy_name_of(rights)
    yield SiteResource(
        key=policy_key(policy_name), kind="role policy", name=policy_name, part_of="role",
        purpose="the rights that `iam render aws` prints",
        properties=policy_properties(policy_name, rights),
    )  # fmt: skip
    yield SiteResource(
        key="instance-profile", kind="instance profile", name=name,
        purpose="gives the role to a head in EC2", properties={"name": name},
    )  # fmt: skip
    yield SiteResource(
        key="profile-role", kind="role of the instance profile", name=name,
        purpose="gives the role to a head in EC2", part_of="instance-profile",
        properties={"instance_profile": name, "role": "@{role.id}"},
    )  # fmt: skip


def policy_name_of(rights: object) -> str:
    """The name of the policy with these rights. An inline policy has no tags, so its name keeps
    what it was when we made it.
    """
    return POLICY_PREFIX + digest_of("role policy", {"policy": rights})


def policy_key(name: str) -> str:
    """The key of the policy with this name."""
    return f"role-policy-{name.removeprefix(POLICY_PREFIX)}"


def policy_properties(name: str, rights: object) -> Mapping[str, Any]:
    """The properties of a policy with this name and these rights."""
    return {"name": name, "role": "@{role.id}", "policy": rights}
