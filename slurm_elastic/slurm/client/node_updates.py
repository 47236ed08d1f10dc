"""The only place that changes Slurm's nodes: one ``scontrol update`` a call, whatever its count.

Each function is one of the changes that slurm-elasticd and slurm-elastic-ckptman make, in the words
of scontrol(1) and of Slurm's power saving guide (power_save.html). ``nodes`` are node names. Each
raises SlurmError where slurmctld refuses or does not answer; some nodes may be changed then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import NOWHERE, SlurmNode

_IN_USE = frozenset({"ALLOCATED", "MIXED", "COMPLETING", "POWERING_UP", "POWER_UP"})


def drain(slurm: Slurm, nodes: Sequence[str], reason: str) -> None:
    """No new jobs; those that run there go on."""
    slurm.update_nodes(nodes, state="DRAIN", reason=reason)


def return_to_service(slurm: Slurm, nodes: Iterable[SlurmNode]) -> None:
    """End DRAIN and DOWN, of nodes as they were read just now. One that is in service already stays
    so.
    """
    # RESUME leaves a powered-down node NOT_RESPONDING, and once slurmctld has started anew it gets
    # no job any more (22.05 to 25.11, measured).
    by_state: dict[str, list[str]] = {"IDLE": [], "RESUME": []}
    for node in nodes:
        is_off = "POWERED_DOWN" in node.states and not node.states & _IN_USE
        by_state["IDLE" if is_off else "RESUME"].append(node.name)
    for state, names in by_state.items():
        if names:
            slurm.update_nodes(names, state=state)


def set_reason(slurm: Slurm, nodes: Sequence[str], reason: str) -> None:
    """Change the reason alone, as of a drain whose cause is another one by now."""
    slurm.update_nodes(nodes, reason=reason)


def set_down(
    slurm: Slurm, nodes: Sequence[str], reason: str, *, address: str | None = None
) -> None:
    """Have Slurm requeue the nodes' jobs now, not at SlurmdTimeout. ``address`` becomes NodeAddr
    before, where the order to kill these jobs must not reach who has the old one.
    """
    slurm.update_nodes(nodes, state="DOWN", reason=reason, address=address)


def power_up(slurm: Slurm, nodes: Sequence[str]) -> None:
    """Have slurmctld call ResumeProgram for nodes that no job waits for."""
    slurm.update_nodes(nodes, state="POWER_UP")


def power_down(slurm: Slurm, nodes: Sequence[str]) -> None:
    """Have slurmctld call SuspendProgram when the nodes' jobs have ended."""
    slurm.update_nodes(nodes, state="POWER_DOWN")


def power_down_from_nowhere(slurm: Slurm, nodes: Sequence[str]) -> None:
    """The same for nodes that are down: nothing that slurmctld still has to say reaches anybody."""
    slurm.update_nodes(nodes, state="POWER_DOWN", address=NOWHERE)


def power_down_when_idle(slurm: Slurm, nodes: Sequence[str], reason: str | None = None) -> None:
    """The same, and no new job meanwhile (``POWER_DOWN_ASAP``)."""
    slurm.update_nodes(nodes, state="POWER_DOWN_ASAP", reason=reason)


def power_down_by_force(slurm: Slurm, nodes: Sequence[str], reason: str) -> None:
    """Give up nodes that power up: their jobs are requeued within 0.1 s (22.05 to 26.05)."""
    # With an address, or slurmctld looks the names of the nodes up with its configuration locked,
    # for up to 10 s.
    slurm.update_nodes(nodes, state="POWER_DOWN_FORCE", reason=reason, address=NOWHERE)


def set_weights(slurm: Slurm, weights: Mapping[str, int]) -> None:
    """By node; slurmctld prefers nodes of less weight."""
    slurm.set_weights(weights)


def set_addresses(slurm: Slurm, addresses: Mapping[str, str]) -> None:
    """NodeAddr by node."""
    slurm.set_addresses(addresses)
