"""The repairs that stopped machines call for. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable

from slurm_elastic.model.causes.composed import StoppedMachineUnwanted
from slurm_elastic.model.causes.machine_ends import (
    NodePoweredDown,
    NotListed,
)
from slurm_elastic.model.causes.repairs import StartedByOthers
from slurm_elastic.model.cluster import OFF, STANDING
from slurm_elastic.policies.actions import Action, EndStopped, NoteMissing, RunsAgain
from slurm_elastic.policies.nodes.node_state import Phase, is_unneeded, phase
from slurm_elastic.policies.repair.cloud_view import CloudView, StoppedInstance, Thresholds
from slurm_elastic.policies.repair.inventory import InventoryReport, served


def stopped_ones(
    view: CloudView, patience: Thresholds, listing: InventoryReport
) -> Iterable[Action]:
    """The actions that stopped machines call for; none are touched while the cloud's list is in
    doubt.
    """
    if view.seen is None or listing.doubt:
        return
    serving = served(view)
    for one in view.stopped:
        state = listing.states.get(one.id)
        if state is None:
            if one.misses >= patience.misses:
                cause = NotListed(times=one.misses, was_stopped=True)
                yield NoteMissing(machine=one.id, cause=cause)
        elif state in STANDING:
            yield from _started_by_others(view, one, serving)
        elif state in OFF and one.unwanted:
            yield EndStopped(machine=one.id, cause=StoppedMachineUnwanted(because=one.unwanted))


def _started_by_others(
    view: CloudView, one: StoppedInstance, serving: Container[str]
) -> Iterable[Action]:
    node = view.nodes.get(one.node)
    if node is not None and is_unneeded(node):
        yield EndStopped(machine=one.id, cause=NodePoweredDown(was_stopped=True))
    elif node is not None and phase(node) is Phase.UP and one.node not in serving:
        yield RunsAgain(machine=one.id, cause=StartedByOthers())
