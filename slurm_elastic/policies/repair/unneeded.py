"""Machines that Slurm no longer needs, found from its nodes and a cloud's list alone, without the
ledger. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set

from msgspec import Struct

from slurm_elastic.model.causes.machine_ends import NodePoweredDown
from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.actions import TerminateOrphan
from slurm_elastic.policies.nodes.node_state import is_unneeded
from slurm_elastic.policies.repair.inventory import cap

_ENDING = (InstanceState.STOPPING, InstanceState.TERMINATED)


class Bound(Struct, frozen=True, kw_only=True):
    """The time (s) and the number of looks in a row after which an unneeded machine may end."""

    seconds: float
    rounds: int = 3


class Standing(Struct, frozen=True, kw_only=True):
    """Since when (monotonic s), and in how many looks in a row, a machine has been unneeded."""

    since: float
    rounds: int = 1


class Unneeded(Struct, frozen=True, kw_only=True):
    """``ready``: end these now. ``deferred_count``: how many the cap leaves for the next look.
    ``unneeded_since``: pass this to the next look as ``before``.
    """

    ready: tuple[TerminateOrphan, ...]
    deferred_count: int
    unneeded_since: Mapping[str, Standing]


def overdue(
    nodes: Mapping[str, SlurmNode],
    busy: Container[str],
    listed: Sequence[Instance],
    before: Mapping[str, Standing],
    now: float,
    bound: Bound,
) -> Unneeded:
    """Return the listed machines unneeded for ``bound``.

    A machine is unneeded if its node is, and no job is on the node (``busy``). A machine that was
    needed in one look starts over. One look ends no more machines than repair may end in a round.
    """
    at_work = _at_work(nodes)
    unneeded_machines = [
        machine
        for machine in listed
        if machine.state is not InstanceState.TERMINATED
        # A node that Slurm does not list proves nothing, so its machine stays.
        and machine.node in nodes
        and machine.node not in busy
        and is_unneeded(nodes[machine.node])
        and machine.address not in at_work
    ]
    # Rebuilt at each look, so that a machine that was needed once starts over.
    standing = {machine.id: _next(before.get(machine.id), now) for machine in unneeded_machines}
    ready = [
        TerminateOrphan(
            machine=machine.id, cause=NodePoweredDown(for_s=round(now - standing_since.since))
        )
        for machine in unneeded_machines
        if now - (standing_since := standing[machine.id]).since >= bound.seconds
        and standing_since.rounds >= bound.rounds
    ]
    # Machines that already end must not raise the cap.
    limit = cap(sum(machine.state not in _ENDING for machine in listed))
    return Unneeded(
        ready=tuple(ready[:limit]),
        deferred_count=max(len(ready) - limit, 0),
        unneeded_since=standing,
    )


def _at_work(nodes: Mapping[str, SlurmNode]) -> Set[str]:
    """Addresses of exactly one cloud node each, which is in use. The machine at such an address
    serves that node, whatever its tags say, because many people can change tags. (On one host all
    nodes share an address.)
    """
    nodes_by_address: dict[str, list[SlurmNode]] = {}
    for node in nodes.values():
        nodes_by_address.setdefault(node.address, []).append(node)
    return {
        address
        for address, address_nodes in nodes_by_address.items()
        if address
        and len(address_nodes) == 1
        and "CLOUD" in address_nodes[0].states
        and not is_unneeded(address_nodes[0])
    }


def _next(before: Standing | None, now: float) -> Standing:
    if before is None:
        return Standing(since=now)
    return Standing(since=before.since, rounds=before.rounds + 1)
