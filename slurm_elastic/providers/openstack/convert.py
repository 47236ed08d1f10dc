"""nova's answers as our values (Compute API, microversion 2.69)."""

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

# All else (SUSPENDED, PAUSED, SHELVED ...) is lost to Slurm: on its way out.
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
"""Nova's state of a server for which something failed; one that runs goes on running."""
POWER_RUNNING = 1
"""nova.compute.power_state.RUNNING: what the hypervisor last said of the guest."""
DELETING = "deleting"
LEAVING = (DELETING, "soft-deleting")
"""The tasks of a server whose deletion nova has taken."""


class ServerFields(Struct, frozen=True, kw_only=True):
    """The fields that we read of a server. ``placed``: a host has it or had it; ``started``: it
    once ran; ``powered``: its guest runs. ``host_status`` is None where nova does not show it.
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

    @property
    def generation(self) -> str:
        """The launch that it is of."""
        return self.tags.get(machine_tags.GENERATION, "")

    @property
    def failed(self) -> bool:
        """Whether its start has failed for good."""
        return self.status == "ERROR" and not self.started

    @property
    def waits(self) -> bool:
        """Whether no host has it yet: the scheduler looks, or the one it found may still refuse."""
        return self.status == "BUILD" and not self.placed


def servers(records: Iterable[Record]) -> list[ServerFields]:
    """The records of a list; KeyError, TypeError or ValueError where they are not servers."""
    names = NodeNames()
    return [_server(r, names) for r in records]


def is_whole(record: Record) -> bool:
    """For a server whose cell is down nova tells its id and little more."""
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
    )


def _node(tags: Mapping[str, str], name: str, names: NodeNames) -> str:
    """By the list that all machines of a call have, and the number that nova gave this one; empty
    where somebody has renamed it.
    """
    if not names.node(tags, 1):
        return names.node(tags, 0)
    own = requests.place(
        name, tags.get(machine_tags.CLUSTER, ""), tags.get(machine_tags.GENERATION, "")
    )
    return names.node(tags, own[1]) if own else ""


def state_of(one: ServerFields) -> InstanceState:
    """As all clouds have it."""
    if one.task in LEAVING:
        return InstanceState.STOPPING
    # A guest that runs is not lost for that, as after a deletion that failed, or a nova-compute
    # that could not look after it when it came up again (compute/manager.py, _init_instance).
    if one.status in UNCLEAR and one.started and one.powered:
        return InstanceState.RUNNING
    return STATES.get(one.status, InstanceState.STOPPING)


def instance(one: ServerFields, settings: OpenStackCloud) -> Instance:
    """A server as a machine; what it was bought as is in its metadata."""
    return machine_of(
        one.id, one.tags, settings, state_of(one), one.address, node=one.node, launched=one.created
    )


def _address(networks: Mapping[str, Sequence[Record]]) -> str | None:
    """A fixed address before a floating one, IPv4 before IPv6."""
    found = [address for cards in networks.values() for address in cards]
    found.sort(key=lambda a: (a.get("OS-EXT-IPS:type") == "floating", a.get("version") != 4))
    return str(found[0]["addr"]) if found else None
