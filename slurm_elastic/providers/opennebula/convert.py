"""oned's answers, as pyone gives them, as our values.

States: "Virtual Machine States Reference" of the OpenNebula documentation. pyone's own list of LCM
states ends at 68 and oned's does not, so they are numbers here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.providers.base.machine_tags import machine_of
from slurm_elastic.providers.base.tags import GENERATION, NODES
from slurm_elastic.providers.opennebula.requests import SPELLING
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud

PENDING, ACTIVE, DONE, POWEROFF, CLONING_FAILURE = 1, 3, 6, 8, 11
_WAITING = frozenset({0, 1, 2, 10})  # INIT PENDING HOLD CLONING
_STARTING = frozenset({0, 1, 2, 15, *range(19, 23), 31, 32, 35})
# SAVE_*, EPILOG*, SHUTDOWN*, CANCEL, CLEANUP_DELETE, FAILURE: not coming back by itself.
_BOOT, _SHUTDOWN = 2, 12
_LEAVING = frozenset({5, 6, 10, 11, 12, 13, 14, 18, 23, 29, 30})
_FAILED = frozenset({36, 37, 38, 39, 40, 41, 42, 44, 46, 47, 48, 49, 50, 61})
_NEVER_UP = frozenset({36, 39})  # BOOT_FAILURE PROLOG_FAILURE
_ADDRESS_KEYS = ("IP", "EXTERNAL_IP", "IP6_GLOBAL", "IP6_ULA", "IP6")


class Vm(Struct, frozen=True, kw_only=True):
    """The fields that we read of a virtual machine; ``started`` is oned's clock (Unix time),
    ``host`` the number of the host that it is on, or was on last; ``placed``: when it was first
    seen there. ``deployed``: when oned gave it that host, by oned's clock.
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
        """The node that it was started for."""
        return self.tags.get(NODES, "")

    @property
    def generation(self) -> str:
        """The launch that it is of."""
        return self.tags.get(GENERATION, "")

    @property
    def shutting_down(self) -> bool:
        """Whether somebody has asked for its end, and the hypervisor has yet to carry it out."""
        return self.state == ACTIVE and self.lcm == _SHUTDOWN

    @property
    def boots(self) -> bool:
        """Whether its hypervisor has yet to say that it runs; oned refuses to end it until then."""
        return self.state == ACTIVE and self.lcm == _BOOT

    @property
    def waits(self) -> bool:
        """Whether the scheduler has yet to find a place for it."""
        return self.state == PENDING

    @property
    def trouble(self) -> str:
        """Why the scheduler finds no place for it, or why its start failed, in their words."""
        if self.waits:
            return undated(self.tags.get("SCHED_MESSAGE", ""))
        if self.never_up:
            return undated(self.tags.get("ERROR", "")) or "its start failed"
        return ""

    @property
    def never_up(self) -> bool:
        """Whether its start has failed for good."""
        return self.state == CLONING_FAILURE or (self.state == ACTIVE and self.lcm in _NEVER_UP)


def vm(record: Any) -> Vm:  # noqa: ANN401 - a pyone object
    """One machine of an extended answer."""
    told = {key: str(value or "") for key, value in (record.USER_TEMPLATE or {}).items()}
    history = getattr(record.HISTORY_RECORDS, "HISTORY", None) or []
    last = (history[-1] if isinstance(history, list) and history else history) or None
    return Vm(
        id=int(record.ID),
        state=int(record.STATE),
        lcm=int(record.LCM_STATE),
        started=float(record.STIME),
        tags=SPELLING.read(told),
        address=_address(record.TEMPLATE),
        host=int(last.HID) if last else None,
        deployed=float(last.STIME) if last and hasattr(last, "STIME") else None,
    )


def state_of(one: Vm) -> InstanceState:
    """A machine that was suspended or undeployed is lost to Slurm: on its way out."""
    if one.state == DONE:
        return InstanceState.TERMINATED
    if one.state == POWEROFF:
        return InstanceState.STOPPED
    if one.state in _WAITING:
        return InstanceState.PENDING
    if one.state != ACTIVE or one.lcm in _LEAVING or one.lcm in _FAILED:
        return InstanceState.STOPPING
    return InstanceState.PENDING if one.lcm in _STARTING else InstanceState.RUNNING


def instance(one: Vm, settings: OpenNebulaCloud) -> Instance:
    """A machine as all clouds have it; ids carry the cloud's name, as oned only counts."""
    number, state = instance_id(settings.name, one.id), state_of(one)
    return machine_of(number, one.tags, settings, state, one.address, launched=one.started)


def instance_id(cloud: str, number: int) -> str:
    """Our id of the machine that oned counts so."""
    return f"{cloud}-{number}"


def number_of(cloud: str, instance: str) -> int | None:
    """Oned's number of the machine with our id; None where it is none of this cloud's."""
    head, dash, tail = instance.rpartition("-")
    return int(tail) if head == cloud and dash and tail.isascii() and tail.isdigit() else None


def _address(template: Mapping[str, Any] | None) -> str | None:
    nics = (template or {}).get("NIC") or []
    some: Sequence[Mapping[str, Any]] = nics if isinstance(nics, list) else [nics]
    found = (nic.get(key) for nic in some for key in _ADDRESS_KEYS)
    return next((str(address) for address in found if address), None)


def undated(text: str) -> str:
    """``Fri Nov 20 03:35:07 2026: text`` without its date."""
    return re.sub(r"^\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4} ?: ?", "", text.strip())
