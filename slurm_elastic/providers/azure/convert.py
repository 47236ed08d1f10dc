"""Converts the resource manager's answers into our values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from slurm_elastic.base.errors import CapacityError, ProviderError, QuotaError
from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.providers.azure.errors import kind_of_code, late_failure
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.base.machine_tags import machine_of
from slurm_elastic.providers.base.tags import GENERATION, PREFIX

Record = Mapping[str, Any]

STOPPED_TAG = PREFIX + "stopped"
"""The tag of a machine that we have deallocated at least once. Lists do not show whether a machine
is allocated, so we read the instance view of each machine with this tag.
"""
_STATES = {"creating": InstanceState.PENDING, "deleting": InstanceState.STOPPING}
_FAILED = ("failed", "canceled")
_POWER_STATES = {
    "deallocated": InstanceState.STOPPED,
    "deallocating": InstanceState.STOPPING,
    "starting": InstanceState.PENDING,
}
_OFF = ("stopped", "deallocating", "deallocated")
_PROVISIONING, _POWER = "ProvisioningState/", "PowerState/"


class VmFields(Struct, frozen=True, kw_only=True):
    """The fields of a VM that we read. ``provisioning``: the state of its last operation, in lower
    case.
    """

    name: str
    provisioning: str
    created: float | None
    tags: Mapping[str, str]

    @property
    def generation(self) -> str:
        """The launch of the machine."""
        return self.tags.get(GENERATION, "")

    @property
    def failed(self) -> bool:
        """Whether the last operation failed. The machine may run all the same."""
        return self.provisioning in _FAILED

    @property
    def needs_view(self) -> bool:
        """Whether its state cannot be known without its instance view."""
        return self.provisioning != "deleting" and (self.failed or STOPPED_TAG in self.tags)


class ViewFields(Struct, frozen=True, kw_only=True):
    """The fields of a VM's instance view that we read. ``power``: such as "running"; "" if the VM
    has no host. ``failed``: whether its last operation failed; ``code`` and ``message``: why.
    """

    power: str
    failed: bool = False
    code: str = ""
    message: str = ""

    def failure(self, cloud: str) -> ProviderError:
        """The error of a machine that could not start."""
        return late_failure(cloud, self.code, self.message)


def vm(record: Record) -> VmFields:
    """The VM of a list or an answer. KeyError, TypeError or ValueError if it is none."""
    # Only the name is needed: a machine of others in a strange state must not spoil the whole list.
    properties = record.get("properties") or {}
    created = properties.get("timeCreated")
    return VmFields(
        name=str(record["name"]),
        provisioning=str(properties.get("provisioningState") or "").lower(),
        created=None if created is None else dt.datetime.fromisoformat(created).timestamp(),
        tags={str(key): str(value) for key, value in (record.get("tags") or {}).items()},
    )


def view(content: Record) -> ViewFields:
    """The instance view. KeyError, TypeError or ValueError if it is none."""
    power = state = code = message = ""
    for status in content["statuses"]:
        text = str(status["code"])
        if text.startswith(_POWER):
            power = text.removeprefix(_POWER).lower()
        elif text.startswith(_PROVISIONING):
            # Such as ProvisioningState/failed/AllocationFailed.
            state, _, code = text.removeprefix(_PROVISIONING).partition("/")
            message = str(status.get("message") or "")
    failed = state.lower() in _FAILED
    return ViewFields(power=power, failed=failed, code=code, message=message)


def state_of(machine: VmFields, seen: ViewFields | None) -> InstanceState:
    """The machine's state. ``seen``: its instance view, if ``needs_view``."""
    if not machine.needs_view or seen is None:
        # A machine in a state that we do not know is not lost.
        return _STATES.get(machine.provisioning, InstanceState.RUNNING)
    if seen.power == "running":
        # "Failed" may mean that an update failed, or that the start took longer than Azure waits.
        return InstanceState.RUNNING
    if STOPPED_TAG in machine.tags:
        # "stopped": the guest shut down by itself. It still costs as much as a running machine.
        return _POWER_STATES.get(seen.power, InstanceState.RUNNING)
    return InstanceState.STOPPING if has_failed(machine, seen) else InstanceState.RUNNING


def has_failed(machine: VmFields, seen: ViewFields | None) -> bool:
    """Whether the machine never came up, and never will. "Failed" alone does not say so: a failed
    extension leaves it on a machine that runs. The view may lack the power state of such a machine
    now and then (https://learn.microsoft.com/azure/virtual-machines/states-billing). So without the
    state only a code counts with which Azure refuses a start.
    """
    if not machine.failed or STOPPED_TAG in machine.tags or seen is None:
        return False
    if seen.power in _OFF:
        return True
    return seen.power == "" and kind_of_code(seen.code, seen.message) in (CapacityError, QuotaError)


def instance(
    machine: VmFields, seen: ViewFields | None, address: str | None, settings: AzureCloud
) -> Instance:
    """The VM as a machine. Its tags have the type, zone and market as which it was bought."""
    launched = {} if machine.created is None else {"launched": machine.created}
    state = state_of(machine, seen)
    return machine_of(machine.name, machine.tags, settings, state, address, **launched)
