"""Converts nova's answers into our values (Compute API, microversion 2.69)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.providers.base import tags as machine_tags
from slurm_elastic.providers.base.machine_tags import machine_of
from slurm_elastic.providers.base.tags import NodeNames
from slurm_elastic.providers.openstack import requests
from slurm_elastic.providers.openstack.settings import OpenStackCloud

Record = Mapping[str, Any]

# Slurm loses a machine in any other state (SUSPENDED, PAUSED, SHELVED ...), so it counts as
# stopping.
STATES = {
    "BUILD": InstanceState.PENDING,
    "REBUILD": InstanceState.PENDING,
    "ACTIVE": InstanceState.RUNNING,
    "HARD_REBOOT": InstanceState.RUNNING,
    "MIGRATING": InstanceState.RUNNING,
    "PASSWORD": InstanceState.RUNNING,
    "REBOOT": InstanceState.RUNNING,
    "RESIZE": InstanceState.RUNNING,
    "REVERT_RESIZE": InstanceState.RUNNING,
    "VERIFY_RESIZE": InstanceState.RUNNING,
    "SHUTOFF": InstanceState.STOPPED,
    "DELETED": InstanceState.TERMINATED,
    "SOFT_DELETED": InstanceState.TERMINATED,
}
UNCLEAR = frozenset({"ERROR", "UNKNOWN"})
"""nova's states of a server for which some operation failed. A running server keeps running."""
POWER_RUNNING = 1
"""nova.compute.power_state.RUNNING: the hypervisor's last report about the guest."""
DELETING = "deleting"
LEAVING = (DELETING, "soft-deleting")
"""The task states of a server whose deletion nova has accepted."""


class ServerFields(Struct, frozen=True, kw_only=True):
    """The fields of a server that we read. ``placed``: a host has the server, or had it.
    ``started``: it has run before. ``powered``: its guest runs now. ``host_status`` is None if nova
    does not show it.
    """

    id: str
    name: str
    status: str
    task: str
    created: float
    placed: bool
    started: bool
    powered: bool
    tags: Mapping[str, str]
    node: str
    address: str | None
    host_status: str | None = None
    image: str = ""
    public_address: str | None = None

    @property
    def generation(self) -> str:
        """The launch of the server."""
        return self.tags.get(machine_tags.GENERATION, "")

    @property
    def failed(self) -> bool:
        """Whether the server's start has failed for good."""
        return self.status == "ERROR" and not self.started

    @property
    def waits(self) -> bool:
        """Whether no host has the server yet: the scheduler is still searching, or the host that it
        found may refuse.
        """
        return self.status == "BUILD" and not self.placed


def servers(records: Iterable[Record]) -> list[ServerFields]:
    """The servers of a listing. KeyError, TypeError or ValueError if the records are not
    servers.
    """
    names = NodeNames()
    return [_server(r, names) for r in records]


def is_complete(record: Record) -> bool:
    """False for a server whose cell is down: nova then returns its id and little more."""
    return "metadata" in record and "name" in record


def _server(record: Record, names: NodeNames) -> ServerFields:
    tags = {str(key): str(value) for key, value in record["metadata"].items()}
    return ServerFields(
        id=str(record["id"]),
        name=str(record["name"]),
        status=str(record["status"]),
        task=str(record.get("OS-EXT-STS:task_state") or ""),
        created=dt.datetime.fromisoformat(record["created"]).timestamp(),
        placed=bool(record.get("hostId")),
        started=bool(record.get("OS-SRV-USG:launched_at")),
        powered=record.get("OS-EXT-STS:power_state") == POWER_RUNNING,
        tags=tags,
        node=_node(tags, str(record["name"]), names),
        address=_address(record.get("addresses") or {}),
        host_status=record.get("host_status"),
        # Empty for a server whose disk is a volume.
        image=str((record.get("image") or {}).get("id", "")),
        public_address=_floating(record.get("addresses") or {}),
    )


def _node(tags: Mapping[str, str], name: str, names: NodeNames) -> str:
    """The node from the list that all machines of a call share and the number that nova gave to
    this one. Empty if the server was renamed.
    """
    if not names.node(tags, 1):
        return names.node(tags, 0)
    place = requests.place(
        name, tags.get(machine_tags.CLUSTER, ""), tags.get(machine_tags.GENERATION, "")
    )
    return names.node(tags, place[1]) if place else ""


def state_of(server: ServerFields) -> InstanceState:
    """The server's state in our terms."""
    if server.task in LEAVING:
        return InstanceState.STOPPING
    # A running guest is not lost, for example after a failed deletion, or if nova-compute could not
    # handle it when it restarted (compute/manager.py, _init_instance).
    if server.status in UNCLEAR and server.started and server.powered:
        return InstanceState.RUNNING
    return STATES.get(server.status, InstanceState.STOPPING)


def instance(server: ServerFields, settings: OpenStackCloud) -> Instance:
    """The server as a machine. Its metadata has the type, zone and market as which it
    was bought.
    """
    return machine_of(
        server.id,
        server.tags,
        settings,
        state_of(server),
        server.address,
        node=server.node,
        launched=server.created,
        image=server.image,
        public_address=server.public_address,
    )


def _floating(networks: Mapping[str, Sequence[Record]]) -> str | None:
    """The machine's first floating address; None if it has none."""
    addresses = [address for cards in networks.values() for address in cards]
    floating = [a for a in addresses if a.get("OS-EXT-IPS:type") == "floating"]
    return str(floating[0]["addr"]) if floating else None


def _address(networks: Mapping[str, Sequence[Record]]) -> str | None:
    """The machine's address: fixed before floating, IPv4 before IPv6."""
    addresses = [address for cards in networks.values() for address in cards]
    addresses.sort(key=lambda a: (a.get("OS-EXT-IPS:type") == "floating", a.get("version") != 4))
    return str(addresses[0]["addr"]) if addresses else None
