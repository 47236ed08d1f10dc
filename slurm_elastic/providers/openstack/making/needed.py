"""The resources that a site needs in a project of OpenStack. Pure.

Properties have the names of Terraform's arguments, so that one description serves both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from slurm_elastic.config.site_place import ANYWHERE, ResourceGroup, SitePlace
from slurm_elastic.model.site_maker import CREDENTIAL
from slurm_elastic.model.site_resources import SiteResource, site_name
from slurm_elastic.providers.base.site_rules import GROUP, FirewallRule, rules_of
from slurm_elastic.providers.openstack.settings import NETWORK_WORDS, OpenStackCloud

_METADATA = "169.254.169.254/32"
_IPV4 = 4
_MEMBER = ("member", "_member_")
"""The role of a project's users; keystone before 2018 had the second one."""


def name_of(settings: OpenStackCloud, place: SitePlace) -> str:
    """The name of all resources of the cloud."""
    return site_name(place.cluster.name, settings.name)


def lacks(names: Collection[str], own_ids: frozenset[str]) -> bool:
    """Whether the configuration names nothing, or only resources that init made."""
    return own_ids.issuperset(names)


def needed(
    settings: OpenStackCloud, place: SitePlace, own_ids: frozenset[str], external_network: str
) -> tuple[SiteResource, ...]:
    """The resources, each after those to which it refers. ``external_network``: its id, "" if the
    project sees none.
    """
    return tuple(_needed(settings, place, own_ids, external_network))


def credential(name: str, roles: Collection[str]) -> SiteResource:
    """The services' own credential. ``roles``: the roles of the user who runs init."""
    # If the request names no roles, keystone grants all roles of the user, also an administrator's.
    least = [role for role in roles if role in _MEMBER][:1] or sorted(roles)
    return SiteResource(
        key=CREDENTIAL, kind="application credential", name=name,
        purpose=f"the services log in with role {', '.join(least)}, without a password",
        properties={"name": name, "roles": least},
    )  # fmt: skip


def named_credential() -> SiteResource:
    """The application credential that the configuration uses, which init did not make."""
    return _named("application credential", ("in clouds.yaml",))


def _needed(
    settings: OpenStackCloud, place: SitePlace, own_ids: frozenset[str], external_network: str
) -> Iterator[SiteResource]:
    name = name_of(settings, place)
    if ResourceGroup.NETWORK in place.parts:
        if lacks(settings.networks, own_ids):
            yield from _network(name, place.cidr, external_network)
        else:
            yield _named("network", settings.networks)
    if ResourceGroup.SECURITY_GROUP in place.parts:
        if lacks(settings.security_groups, own_ids):
            yield from _group(name, place)
        else:
            yield _named("security group", settings.security_groups)
    if ResourceGroup.KEY_PAIR in place.parts:
        names = (settings.key_name,) if settings.key_name is not None else ()
        if lacks(names, own_ids):
            yield SiteResource(
                key="key-pair", kind="key pair", name=name,
                purpose="the head logs in to machines and brings the munge key",
                properties={"name": name, "public_key": place.public_key},
            )  # fmt: skip
        else:
            yield _named("key pair", names)


def _named(kind: str, names: Collection[str]) -> SiteResource:
    shown = "(nova's choice)" if set(names) <= set(NETWORK_WORDS) else ", ".join(names)
    return SiteResource(key=f"named-{kind.replace(' ', '-')}", kind=kind, purpose="", named=shown)


def _network(name: str, cidr: str, external_network: str) -> Iterator[SiteResource]:
    yield SiteResource(
        key="network", kind="network", name=name, purpose="a network for machines alone",
        properties={"name": name, "admin_state_up": True},
    )  # fmt: skip
    yield SiteResource(
        key="subnet", kind="subnet", name=name, purpose="the addresses of machines",
        part_of="network",
        properties={
            "name": name, "network_id": "@{network.id}", "cidr": cidr, "ip_version": _IPV4,
            "enable_dhcp": True,
        },
    )  # fmt: skip
    if not external_network:
        return
    yield SiteResource(
        key="router", kind="router", name=name, purpose="machines reach the head",
        properties={
            "name": name, "admin_state_up": True, "external_network_id": external_network,
        },
    )  # fmt: skip
    yield SiteResource(
        key="router-interface", kind="router interface", purpose="the router serves this subnet",
        part_of="subnet", properties={"router_id": "@{router.id}", "subnet_id": "@{subnet.id}"},
    )  # fmt: skip


def _group(name: str, place: SitePlace) -> Iterator[SiteResource]:
    group = "@{security-group.id}"
    yield SiteResource(
        key="security-group", kind="security group", name=name,
        purpose="the only ports that machines use", properties={"name": name},
    )  # fmt: skip
    yield SiteResource(
        key="closed-egress", kind="closed egress",
        purpose="takes away neutron's own rules, which let machines reach everything",
        part_of="security-group", goes_along=True, properties={"security_group_id": group},
    )  # fmt: skip
    for rule in (*rules_of(place), *_own_rules(place)):
        yield SiteResource(
            key=f"rule-{rule.key}", kind="security group rule", name=rule.key,
            purpose=rule.purpose, part_of="security-group", goes_along=True,
            properties={"security_group_id": group, **_rule(rule, group)},
        )  # fmt: skip


def _own_rules(place: SitePlace) -> Iterator[FirewallRule]:
    """Yield the rules for the metadata service and for the search for the head's name.

    EC2 needs no such rules, but neutron applies the group to this traffic, too.
    """
    yield FirewallRule(
        direction="egress", ports=(80, 80), peer=_METADATA, purpose="the metadata service"
    )
    if place.looks_up_names:
        for protocol in ("tcp", "udp"):
            yield FirewallRule(
                direction="egress", protocol=protocol, ports=(53, 53), peer=ANYWHERE,
                purpose="the name of the head",
            )  # fmt: skip


def _rule(rule: FirewallRule, group: str) -> Mapping[str, Any]:
    ports = (
        {
            "protocol": rule.protocol,
            "port_range_min": rule.ports[0],
            "port_range_max": rule.ports[1],
        }
        if rule.ports
        else {}
    )
    peer = {"remote_group_id": group}
    return {
        "direction": rule.direction,
        "ethertype": "IPv4",
        **ports,
        **(peer if rule.peer == GROUP else {"remote_ip_prefix": rule.peer}),
    }
