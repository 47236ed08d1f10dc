"""Converts oned's answers, as pyone returns them, into our values.

States: "Virtual Machine States Reference" of the OpenNebula documentation. They are numbers here,
because pyone's list of LCM states ends at 68 but oned's does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.providers.base.machine_tags import machine_of
from slurm_elastic.providers.base.tags import GENERATION, NODES
from slurm_elastic.providers.opennebula.requests import tags_in
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud

PENDING, ACTIVE, DONE, POWEROFF, CLONING_FAILURE = 1, 3, 6, 8, 11
_WAITING = frozenset({0, 1, 2, 10})  # INIT PENDING HOLD CLONING
_STARTING = frozenset({0, 1, 2, 15, *range(19, 23), 31, 32, 35})
# In these states (SAVE_*, EPILOG*, SHUTDOWN*, CANCEL, CLEANUP_DELETE, FAILURE) a machine does not
# come back by itself.
_BOOT, _SHUTDOWN = 2, 12
_LEAVING = frozenset({5, 6, 10, 11, 12, 13, 14, 18, 23, 29, 30})
_FAILED = frozenset({36, 37, 38, 39, 40, 41, 42, 44, 46, 47, 48, 49, 50, 61})
_NEVER_UP = frozenset({36, 39})  # BOOT_FAILURE PROLOG_FAILURE
_ADDRESS_KEYS = ("IP", "EXTERNAL_IP", "IP6_GLOBAL", "IP6_ULA", "IP6")


class VmFields(Struct, frozen=True, kw_only=True):
    """The fields that we read of a virtual machine. ``started``: by oned's clock (Unix time).
    ``host``: the number of its current or last host. ``placed``: when we first saw it on a host.
    ``deployed``: when oned assigned the host, by oned's clock.
    """

    id: int
    state: int
    lcm: int
    started: float
    tags: Mapping[str, str]
    address: str | None
    host: int | None = None
    placed: float | None = None
    deployed: float | None = None

    @property
    def node(self) -> str:
        """The node that the machine was started for."""
        return self.tags.get(NODES, "")

    @property
    def generation(self) -> str:
        """The launch of the machine."""
        return self.tags.get(GENERATION, "")

    @property
    def shutting_down(self) -> bool:
        """Whether the machine's end was requested and the hypervisor has not carried it out yet."""
        return self.state == ACTIVE and self.lcm == _SHUTDOWN

    @property
    def boots(self) -> bool:
        """Whether the hypervisor has not reported yet that the machine runs. Until then oned
        refuses to end the machine.
        """
        return self.state == ACTIVE and self.lcm == _BOOT

    @property
    def waits(self) -> bool:
        """Whether the scheduler has not found a place for the machine yet."""
        return self.state == PENDING

    @property
    def trouble(self) -> str:
        """The scheduler's reason for finding no place, or oned's reason for a failed start."""
        if self.waits:
            return undated(self.tags.get("SCHED_MESSAGE", ""))
        if self.never_up:
            return undated(self.tags.get("ERROR", "")) or "its start failed"
        return ""

    @property
    def never_up(self) -> bool:
        """Whether the machine's start has failed for good."""
        return self.state == CLONING_FAILURE or (self.state == ACTIVE and self.lcm in _NEVER_UP)


def vm(record: Any) -> VmFields:  # noqa: ANN401 - a pyone object
    """One machine of an extended answer."""
    attributes = {key: str(value or "") for key, value in (record.USER_TEMPLATE or {}).items()}
    history = getattr(record.HISTORY_RECORDS, "HISTORY", None) or []
    last_host = (history[-1] if isinstance(history, list) and history else history) or None
    return VmFields(
        id=int(record.ID),
        state=int(record.STATE),
        lcm=int(record.LCM_STATE),
        started=float(record.STIME),
        tags=tags_in((record.TEMPLATE or {}).get("CONTEXT"), attributes),
        address=_address(record.TEMPLATE),
        host=int(last_host.HID) if last_host else None,
        deployed=float(last_host.STIME) if last_host and hasattr(last_host, "STIME") else None,
    )


def state_of(machine: VmFields) -> InstanceState:
    """The machine's state in our terms. A suspended or undeployed machine is lost to Slurm, so it
    counts as stopping.
    """
    if machine.state == DONE:
        return InstanceState.TERMINATED
    if machine.state == POWEROFF:
        return InstanceState.STOPPED
    if machine.state in _WAITING:
        return InstanceState.PENDING
    if machine.state != ACTIVE or machine.lcm in _LEAVING or machine.lcm in _FAILED:
        return InstanceState.STOPPING
    return InstanceState.PENDING if machine.lcm in _STARTING else InstanceState.RUNNING


def instance(machine: VmFields, settings: OpenNebulaCloud) -> Instance:
    """The machine in our terms. Its id contains the cloud's name, because oned only counts
    machines.
    """
    number, state = instance_id(settings.name, machine.id), state_of(machine)
    return machine_of(
        number, machine.tags, settings, state, machine.address, launched=machine.started
    )


def instance_id(cloud: str, number: int) -> str:
    """Our id of oned's machine ``number``."""
    return f"{cloud}-{number}"


def number_of(cloud: str, instance: str) -> int | None:
    """Oned's number of the machine with our id; None if the id is not of this cloud."""
    head, dash, tail = instance.rpartition("-")
    return int(tail) if head == cloud and dash and tail.isascii() and tail.isdigit() else None


def _address(template: Mapping[str, Any] | None) -> str | None:
    nics = (template or {}).get("NIC") or []
    nic_list: Sequence[Mapping[str, Any]] = nics if isinstance(nics, list) else [nics]
    addresses = (nic.get(key) for nic in nic_list for key in _ADDRESS_KEYS)
    return next((str(address) for address in addresses if address), None)


def undated(text: str) -> str:
    """The text without oned's date, as in ``Fri Nov 20 03:35:07 2026: text``."""
    return re.sub(r"^\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4} ?: ?", "", text.strip())
