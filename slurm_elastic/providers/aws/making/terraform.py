"""Describes the resources of a site in EC2 to Terraform's provider ``hashicorp/aws``. Pure."""

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
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.tags import CLOUD, CLUSTER, NAME, PREFIX

TYPES = {
    "vpc": "aws_vpc",
    "internet gateway": "aws_internet_gateway",
    "gateway attachment": "aws_internet_gateway_attachment",
    "route table": "aws_route_table",
    "route": "aws_route",
    "subnet": "aws_subnet",
    "route table association": "aws_route_table_association",
    "security group": "aws_security_group",
    "key pair": "aws_key_pair",
    "launch template": "aws_launch_template",
    "role": "aws_iam_role",
    "role policy": "aws_iam_role_policy",
    "instance profile": "aws_iam_instance_profile",
}
_RULES = {
    "ingress": "aws_vpc_security_group_ingress_rule",
    "egress": "aws_vpc_security_group_egress_rule",
}
_MERGED = {"public addresses": "map_public_ip_on_launch", "role of the instance profile": "role"}
"""Kinds that Terraform has as an argument of their parent."""
_IMPLIED = ("closed egress",)
"""Terraform takes EC2's own rule away from each group that it creates."""
_UNTAGGED = ("gateway attachment", "route", "route table association", "role policy")
_EXTRA: Mapping[str, Mapping[str, Any]] = {
    "key pair": {"public_key": "=var.public_key"},
    "launch template": {"update_default_version": True},
    "role policy": {"name": "slurm-elastic-services"},
    "role": {"description": "the services of slurm-elastic"},
}
_DOCUMENTS = ("policy", "assume_role_policy")
MADE_BY = "slurm-elastic init --terraform"
"""Unlike the tag of ``--make``, so that ``--unmake`` leaves these resources to Terraform."""


def files(needed: Sequence[SiteResource], settings: AwsCloud, place: SitePlace) -> Hcl:
    """The needed resources as blocks of Terraform."""
    new = [resource for resource in needed if not resource.named]
    by_key = {resource.key: resource for resource in new}
    variables = [
        HclVariable(name="region", description="the region of the machines",
                    default=settings.region),
    ]  # fmt: skip
    if "key-pair" in by_key:
        variables.append(
            HclVariable(
                name="public_key", default=place.public_key or None,
                description="the public key with which the head logs in to machines",
            )
        )  # fmt: skip
    return Hcl(
        provider="aws", source="hashicorp/aws", version=">= 5.0",
        settings={
            "region": "=var.region", **({"profile": settings.profile} if settings.profile else {})
        },
        setting_blocks={"default_tags": {"tags": {
            CLUSTER: place.cluster.uuid or "",
            NAME: place.cluster.name,
            CLOUD: settings.name,
            f"{PREFIX}made-by": MADE_BY,
        }}},
        variables=tuple(variables),
        resources=tuple(
            _block(resource, new)
            for resource in new
            if resource.kind not in _MERGED and resource.kind not in _IMPLIED
        ),
        outputs=tuple(_outputs(by_key)),
        data=_data(by_key),
    )  # fmt: skip


def _data(by_key: Mapping[str, SiteResource]) -> tuple[HclBlock, ...]:
    if "role" not in by_key:
        return ()
    return (HclBlock(type="aws_caller_identity", name="current", attributes={}),)


def _block(resource: SiteResource, all_: Sequence[SiteResource]) -> HclBlock:
    by_key = {other.key: other for other in all_}
    attributes = _referring(dict(resource.properties), by_key)
    for part in all_:
        if part.part_of == resource.key and part.kind in _MERGED:
            name = _MERGED[part.kind]
            attributes[name] = _referring(part.properties[name], by_key)
    options = attributes.pop("metadata_options", None)
    for name in _DOCUMENTS:
        if name in attributes:
            attributes[name] = {"=jsonencode": attributes[name]}
    attributes.pop("direction", None)  # the type says it
    attributes |= _EXTRA.get(resource.kind, {})
    if resource.kind not in _UNTAGGED:
        attributes["tags"] = {"Name": resource.name}
    blocks = {"metadata_options": options} if options else {}
    return HclBlock(
        type=_type(resource), name=_label(resource.key), attributes=attributes, blocks=blocks,
        comment=resource.purpose,
    )  # fmt: skip


def _type(resource: SiteResource) -> str:
    if resource.kind == "security group rule":
        return _RULES[resource.properties["direction"]]
    return TYPES[resource.kind]


def _label(key: str) -> str:
    """A name of a resource for Terraform. The policy's key has a digest, which says
    nothing there.
    """
    key = "role-policy" if key.startswith("role-policy") else key
    return key.replace("-", "_").replace(".", "_")


def _referring(value: Any, by_key: Mapping[str, SiteResource]) -> Any:  # noqa: ANN401
    def reference(key: str, attribute: str) -> str:
        if key == "account":
            return "${data.aws_caller_identity.current.account_id}"
        return f"${{{_type(by_key[key])}.{_label(key)}.{attribute}}}"

    return referring(escaped(value), reference)


def _outputs(by_key: Mapping[str, SiteResource]) -> Iterator[HclOutput]:
    subnets = [r for r in by_key.values() if r.kind == "subnet"]
    if subnets:
        pairs = ", ".join(
            f'"{r.properties["availability_zone"]}" = aws_subnet.{_label(r.key)}.id'
            for r in subnets
        )
        yield HclOutput(name="subnets", description="clouds[].subnets", value=f"{{ {pairs} }}")
    for key, name, value in (
        ("security-group", "security_groups", "[aws_security_group.security_group.id]"),
        ("key-pair", "key_name", "aws_key_pair.key_pair.key_name"),
        ("launch-template", "launch_template", "aws_launch_template.launch_template.id"),
    ):
        if key in by_key:
            yield HclOutput(name=name, description=f"clouds[].{name}", value=value)
    if "role" in by_key:
        yield HclOutput(
            name="role_arn", description="the role of the head's services",
            value="aws_iam_role.role.arn",
        )  # fmt: skip
