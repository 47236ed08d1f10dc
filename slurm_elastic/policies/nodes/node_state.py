"""Where a cloud node stands in its life, read off Slurm's state words. Pure."""

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
    """A cloud node's life (power_save.html): powered down, up, and the two ways between."""

    POWERED_DOWN = "powered down"
    POWERING_UP = "powering up"
    UP = "up"
    POWERING_DOWN = "powering down"


def phase(node: SlurmNode) -> Phase:
    """The phase of ``node``, by the flags slurmctld sets (measured on 22.05 to 26.05)."""
    return _phase(node.states)


@functools.lru_cache(maxsize=1024)
def _phase(states: frozenset[str]) -> Phase:
    """Tens of thousands of nodes have few of them."""
    # First: a node that is asked for again while it goes down is wanted up.
    if states & {"POWERING_UP", "POWER_UP"}:
        return Phase.POWERING_UP
    # On a busy node (``allocated!``) POWER_DOWN only announces what follows its jobs: it is up.
    if "POWERING_DOWN" in states or ("POWER_DOWN" in states and not states & _BUSY):
        return Phase.POWERING_DOWN
    if "POWERED_DOWN" in states:
        return Phase.POWERED_DOWN
    return Phase.UP


def is_down(node: SlurmNode) -> bool:
    """Base state DOWN: Slurm has given the node up."""
    return "DOWN" in node.states


def is_answering(node: SlurmNode) -> bool:
    """Up, and somebody answers slurmctld's pings at its address."""
    silent = is_down(node) or "NOT_RESPONDING" in node.states
    return phase(node) is Phase.UP and not silent


def may_take_jobs(node: SlurmNode) -> bool:
    """Up, and nobody keeps jobs off it."""
    return phase(node) is Phase.UP and not is_down(node) and not is_drained(node)


def is_drained(node: SlurmNode) -> bool:
    """The flags DRAIN or FAIL: no new jobs."""
    return not node.states.isdisjoint(_DRAINED)


def is_rebooting(node: SlurmNode) -> bool:
    """A person has ordered a reboot, and slurmd is not back: slurmctld has it DOWN until then."""
    return not node.states.isdisjoint(_REBOOTS)


def is_allocated(node: SlurmNode) -> bool:
    """Slurm has given it to a job, or has forgotten that the job is over: by its state alone."""
    return not node.states.isdisjoint(_ALLOCATED)


def is_busy(node: SlurmNode) -> bool:
    """Some job holds the node (COMPLETING counts: its processes may still run)."""
    return not node.states.isdisjoint(_BUSY)


def is_unneeded(node: SlurmNode) -> bool:
    """Whether no job is on the node's machine, nor will be: Slurm has powered the node down."""
    return phase(node) is Phase.POWERED_DOWN and not is_busy(node)


def has_name_alone(node: SlurmNode) -> bool:
    """Whether the node is off, and slurmctld would look up its name for its address."""
    return node.address == node.name and phase(node) is Phase.POWERED_DOWN


def is_anothers_address(
    node: SlurmNode, machines: Collection[Instance], nodes: Collection[SlurmNode] = ()
) -> bool:
    """Whether another node, or machine of ours, has the address of ``node``, which is lost, by now.

    slurmctld tells a node that goes DOWN to kill its jobs, which would reach that machine, and the
    very job if it runs there by then; and its answer has slurmctld take the node for one that is
    back (22.05). A lost node whose address nobody has keeps it for this order, as a machine that
    cannot be seen, but runs, has to hear it; it is set to nowhere with the next round ("clear").
    """
    return node.name in at_anothers_address(machines, (node, *nodes))


def at_anothers_address(
    machines: Collection[Instance], nodes: Collection[SlurmNode]
) -> frozenset[str]:
    """All nodes of which ``is_anothers_address`` is true. On one host each has a port of its own; a
    machine has its node's, and any where that is not among ``nodes``.
    """
    ports = {node.name: node.port for node in nodes}
    holders: dict[tuple[str, int | None], set[str]] = {}
    for node in nodes:
        holders.setdefault((node.address, node.port), set()).add(node.name)
    for machine in machines:
        place = (machine.address or "", ports.get(machine.node))
        holders.setdefault(place, set()).add(machine.node)
    return frozenset(
        node.name
        for node in nodes
        if node.address
        and (
            len(holders[node.address, node.port]) > 1
            or not holders.get((node.address, None), set()) <= {node.name}
        )
    )
