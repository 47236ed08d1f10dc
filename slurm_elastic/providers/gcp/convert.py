"""Converts Google's answers into our values (Compute Engine API v1)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.providers.base import tags as machine_tags
from slurm_elastic.providers.base.machine_tags import TYPE, machine_of
from slurm_elastic.providers.base.named import node_of
from slurm_elastic.providers.gcp import labels
from slurm_elastic.providers.gcp.settings import GcpCloud

Record = Mapping[str, Any]

# Slurm loses a machine in any other state, so it counts as stopping.
STATES = {
    "PROVISIONING": InstanceState.PENDING,
    "STAGING": InstanceState.PENDING,
    "PENDING": InstanceState.PENDING,
    "RUNNING": InstanceState.RUNNING,
    # Google's word for a machine that is off and keeps its disk.
    "TERMINATED": InstanceState.STOPPED,
    "STOPPED": InstanceState.STOPPED,
}
OFF = ("TERMINATED", "STOPPED")
FIELDS = (
    "name,status,zone,creationTimestamp,lastStopTimestamp,machineType,labels,"
    "networkInterfaces(networkIP,accessConfigs(natIP)),"
    "scheduling(onHostMaintenance),"
    "resourceStatus(upcomingMaintenance(windowStartTime,type,maintenanceStatus))"
)
"""The fields of a machine that we read. Its metadata is left out: it has the user data."""


class MachineFields(Struct, frozen=True, kw_only=True):
    """The fields of a machine that we read. ``created``, ``stopped_at``: Unix time.
    ``maintenance``: when Google's maintenance of its host begins; None if none is announced, or if
    the machine moves to another host with its jobs.
    """

    name: str
    status: str
    zone: str
    type: str
    created: float
    stopped_at: float
    tags: Mapping[str, str]
    address: str | None
    public_address: str | None
    maintenance: float | None

    @property
    def generation(self) -> str:
        """The launch of the machine."""
        return self.tags.get(machine_tags.GENERATION, "")

    @property
    def is_off(self) -> bool:
        """Whether the machine is off and keeps its disk."""
        return self.status in OFF

    @property
    def may_be_stopped(self) -> bool:
        """Whether its pool stopped idle machines when it was launched."""
        return labels.STOPS in self.tags


def machine(record: Record) -> MachineFields:
    """The machine of a record. KeyError, TypeError or ValueError if it is no machine."""
    cards = list(record.get("networkInterfaces") or ())
    outside = [c.get("natIP") for card in cards for c in card.get("accessConfigs") or ()]
    maintenance = (record.get("resourceStatus") or {}).get("upcomingMaintenance") or {}
    moves = (record.get("scheduling") or {}).get("onHostMaintenance") == "MIGRATE"
    begins = None if moves else maintenance.get("windowStartTime")
    return MachineFields(
        name=str(record["name"]),
        status=str(record["status"]),
        zone=last_part(record["zone"]),
        type=last_part(record.get("machineType") or ""),
        created=time_of(record["creationTimestamp"]),
        stopped_at=time_of(stop) if (stop := record.get("lastStopTimestamp")) else 0.0,
        tags=labels.read(record.get("labels") or {}),
        address=next((str(c["networkIP"]) for c in cards if c.get("networkIP")), None),
        public_address=next((str(address) for address in outside if address), None),
        maintenance=time_of(begins) if begins else None,
    )


def state_of(fields: MachineFields) -> InstanceState:
    """The machine's state in our terms."""
    return STATES.get(fields.status, InstanceState.STOPPING)


def instance(fields: MachineFields, settings: GcpCloud) -> Instance:
    """The machine in our terms. Its labels have the market and the price as which it was bought."""
    return machine_of(
        fields.name,
        fields.tags,
        settings,
        state_of(fields),
        fields.address,
        node=node_of(fields.name),
        instance_type=fields.tags.get(TYPE) or fields.type,
        zone=fields.zone,
        launched=fields.created,
        image=fields.tags.get(labels.IMAGE, ""),
        public_address=fields.public_address,
    )


def time_of(text: str) -> float:
    """Convert a time of Google's (RFC 3339) to Unix time."""
    return dt.datetime.fromisoformat(text).timestamp()


def last_part(url: str) -> str:
    """The name at the end of a URL of a resource."""
    return str(url).rpartition("/")[2]
