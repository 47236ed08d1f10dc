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
    """Return the actions for stopped machines; none while the cloud's list is in doubt."""
    if view.listed is None or listing.doubt:
        return
    serving = served(view)
    for machine in view.stopped:
        state = listing.states.get(machine.id)
        if state is None:
            if machine.missed_listings >= patience.max_missed_listings:
                cause = NotListed(missed_listings=machine.missed_listings, was_stopped=True)
                yield NoteMissing(machine=machine.id, cause=cause)
        # The ledger records a start before we call the cloud, so this start was not ours.
        elif state in STANDING:
            yield from _started_by_others(view, machine, serving)
        elif state in OFF and machine.unwanted:
            yield EndStopped(
                machine=machine.id, cause=StoppedMachineUnwanted(cause=machine.unwanted)
            )


def _started_by_others(
    view: CloudView, machine: StoppedInstance, serving: Container[str]
) -> Iterable[Action]:
    node = view.nodes.get(machine.node)
    if node is not None and is_unneeded(node):
        yield EndStopped(machine=machine.id, cause=NodePoweredDown(was_stopped=True))
    # If another machine serves the node, this one is left to the rule for two machines of a node.
    elif node is not None and phase(node) is Phase.UP and machine.node not in serving:
        yield RunsAgain(machine=machine.id, cause=StartedByOthers())
