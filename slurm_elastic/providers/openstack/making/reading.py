"""Finds the resources in a project of OpenStack that ``init --make`` created."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from slurm_elastic.model.site_maker import CREDENTIAL
from slurm_elastic.model.site_resources import FoundResource, first_of_each, with_references
from slurm_elastic.providers.openstack.making.marks import OwnerMark

Record = Mapping[str, Any]
Call = Callable[..., Any]
COLLECTIONS = {
    "network": "networks",
    "subnet": "subnets",
    "router": "routers",
    "security group": "security-groups",
}
"""The path of each kind in neutron, in the order in which they are created."""
_PROPERTIES = {
    "network": ("name", "admin_state_up"),
    "subnet": ("name", "network_id", "cidr", "ip_version", "enable_dhcp"),
    "router": ("name", "admin_state_up"),
    "security group": ("name",),
}
_RULE = (
    "direction", "ethertype", "protocol", "port_range_min", "port_range_max", "remote_ip_prefix",
    "remote_group_id", "security_group_id",
)  # fmt: skip
_INTERFACE = "network:router_interface"
_DHCP = "network:dhcp"
_MAX_USERS = 3
_OWN_LOGIN = "slurm-elastic.yaml (clouds_file)"


class ProjectReading(Struct, kw_only=True):
    """Everything that one reading of the project has shown."""

    mark: OwnerMark
    records: dict[str, list[Record]] = field(default_factory=dict)
    """All records of the project, by kind."""
    ports: list[Record] = field(default_factory=list)
    key_of: dict[str, str] = field(default_factory=dict)
    """The keys of our resources by id."""
    references: dict[str, str] = field(default_factory=dict)
    users: dict[str, list[str]] = field(default_factory=dict)


def find(call: Call, mark: OwnerMark, name: str) -> list[FoundResource]:
    """All resources that this cluster made in the project, in the order in which they were
    created.
    """
    reading = ProjectReading(mark=mark)
    ids_by_key: dict[str, list[str]] = {}
    for kind, path in COLLECTIONS.items():
        answer = call("network", "GET", f"/{path}")
        reading.records[kind] = answer[path.replace("-", "_")]
        for record in reading.records[kind]:
            if existing := mark.read(record.get("description")):
                ids_by_key.setdefault(existing.part, []).append(record["id"])
    reading.ports = call("network", "GET", "/ports")["ports"]
    texts = [json.dumps(records) for records in (*reading.records.values(), reading.ports)]
    reading.key_of = first_of_each(ids_by_key, texts)
    reading.references = {id_: f"@{{{key}.id}}" for id_, key in reading.key_of.items()}
    _note_users(reading)
    return [
        *_of_kind(reading, "network", _other_subnets),
        *_of_kind(reading, "subnet", lambda _look, _record: ()),
        *_of_kind(reading, "router", _other_interfaces),
        *_interfaces(reading),
        *_groups(reading),
        *_key_pair(call, reading, name),
    ]


def _note_users(reading: ProjectReading) -> None:
    for port in reading.ports:
        owner = port.get("device_owner", "")
        if owner.startswith((_INTERFACE, _DHCP, "network:router_gateway")):
            continue
        shown = port.get("device_id") or f"port {port['id']}"
        subnets = [address["subnet_id"] for address in port.get("fixed_ips", ())]
        for used in {port["network_id"], *subnets, *port.get("security_groups", ())}:
            reading.users.setdefault(used, []).append(shown)


def _shortened(names: list[str]) -> tuple[str, ...]:
    unique = sorted(set(names))
    more = len(unique) - _MAX_USERS
    return (*unique[:_MAX_USERS], *((f"{more} more",) if more > 0 else ()))


def _of_kind(
    reading: ProjectReading, kind: str, strangers: Callable[[ProjectReading, Record], Any]
) -> Iterator[FoundResource]:
    for record in reading.records[kind]:
        if record["id"] in reading.key_of:
            yield _found(reading, kind, record, tuple(strangers(reading, record)))


def _found(
    reading: ProjectReading, kind: str, record: Record, strangers: tuple[str, ...]
) -> FoundResource:
    properties = {key: record.get(key) for key in _PROPERTIES[kind]}
    if kind == "router":
        gateway = record.get("external_gateway_info") or {}
        properties["external_network_id"] = gateway.get("network_id", "")
    mark = reading.mark.read(record.get("description"))
    part_of = reading.key_of.get(record.get("network_id", ""), "") if kind == "subnet" else ""
    return FoundResource(
        key=reading.key_of[record["id"]], kind=kind, id=record["id"], is_ours=True,
        properties=with_references(properties, reading.references), strangers=strangers,
        made_digest=mark.digest if mark else "none", attributes={"id": record["id"]},
        users=_shortened(reading.users.get(record["id"], [])), part_of=part_of,
    )  # fmt: skip


def _other_subnets(reading: ProjectReading, record: Record) -> Iterator[str]:
    for subnet in reading.records["subnet"]:
        if subnet["network_id"] == record["id"] and subnet["id"] not in reading.key_of:
            yield f"subnet {subnet['id']}"


def _interface_ports(reading: ProjectReading, router: str) -> Iterator[tuple[Record, str]]:
    for port in reading.ports:
        is_interface = port.get("device_owner", "").startswith(_INTERFACE)
        if is_interface and port.get("device_id") == router:
            for address in port.get("fixed_ips", ()):
                yield port, address["subnet_id"]


def _other_interfaces(reading: ProjectReading, record: Record) -> Iterator[str]:
    for _, subnet in _interface_ports(reading, record["id"]):
        if subnet not in reading.key_of:
            yield f"an interface in subnet {subnet}"


def _interfaces(reading: ProjectReading) -> Iterator[FoundResource]:
    for router in reading.records["router"]:
        if router["id"] not in reading.key_of:
            continue
        for port, subnet in _interface_ports(reading, router["id"]):
            if subnet not in reading.key_of:
                continue
            number = "".join(reading.key_of[subnet].partition("+")[1:])
            yield FoundResource(
                key=f"router-interface{number}", kind="router interface", id=port["id"],
                is_ours=True, part_of=reading.key_of[subnet],
                properties={
                    "router_id": reading.references[router["id"]],
                    "subnet_id": reading.references[subnet],
                },
            )  # fmt: skip


def _groups(reading: ProjectReading) -> Iterator[FoundResource]:
    for record in reading.records["security group"]:
        if record["id"] not in reading.key_of:
            continue
        rules = record.get("security_group_rules", ())
        ours = [rule for rule in rules if reading.mark.read(rule.get("description"))]
        default_rules = [rule for rule in rules if is_default_egress(rule)]
        other_rules = [rule for rule in rules if rule not in ours]
        # neutron gives each new group such rules. They are ours to remove until ours are there.
        if not ours:
            other_rules = [rule for rule in other_rules if rule not in default_rules]
        strangers = tuple(f"a rule of its own ({rule['id']})" for rule in other_rules)
        group = _found(reading, "security group", record, strangers)
        number = "".join(group.key.partition("+")[1:])
        yield group
        if not default_rules:
            yield FoundResource(
                key=f"closed-egress{number}", kind="closed egress", id=f"of {group.id}",
                is_ours=True, part_of=group.key, goes_along=True,
                properties={"security_group_id": f"@{{{group.key}.id}}"},
            )  # fmt: skip
        for rule in ours:
            yield _rule(reading, group.key, number, rule)


def is_default_egress(rule: Record) -> bool:
    """Whether the rule is one of the two rules that neutron gives each new group."""
    is_open = not (rule.get("protocol") or rule.get("remote_ip_prefix"))
    return (
        rule["direction"] == "egress"
        and is_open
        and not rule.get("remote_group_id")
        and not rule.get("description")
    )


def _rule(reading: ProjectReading, group: str, number: str, rule: Record) -> FoundResource:
    properties = {key: rule[key] for key in _RULE if rule.get(key) is not None}
    mark = reading.mark.read(rule.get("description"))
    assert mark is not None  # noqa: S101 - the caller has read it
    return FoundResource(
        key=mark.part + number, kind="security group rule", id=rule["id"], is_ours=True,
        part_of=group, goes_along=True, made_digest=mark.digest,
        properties=with_references(properties, reading.references), attributes={"id": rule["id"]},
    )  # fmt: skip


def _key_pair(call: Call, reading: ProjectReading, name: str) -> Iterator[FoundResource]:
    for item in call("compute", "GET", "/os-keypairs")["keypairs"]:
        record = item["keypair"]
        if record["name"] != name:
            continue
        kind, key, comment = (*record.get("public_key", "").split(None, 2), "", "", "")[:3]
        mark = reading.mark.read(comment.strip())
        servers = call("compute", "GET", "/servers/detail")["servers"]
        users = [server["id"] for server in servers if server.get("key_name") == name]
        yield FoundResource(
            key="key-pair", kind="key pair", id=name, is_ours=mark is not None,
            properties={"name": name, "public_key": f"{kind} {key}"}, attributes={"id": name},
            made_digest=mark.digest if mark else "none", users=_shortened(users),
        )  # fmt: skip


def find_credential(
    records: Sequence[Record],
    mark: OwnerMark,
    name: str,
    in_use: str,
    others: Iterable[FoundResource],
) -> list[FoundResource]:
    """The application credential of that name among the user's ``records``. ``in_use``: the id of
    the credential with which we have logged in. ``others``: the other resources.
    """
    # The services need it until they have ended the machines that use the other resources.
    machines = _shortened([user for other in others if other.is_ours for user in other.users])
    return [
        FoundResource(
            key=CREDENTIAL, kind="application credential", id=record["id"],
            is_ours=(made := mark.read(record.get("description"))) is not None,
            properties={
                "name": name, "roles": sorted(role["name"] for role in record.get("roles", ()))
            },
            made_digest=made.digest if made else "none", attributes={"id": record["id"]},
            users=(_OWN_LOGIN,) if record["id"] == in_use else machines,
        )
        for record in records
        if record["name"] == name
    ]  # fmt: skip
