"""Describes the resources of a site in OpenStack to Terraform's provider
``terraform-provider-openstack/openstack``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slurm_elastic.config.site_place import SitePlace
from slurm_elastic.model.site_resources import (
    Hcl,
    HclBlock,
    HclOutput,
    HclVariable,
    SiteResource,
    escaped,
    referring,
)
from slurm_elastic.providers.openstack.settings import OpenStackCloud

TYPES = {
    "network": "openstack_networking_network_v2",
    "subnet": "openstack_networking_subnet_v2",
    "router": "openstack_networking_router_v2",
    "router interface": "openstack_networking_router_interface_v2",
    "security group": "openstack_networking_secgroup_v2",
    "security group rule": "openstack_networking_secgroup_rule_v2",
    "key pair": "openstack_compute_keypair_v2",
}
_EXTRA: Mapping[str, Mapping[str, Any]] = {
    "key pair": {"public_key": "=var.public_key"},
    "security group": {"delete_default_rules": True},
    "subnet": {"cidr": "=var.cidr"},
}
_UNDESCRIBED = ("router interface", "key pair")


def files(needed: Sequence[SiteResource], settings: OpenStackCloud, place: SitePlace) -> Hcl:
    """The needed resources as blocks of Terraform."""
    by_key = {r.key: r for r in needed if r.kind in TYPES and not r.named}
    variables = [
        HclVariable(name="cloud", description="the entry of clouds.yaml", default=settings.cloud)
    ]
    if "subnet" in by_key:
        variables.append(
            HclVariable(name="cidr", description="the addresses of machines", default=place.cidr)
        )
    if "key-pair" in by_key:
        variables.append(
            HclVariable(
                name="public_key", default=place.public_key or None,
                description="the public key with which the head logs in to machines",
            )
        )  # fmt: skip
    return Hcl(
        provider="openstack", source="terraform-provider-openstack/openstack", version=">= 1.53",
        settings={"cloud": "=var.cloud"}, variables=tuple(variables),
        resources=tuple(_block(resource, by_key) for resource in by_key.values()),
        outputs=tuple(_outputs(by_key)),
    )  # fmt: skip


def _block(resource: SiteResource, by_key: Mapping[str, SiteResource]) -> HclBlock:
    def reference(key: str, attribute: str) -> str:
        return f"${{{TYPES[by_key[key].kind]}.{_label(key)}.{attribute}}}"

    attributes = referring(escaped(dict(resource.properties)), reference)
    attributes |= _EXTRA.get(resource.kind, {})
    if resource.kind not in _UNDESCRIBED:
        attributes["description"] = f"slurm-elastic: {resource.purpose}"
    return HclBlock(
        type=TYPES[resource.kind], name=_label(resource.key), attributes=attributes,
        comment=resource.purpose,
    )  # fmt: skip


def _label(key: str) -> str:
    return key.replace("-", "_").replace(".", "_")


def _outputs(by_key: Mapping[str, SiteResource]) -> Iterator[HclOutput]:
    for key, name, value in (
        ("network", "networks", f"[{TYPES['network']}.network.id]"),
        ("security-group", "security_groups", f"[{TYPES['security group']}.security_group.id]"),
        ("key-pair", "key_name", f"{TYPES['key pair']}.key_pair.name"),
    ):
        if key in by_key:
            yield HclOutput(name=name, description=f"clouds[].{name}", value=value)
