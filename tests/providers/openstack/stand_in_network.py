"""neutron and nova's key pairs for the stand-in: networks, subnets, routers, groups, rules, ports.

As neutron 27 answers: a new group has two rules of egress, a network with ports cannot be deleted, a
router with interfaces neither.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

EXTERNAL = "99999999-aaaa-4bbb-8ccc-999999999999"
COLLECTIONS = {
    "networks": "network", "subnets": "subnet", "routers": "router",
    "security-groups": "security_group", "security-group-rules": "security_group_rule",
}  # fmt: skip
Answer = tuple[int, Any]


class Neutron:
    """One project with a network to the outside."""

    def __init__(self) -> None:
        outside = {"id": EXTERNAL, "name": "public", "router:external": True, "description": ""}
        self.records: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in COLLECTIONS}
        self.records["networks"][EXTERNAL] = outside
        self.interfaces: set[tuple[str, str]] = set()
        self.keys: dict[str, dict[str, Any]] = {}
        self._group("default")

    def snapshot(self) -> frozenset[str]:
        lines = {f"{kind} {id_}" for kind, found in self.records.items() for id_ in found}
        lines |= {f"interface {router} {subnet}" for router, subnet in self.interfaces}
        return frozenset(lines | {f"key {name}" for name in self.keys})

    def answer(
        self, method: str, path: str, query: Mapping[str, str], body: Any, servers: Any
    ) -> Answer | None:
        """None for a request of others."""
        if match := re.fullmatch(r"/compute/v2\.1/os-keypairs(?:/(\S+))?", path):
            return self._key(method, match[1], body)
        match = re.fullmatch(r"/network/v2\.0/([a-z-]+)(?:/([^/]+))?(?:/([a-z_]+))?", path)
        if match is None:
            return None
        kind, id_, verb = match.groups()
        if kind == "ports":
            return 200, {"ports": self._ports(servers)}
        if verb:
            return self._interface(id_, verb, body["subnet_id"])
        if id_ is None and method == "GET":
            return 200, {kind.replace("-", "_"): self._listed(kind, query)}
        if method == "POST":
            return self._create(kind, next(iter(body.values())))
        if id_ not in self.records[kind]:
            return 404, {"NeutronError": {"message": f"{kind} {id_} could not be found"}}
        if method == "DELETE":
            return self._delete(kind, id_, servers)
        return 200, {COLLECTIONS[kind]: self._shown(kind, self.records[kind][id_])}

    def _listed(self, kind: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        found = [self._shown(kind, record) for record in self.records[kind].values()]
        if query.get("router:external") == "true":
            return [record for record in found if record.get("router:external")]
        keys = {"name", "id"} & query.keys()
        return [r for r in found if all(r.get(key) == query[key] for key in keys)]

    def _shown(self, kind: str, record: dict[str, Any]) -> dict[str, Any]:
        if kind != "security-groups":
            return record
        rules = self.records["security-group-rules"].values()
        own = [rule for rule in rules if rule["security_group_id"] == record["id"]]
        return record | {"security_group_rules": own}

    def _create(self, kind: str, values: dict[str, Any]) -> Answer:
        if kind == "security-groups":
            return 201, {"security_group": self._group(**values)}
        record = {"id": str(uuid.uuid4()), "description": "", **values}
        if kind == "security-group-rules":
            blank = ("protocol", "port_range_min", "port_range_max", "remote_ip_prefix",
                     "remote_group_id")  # fmt: skip
            record = dict.fromkeys(blank) | record
        self.records[kind][record["id"]] = record
        return 201, {COLLECTIONS[kind]: record}

    def _group(self, name: str, description: str = "") -> dict[str, Any]:
        record = {"id": str(uuid.uuid4()), "name": name, "description": description}
        self.records["security-groups"][record["id"]] = record
        for ethertype in ("IPv4", "IPv6"):
            self._create("security-group-rules", {
                "security_group_id": record["id"], "direction": "egress", "ethertype": ethertype,
                "description": None,
            })  # fmt: skip
        return self._shown("security-groups", record)

    def _delete(self, kind: str, id_: str, servers: Any) -> Answer:
        ports = self._ports(servers)
        record = self.records[kind][id_]
        subnets = {address["subnet_id"] for port in ports for address in port["fixed_ips"]}
        in_use = (
            (kind == "networks" and any(port["network_id"] == id_ for port in ports))
            or (kind == "subnets" and id_ in subnets)
            or (kind == "routers" and any(router == id_ for router, _ in self.interfaces))
            or any(id_ in port["security_groups"] for port in ports)
        )
        if in_use:
            return 409, {"NeutronError": {"message": f"{kind} {record['name']} is in use"}}
        del self.records[kind][id_]
        parts = {"networks": ("subnets", "network_id"),
                 "security-groups": ("security-group-rules", "security_group_id")}  # fmt: skip
        if kind in parts:
            part, key = parts[kind]
            rest = {i: r for i, r in self.records[part].items() if r[key] != id_}
            self.records[part] = rest
        return 204, None

    def _interface(self, router: str, verb: str, subnet: str) -> Answer:
        if verb == "add_router_interface":
            self.interfaces.add((router, subnet))
        elif (router, subnet) not in self.interfaces:
            return 404, {"NeutronError": {"message": f"Router {router} has no interface"}}
        else:
            self.interfaces.remove((router, subnet))
        return 200, {"subnet_id": subnet}

    def _ports(self, servers: Any) -> list[dict[str, Any]]:
        """Of routers, and of nova's servers by the networks and groups of their orders."""
        subnets = self.records["subnets"]
        ports = [
            _port("network:router_interface", router, subnets[subnet]["network_id"], [subnet], [])
            for router, subnet in sorted(self.interfaces)
        ]
        for server in servers.values():
            for network in server.get("order", {}).get("networks", ()):
                inside = [s["id"] for s in subnets.values() if s["network_id"] == network["uuid"]]
                groups = [group["name"] for group in server["order"].get("security_groups", ())]
                ports.append(_port("compute:nova", server["id"], network["uuid"], inside, groups))
        return ports

    def _key(self, method: str, name: str | None, body: Any) -> Answer:
        if method == "POST":
            pair = body["keypair"]
            self.keys[pair["name"]] = pair
            return 200, {"keypair": pair}
        if name is None:
            return 200, {"keypairs": [{"keypair": pair} for pair in self.keys.values()]}
        if name not in self.keys:
            return 404, {"itemNotFound": {"message": f"Keypair {name} not found"}}
        if method == "DELETE":
            del self.keys[name]
            return 202, None
        return 200, {"keypair": self.keys[name]}


def _port(
    owner: str, device: str, network: str, subnets: list[str], groups: list[str]
) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, device + network)), "device_owner": owner,
        "device_id": device, "network_id": network, "security_groups": groups,
        "fixed_ips": [{"subnet_id": subnet, "ip_address": "10.98.0.9"} for subnet in subnets],
    }  # fmt: skip
