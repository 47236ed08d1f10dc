"""The only place that changes Slurm's nodes. One call is one ``scontrol update``, for any number.

Each function makes one change for slurm-elasticd or slurm-elastic-ckptman, in the terms of
scontrol(1) and of Slurm's power saving guide (power_save.html). ``nodes`` are node names. Each
raises SlurmError if slurmctld refuses or does not answer. Some nodes may be changed even so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import NOWHERE, SlurmNode

_IN_USE = frozenset({"ALLOCATED", "MIXED", "COMPLETING", "POWERING_UP", "POWER_UP"})


def drain(slurm: Slurm, nodes: Sequence[str], reason: str) -> None:
    """Let the nodes take no new jobs. Running jobs continue."""
    slurm.update_nodes(nodes, state="DRAIN", reason=reason)


def return_to_service(slurm: Slurm, nodes: Iterable[SlurmNode]) -> None:
    """End DRAIN and DOWN of nodes that were read just now. Nodes in service stay in service."""
    # RESUME makes a powered-down node NOT_RESPONDING, and after a restart of slurmctld it gets no
    # more jobs (22.05 to 25.11, measured). IDLE does not.
    by_state: dict[str, list[str]] = {"IDLE": [], "RESUME": []}
    for node in nodes:
        is_off = "POWERED_DOWN" in node.states and not node.states & _IN_USE
        by_state["IDLE" if is_off else "RESUME"].append(node.name)
    for state, names in by_state.items():
        if names:
            slurm.update_nodes(names, state=state)


def set_reason(slurm: Slurm, nodes: Sequence[str], reason: str) -> None:
    """Change only the reason, for example if a drain has another cause now."""
    slurm.update_nodes(nodes, reason=reason)


def set_down(
    slurm: Slurm, nodes: Sequence[str], reason: str, *, address: str | None = None
) -> None:
    """Make Slurm requeue the nodes' jobs now and not after SlurmdTimeout.

    ``address`` becomes NodeAddr first: slurmctld sends the nodes an order to kill these jobs, which
    must not reach a new machine at the old address.
    """
    # On 22.05 DOWN has no effect on a powering-up node. On 24.11 and 26.05 its jobs are requeued
    # within 0.1 s (measured).
    slurm.update_nodes(nodes, state="DOWN", reason=reason, address=address)


def power_up(slurm: Slurm, nodes: Sequence[str]) -> None:
    """Make slurmctld call ResumeProgram for nodes that no job waits for."""
    slurm.update_nodes(nodes, state="POWER_UP")


def keep_idle(slurm: Slurm, nodes: Sequence[str]) -> None:
    """Make slurmctld count SuspendTime from now on for nodes that were up and idle just now."""
    # IDLE sets LastBusyTime, and is refused for a node with a job (22.05 and 25.11, measured). It
    # ends DRAIN and FAIL, and deletes the reason (22.05, measured).
    slurm.update_nodes(nodes, state="IDLE")


def power_down(slurm: Slurm, nodes: Sequence[str]) -> None:
    """Make slurmctld call SuspendProgram when the nodes' jobs have ended."""
    # This clears a DRAIN, and so does POWER_DOWN_ASAP (measured). To keep jobs off the node, drain
    # it again after it has powered down.
    slurm.update_nodes(nodes, state="POWER_DOWN")


def power_down_from_nowhere(slurm: Slurm, nodes: Sequence[str]) -> None:
    """Power down nodes that are down. Later messages of slurmctld to them reach no machine."""
    slurm.update_nodes(nodes, state="POWER_DOWN", address=NOWHERE)


def power_down_when_idle(slurm: Slurm, nodes: Sequence[str], reason: str | None = None) -> None:
    """Power down the nodes when their jobs have ended, and start no new job on them
    (``POWER_DOWN_ASAP``).
    """
    slurm.update_nodes(nodes, state="POWER_DOWN_ASAP", reason=reason)


def power_down_by_force(slurm: Slurm, nodes: Sequence[str], reason: str) -> None:
    """Give up nodes that power up. Their jobs are requeued within 0.1 s (22.05 to 26.05)."""
    # With an address, because without one slurmctld looks the nodes' names up while it has its
    # configuration locked, for up to 10 s.
    slurm.update_nodes(nodes, state="POWER_DOWN_FORCE", reason=reason, address=NOWHERE)


def set_weights(slurm: Slurm, weights: Mapping[str, int]) -> None:
    """Set weights by node. slurmctld prefers nodes of lower weight."""
    slurm.set_weights(weights)


def set_addresses(slurm: Slurm, addresses: Mapping[str, str]) -> None:
    """Set NodeAddr by node."""
    slurm.set_addresses(addresses)
