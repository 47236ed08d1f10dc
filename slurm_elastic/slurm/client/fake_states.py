"""The effect of a command on a node or a job, for the Slurm in memory."""

from __future__ import annotations

from typing import Any

import msgspec

from slurm_elastic.model.slurm import SlurmJob, SlurmNode

POWER_STATES = frozenset(
    {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP", "NOT_RESPONDING"}
)
SLURM_USER = "slurm"
"""The user in whose name our services change nodes."""
BASE_STATES = frozenset({"IDLE", "ALLOCATED", "MIXED", "DOWN", "COMPLETING", "UNKNOWN"})


def requeued_for(job: SlurmJob) -> str:
    """The reason of a requeued job. Slurm holds a job that a person suspended (24.11, measured)."""
    return "JobHeldAdmin" if job.is_suspended_by_person else "BeginTime"


def address_field(address: str | None) -> dict[str, Any]:
    """The address field of an update, if the command names an address."""
    return {} if address is None else {"address": address}


def with_reason(node: SlurmNode, reason: str, now: float) -> SlurmNode:
    """The node with that reason, which SlurmUser has given now. "" clears the reason."""
    user, reason_at = (SLURM_USER, now) if reason else ("", 0.0)
    return msgspec.structs.replace(node, reason=reason, reason_user=user, reason_at=reason_at)


def node_after(node: SlurmNode, state: str | None, reason: str | None, now: float) -> SlurmNode:
    """The node some time after ``scontrol update state=``, with the surprises of real Slurm:
    RESUME releases a drained node but leaves it powered down.
    """
    states = set(node.states)
    match (state or "").lower():
        case "drain":
            states.add("DRAIN")
        case "resume" | "undrain" | "idle" as how:
            if how != "idle" and "POWERED_DOWN" in states:
                states.add("NOT_RESPONDING")
            states = (states - {"DRAIN", "DOWN", "FAIL"}) | (
                {"IDLE"} if "DOWN" in states else set()
            )
            reason = reason or ""
        case "down":
            states = (states - BASE_STATES) | {"DOWN"}
        # Powering down also clears a DRAIN in real Slurm (measured on 22.05).
        case "power_down" | "power_down_asap" | "power_down_force":
            states = (states - POWER_STATES - BASE_STATES - {"DRAIN"}) | {"IDLE", "POWERED_DOWN"}
        case "power_up":
            states = (states - POWER_STATES) | {"POWERING_UP"}
    changed = msgspec.structs.replace(node, states=frozenset(states))
    return changed if reason is None else with_reason(changed, reason, now)
