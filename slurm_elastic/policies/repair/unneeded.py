"""Machines that Slurm needs no more, told by its nodes and the list of a cloud alone. Pure."""

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
    """For how long (s), and in how many looks in a row, a machine must not have been needed."""

    seconds: float
    looks: int = 3


class Standing(Struct, frozen=True, kw_only=True):
    """Since when (monotonic), and in how many looks in a row by now."""

    since: float
    looks: int = 1


class Unneeded(Struct, frozen=True, kw_only=True):
    """``ready`` may be ended now; ``waiting`` are so many that the cap leaves for the next look.
    ``standing`` is to be given to the next look.
    """

    ready: tuple[TerminateOrphan, ...]
    waiting: int
    standing: Mapping[str, Standing]


def overdue(
    nodes: Mapping[str, SlurmNode],
    busy: Container[str],
    seen: Sequence[Instance],
    before: Mapping[str, Standing],
    now: float,
    bound: Bound,
) -> Unneeded:
    """The machines of a cloud's list (``seen``) whose node is unneeded, with no job on it
    (``busy``), and has been for ``bound``. What was needed in one look starts anew. No look ends
    more than repair may in a round.
    """
    at_work = _at_work(nodes)
    found = [
        one
        for one in seen
        if one.state is not InstanceState.TERMINATED
        # One that Slurm does not list is a doubt, and stays.
        and one.node in nodes
        and one.node not in busy
        and is_unneeded(nodes[one.node])
        and one.address not in at_work
    ]
    standing = {one.id: _next(before.get(one.id), now) for one in found}
    ready = [
        TerminateOrphan(machine=one.id, cause=NodePoweredDown(for_s=round(now - at.since)))
        for one in found
        if now - (at := standing[one.id]).since >= bound.seconds and at.looks >= bound.looks
    ]
    # Machines that already end must not raise the cap.
    most = cap(sum(one.state not in _ENDING for one in seen))
    return Unneeded(ready=tuple(ready[:most]), waiting=max(len(ready) - most, 0), standing=standing)


def _at_work(nodes: Mapping[str, SlurmNode]) -> Set[str]:
    """Addresses at which Slurm has one cloud node alone, in use: a machine there serves that node,
    whatever its tags say, which anybody may have changed. On one host all nodes have one address.
    """
    at: dict[str, list[SlurmNode]] = {}
    for node in nodes.values():
        at.setdefault(node.address, []).append(node)
    return {
        address
        for address, there in at.items()
        if address and len(there) == 1 and "CLOUD" in there[0].states and not is_unneeded(there[0])
    }


def _next(before: Standing | None, now: float) -> Standing:
    if before is None:
        return Standing(since=now)
    return Standing(since=before.since, looks=before.looks + 1)
