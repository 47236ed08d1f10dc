"""Finds the resources in EC2 that ``init --make`` created, and resources in their way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic.config.site_place import ANYWHERE
from slurm_elastic.model.site_resources import (
    FoundResource,
    first_of_each,
    with_references,
)
from slurm_elastic.providers.aws.making.calls import (
    DIGEST_TAG,
    PART_TAG,
    Calls,
    Marks,
    tags_in,
)
from slurm_elastic.providers.aws.making.iam_reading import find_role
from slurm_elastic.providers.aws.making.machine_use import OF_OUR_MACHINES, users_by_id

Record = Mapping[str, Any]
_ALL_PROTOCOLS = "-1"
_ANYWHERE_6 = "::/0"


class Kind(Struct, frozen=True, kw_only=True):
    """How to list resources of a kind.

    ``properties``: the names of the properties in an answer of EC2, by our own names.
    """

    kind: str
    operation: str
    list_key: str
    id_key: str
    properties: Mapping[str, str] = {}


KINDS = (
    Kind(
        kind="vpc", operation="describe_vpcs", list_key="Vpcs", id_key="VpcId",
        properties={"cidr_block": "CidrBlock"},
    ),
    Kind(
        kind="internet gateway", operation="describe_internet_gateways",
        list_key="InternetGateways", id_key="InternetGatewayId",
    ),
    Kind(
        kind="route table", operation="describe_route_tables", list_key="RouteTables",
        id_key="RouteTableId", properties={"vpc_id": "VpcId"},
    ),
    Kind(
        kind="subnet", operation="describe_subnets", list_key="Subnets", id_key="SubnetId",
        properties={
            "vpc_id": "VpcId", "cidr_block": "CidrBlock", "availability_zone": "AvailabilityZone",
        },
    ),
    Kind(
        kind="security group", operation="describe_security_groups", list_key="SecurityGroups",
        id_key="GroupId",
        properties={"name": "GroupName", "description": "Description", "vpc_id": "VpcId"},
    ),
)  # fmt: skip
"""In the order in which they are created."""


class AccountReading(Struct, kw_only=True):
    """Everything that one reading of the account has shown."""

    calls: Calls
    marks: Marks
    name: str
    records: dict[str, list[Record]] = field(default_factory=dict)
    """The records of our resources, by kind."""
    key_of: dict[str, str] = field(default_factory=dict)
    """The key of each id."""
    references: dict[str, str] = field(default_factory=dict)
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def find(calls: Calls, marks: Marks, name: str) -> list[FoundResource]:
    """All resources that this cluster made in the account, in the order in which they were
    created.
    """
    reading = AccountReading(calls=calls, marks=marks, name=name)
    for kind in KINDS:
        listed = calls.all_of(kind.operation, kind.list_key, Filters=marks.filters)
        reading.records[kind.kind] = [r for r in listed if marks.are_on(tags_in(r))]
    ids_by_key: dict[str, list[str]] = {}
    for kind in KINDS:
        for record in reading.records[kind.kind]:
            ids_by_key.setdefault(tags_in(record)[PART_TAG], []).append(record[kind.id_key])
    texts = [json.dumps(r, default=str) for records in reading.records.values() for r in records]
    reading.key_of = first_of_each(ids_by_key, texts)
    reading.references = {id_: f"@{{{key}.id}}" for id_, key in reading.key_of.items()}
    templates = list(_templates(reading))
    for template in templates:
        reading.references[template.id] = f"@{{{template.key}.id}}"
    reading.users = users_by_id(calls, marks, reading.key_of)
    return [
        *_network(reading),
        *_groups(reading),
        *_key_pairs(reading),
        *(_with_users(reading, template) for template in templates),
        *find_role(calls, marks, name, reading.references, reading.users),
    ]


def _with_users(reading: AccountReading, resource: FoundResource) -> FoundResource:
    users = reading.users.get(resource.id, ()) or reading.users.get(OF_OUR_MACHINES, ())
    return replace(resource, users=users)


def _found(
    reading: AccountReading,
    kind: Kind,
    record: Record,
    strangers: Sequence[str] = (),
    part_of: str = "",
) -> FoundResource:
    id_ = str(record[kind.id_key])
    properties = {ours: record.get(theirs) for ours, theirs in kind.properties.items()}
    return FoundResource(
        key=reading.key_of[id_], kind=kind.kind, id=id_, is_ours=True,
        properties=with_references(properties, reading.references),
        made_digest=tags_in(record).get(DIGEST_TAG, "none"), strangers=tuple(strangers),
        users=reading.users.get(id_, ()), attributes={"id": id_}, part_of=part_of,
    )  # fmt: skip


def _network(reading: AccountReading) -> Iterator[FoundResource]:
    vpc_kind, gateway_kind, table_kind, subnet_kind, _ = KINDS
    for record in reading.records[vpc_kind.kind]:
        yield _found(reading, vpc_kind, record, list(_in_vpc(reading, record["VpcId"])))
    for record in reading.records[gateway_kind.kind]:
        gateway = _found(reading, gateway_kind, record)
        yield gateway
        for attachment in record.get("Attachments", ()):
            reference = reading.references.get(attachment["VpcId"], attachment["VpcId"])
            yield FoundResource(
                key=_of_same_number("gateway-attachment", gateway.key), kind="gateway attachment",
                id=f"{gateway.id} to {attachment['VpcId']}", is_ours=True, part_of=gateway.key,
                properties={
                    "internet_gateway_id": f"@{{{gateway.key}.id}}", "vpc_id": reference,
                },
            )  # fmt: skip
    for record in reading.records[table_kind.kind]:
        yield from _route_table(reading, table_kind, record)
    for record in reading.records[subnet_kind.kind]:
        # A network stays whole: the daemon may still launch into its other subnets.
        vpc = reading.key_of.get(record["VpcId"], "")
        subnet = _found(reading, subnet_kind, record, part_of=vpc)
        yield subnet
        yield from _of_subnet(reading, subnet, record)


def _of_same_number(key: str, other: str) -> str:
    """The key of a part, with the number of the key ``other`` of the resource to which the part
    belongs.
    """
    return key + "".join(other.partition("+")[1:])


def _in_vpc(reading: AccountReading, vpc: str) -> Iterator[str]:
    """The contents of our network that init did not make."""
    filters = [{"Name": "vpc-id", "Values": [vpc]}]
    for kind in KINDS[2:]:
        for record in reading.calls.all_of(kind.operation, kind.list_key, Filters=filters):
            # EC2 makes these with the VPC and removes them with it.
            main = any(a.get("Main") for a in record.get("Associations", ()))
            is_default = record.get("GroupName") == "default" or main
            if record[kind.id_key] not in reading.key_of and not is_default:
                yield f"{kind.kind} {record[kind.id_key]}"


def _route_table(reading: AccountReading, kind: Kind, record: Record) -> Iterator[FoundResource]:
    key = reading.key_of[record[kind.id_key]]
    parts, strangers = [], []
    for route in record.get("Routes", ()):
        target = route.get("GatewayId", "")
        destination = route.get("DestinationCidrBlock") or route.get("DestinationIpv6CidrBlock")
        # Each table has this route of the VPC itself. It cannot be removed.
        if target == "local":
            continue
        if destination == ANYWHERE and target in reading.references:
            parts.append(
                FoundResource(
                    key=_of_same_number("default-route", key), kind="route",
                    id=f"{record[kind.id_key]} {ANYWHERE}", is_ours=True, part_of=key,
                    goes_along=True,
                    properties={
                        "route_table_id": f"@{{{key}.id}}", "destination_cidr_block": ANYWHERE,
                        "gateway_id": reading.references[target],
                    },
                )
            )  # fmt: skip
        else:
            strangers.append(f"a route to {destination}")
    yield _found(reading, kind, record, strangers)
    yield from parts


def _of_subnet(
    reading: AccountReading, subnet: FoundResource, record: Record
) -> Iterator[FoundResource]:
    zone, reference = record["AvailabilityZone"], f"@{{{subnet.key}.id}}"
    if record.get("MapPublicIpOnLaunch"):
        yield FoundResource(
            key=_of_same_number(f"public-addresses-{zone}", subnet.key), kind="public addresses",
            id=f"of {subnet.id}", is_ours=True, part_of=subnet.key, goes_along=True,
            properties={"subnet_id": reference, "map_public_ip_on_launch": True},
        )  # fmt: skip
    for table in reading.records["route table"]:
        for association in table.get("Associations", ()):
            if association.get("SubnetId") == subnet.id:
                yield FoundResource(
                    key=_of_same_number(f"association-{zone}", subnet.key),
                    kind="route table association", id=association["RouteTableAssociationId"],
                    is_ours=True, part_of=subnet.key,
                    properties={
                        "subnet_id": reference,
                        "route_table_id": reading.references[table["RouteTableId"]],
                    },
                )  # fmt: skip


def _groups(reading: AccountReading) -> Iterator[FoundResource]:
    kind = KINDS[-1]
    for record in reading.records[kind.kind]:
        rules = list(
            reading.calls.all_of(
                "describe_security_group_rules", "SecurityGroupRules",
                Filters=[{"Name": "group-id", "Values": [record["GroupId"]]}],
            )
        )  # fmt: skip
        key = reading.key_of[record["GroupId"]]
        ours = [rule for rule in rules if reading.marks.are_on(tags_in(rule))]
        other_rules = [rule for rule in rules if rule not in ours]
        open_egress = [rule for rule in other_rules if is_open_egress(rule)]
        # EC2 gives each new group these rules. They are ours to remove until our rules are there.
        if not ours:
            other_rules = [rule for rule in other_rules if rule not in open_egress]
        strangers = [
            f"a rule of its own ({rule['SecurityGroupRuleId']}, {_shown(rule)})"
            for rule in other_rules
        ]
        yield _found(reading, kind, record, strangers)
        if not open_egress:
            yield FoundResource(
                key=_of_same_number("closed-egress", key), kind="closed egress",
                id=f"of {record['GroupId']}", is_ours=True, part_of=key, goes_along=True,
                properties={"security_group_id": f"@{{{key}.id}}"},
            )  # fmt: skip
        for rule in ours:
            yield _rule(reading, key, rule)


def is_open_egress(rule: Record) -> bool:
    """Whether EC2 itself has given this rule to a new group: everything may go out by IPv4,
    and in a network with IPv6 addresses by IPv6, too.
    """
    to_all = rule.get("CidrIpv4") == ANYWHERE or rule.get("CidrIpv6") == _ANYWHERE_6
    return bool(rule.get("IsEgress")) and rule.get("IpProtocol") == _ALL_PROTOCOLS and to_all


def _shown(rule: Record) -> str:
    peer = rule.get("CidrIpv4") or rule.get("CidrIpv6") or "a group"
    return f"{rule['SecurityGroupRuleId']}, {rule['IpProtocol']} {rule.get('FromPort')} {peer}"


def _rule(reading: AccountReading, group: str, rule: Record) -> FoundResource:
    protocol = rule["IpProtocol"]
    peer = rule.get("ReferencedGroupInfo", {}).get("GroupId")
    properties: dict[str, Any] = {
        "security_group_id": rule["GroupId"],
        "direction": "egress" if rule["IsEgress"] else "ingress",
        "ip_protocol": protocol,
    }
    if protocol != _ALL_PROTOCOLS:
        properties |= {"from_port": rule["FromPort"], "to_port": rule["ToPort"]}
    if peer:
        properties["referenced_security_group_id"] = peer
    else:
        properties |= {
            "cidr_ipv4": rule.get("CidrIpv4"), "description": rule.get("Description", "")
        }  # fmt: skip
    tags = tags_in(rule)
    return FoundResource(
        key=_of_same_number(tags[PART_TAG], group), kind="security group rule",
        id=rule["SecurityGroupRuleId"], is_ours=True, part_of=group, goes_along=True,
        properties=with_references(properties, reading.references),
        made_digest=tags.get(DIGEST_TAG, "none"),
        attributes={"id": rule["SecurityGroupRuleId"], "group": rule["GroupId"]},
    )  # fmt: skip


def _key_pairs(reading: AccountReading) -> Iterator[FoundResource]:
    filters = [{"Name": "key-name", "Values": [reading.name]}]
    answer = reading.calls.ec2("describe_key_pairs", Filters=filters, IncludePublicKey=True)
    for record in answer.get("KeyPairs", ()):
        tags = tags_in(record)
        name = record["KeyName"]
        yield FoundResource(
            key="key-pair", kind="key pair", id=name, is_ours=reading.marks.are_on(tags),
            properties={
                "key_name": name, "public_key": " ".join(record.get("PublicKey", "").split()[:2]),
            },
            made_digest=tags.get(DIGEST_TAG, "none"), users=reading.users.get(name, ()),
            attributes={"id": name},
        )  # fmt: skip


def _templates(reading: AccountReading) -> Iterator[FoundResource]:
    filters = [{"Name": "launch-template-name", "Values": [reading.name]}]
    for record in reading.calls.all_of(
        "describe_launch_templates", "LaunchTemplates", Filters=filters
    ):
        id_, tags = record["LaunchTemplateId"], tags_in(record)
        version = reading.calls.ec2(
            "describe_launch_template_versions", LaunchTemplateId=id_, Versions=["$Default"]
        )["LaunchTemplateVersions"][0]["LaunchTemplateData"]
        options = version.get("MetadataOptions", {})
        known = {"InstanceInitiatedShutdownBehavior", "MetadataOptions"}
        strangers = [f"{key} in it" for key in sorted(version.keys() - known - {_OF_EMULATOR})]
        # init makes version 1 only, so a person made any other.
        if record.get("LatestVersionNumber", 1) > 1:
            strangers.append(f"a version {record['LatestVersionNumber']}")
        yield FoundResource(
            key="launch-template", kind="launch template", id=id_,
            is_ours=reading.marks.are_on(tags),
            properties={
                "name": record["LaunchTemplateName"],
                "instance_initiated_shutdown_behavior": version.get(
                    "InstanceInitiatedShutdownBehavior"
                ),
                "metadata_options": {
                    ours: options.get(theirs) for ours, theirs in METADATA_OPTIONS.items()
                },
            },
            made_digest=tags.get(DIGEST_TAG, "none"), strangers=tuple(strangers),
            attributes={"id": id_},
        )  # fmt: skip


METADATA_OPTIONS = {
    "http_endpoint": "HttpEndpoint",
    "http_tokens": "HttpTokens",
    "http_put_response_hop_limit": "HttpPutResponseHopLimit",
}
_OF_EMULATOR = "TagSpecifications"
"""moto adds the template's own tags to its data. EC2 does not, and init sets none."""
