"""Where a cloud node is in its life, read from its states in Slurm. Pure."""

from __future__ import annotations

import functools
from collections.abc import Collection
from enum import Enum

from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.slurm import SlurmNode

_ALLOCATED = frozenset({"ALLOCATED", "MIXED"})
_DRAINED = frozenset({"DRAIN", "FAIL", "FAILING"})
_REBOOTS = frozenset({"REBOOT_ISSUED", "REBOOT_REQUESTED"})
_BUSY = _ALLOCATED | {"COMPLETING"}


class Phase(Enum):
    """The life of a cloud node (power_save.html): powered down, up, and the two transitions."""

    POWERED_DOWN = "powered down"
    POWERING_UP = "powering up"
    UP = "up"
    POWERING_DOWN = "powering down"


def phase(node: SlurmNode) -> Phase:
    """Return the phase of ``node`` according to slurmctld's flags (measured on 22.05 to 26.05)."""
    return _phase(node.states)


@functools.lru_cache(maxsize=1024)
def _phase(states: frozenset[str]) -> Phase:
    """Cached: tens of thousands of nodes have only few different sets of states."""
    # First, because a node that is requested again while it powers down has both flags, and Slurm
    # wants it up.
    if states & {"POWERING_UP", "POWER_UP"}:
        return Phase.POWERING_UP
    # On a busy node (``allocated!``) POWER_DOWN takes effect only after its jobs, so the node is
    # up.
    if "POWERING_DOWN" in states or ("POWER_DOWN" in states and not states & _BUSY):
        return Phase.POWERING_DOWN
    if "POWERED_DOWN" in states:
        return Phase.POWERED_DOWN
    return Phase.UP


def is_down(node: SlurmNode) -> bool:
    """Whether Slurm has given the node up (base state DOWN)."""
    return "DOWN" in node.states


def is_answering(node: SlurmNode) -> bool:
    """Whether the node is up and a slurmd at its address answers slurmctld's pings."""
    # slurmctld sets NOT_RESPONDING first, and DOWN only after SlurmdTimeout.
    silent = is_down(node) or "NOT_RESPONDING" in node.states
    return phase(node) is Phase.UP and not silent


def may_take_jobs(node: SlurmNode) -> bool:
    """Whether the node is up and neither DOWN nor drained."""
    return phase(node) is Phase.UP and not is_down(node) and not is_drained(node)


def is_drained(node: SlurmNode) -> bool:
    """Whether a flag keeps new jobs from the node: DRAIN or FAIL."""
    return not node.states.isdisjoint(_DRAINED)


def is_leaving(node: SlurmNode) -> bool:
    """Whether the node takes no new job and powers down after its jobs."""
    return not node.states.isdisjoint({"POWER_DOWN", "POWERING_DOWN"})


def is_rebooting(node: SlurmNode) -> bool:
    """Whether a person has ordered a reboot and slurmd is not back yet; slurmctld has the node DOWN
    until then.
    """
    return not node.states.isdisjoint(_REBOOTS)


def is_allocated(node: SlurmNode) -> bool:
    """Whether the node's state says that a job has it. A slurmctld that forgot the end of the job
    leaves the state behind.
    """
    return not node.states.isdisjoint(_ALLOCATED)


def is_busy(node: SlurmNode) -> bool:
    """Whether a job holds the node. COMPLETING counts: processes of the job may still run."""
    return not node.states.isdisjoint(_BUSY)


def is_unneeded(node: SlurmNode) -> bool:
    """Whether no job is or will be on the node's machine: Slurm has powered the node down."""
    return phase(node) is Phase.POWERED_DOWN and not is_busy(node)


def has_name_alone(node: SlurmNode) -> bool:
    """Whether the node is off and slurmctld would look up its name to get its address."""
    return node.address == node.name and phase(node) is Phase.POWERED_DOWN


def is_anothers_address(
    node: SlurmNode, machines: Collection[Instance], nodes: Collection[SlurmNode] = ()
) -> bool:
    """Whether the address of ``node``, which is lost, now belongs to another node or to another
    node's machine.

    slurmctld orders a node that goes DOWN to kill its jobs. The order would reach the other
    machine, and would kill the very job if it now runs there. The other machine's answer also makes
    slurmctld believe that the lost node is back (22.05). If no other node has the address, the lost
    node keeps it, because a machine that we cannot see may still run and must get the order. The
    next round sets the address to nowhere ("clear").
    """
    return node.name in at_anothers_address(machines, (node, *nodes))


def at_anothers_address(
    machines: Collection[Instance], nodes: Collection[SlurmNode]
) -> frozenset[str]:
    """Return all nodes for which ``is_anothers_address`` is true. On one host each node has its own
    port. A machine has the port of its node, and any port if the node is not among ``nodes``.
    """
    ports = {node.name: node.port for node in nodes}
    nodes_by_place: dict[tuple[str, int | None], set[str]] = {}
    for node in nodes:
        nodes_by_place.setdefault((node.address, node.port), set()).add(node.name)
    for machine in machines:
        place = (machine.address or "", ports.get(machine.node))
        nodes_by_place.setdefault(place, set()).add(machine.node)
    return frozenset(
        node.name
        for node in nodes
        if node.address
        and (
            len(nodes_by_place[node.address, node.port]) > 1
            # A machine of an unknown port may be at this node's port.
            or not nodes_by_place.get((node.address, None), set()) <= {node.name}
        )
    )
