"""The repairs that stopped machines call for. Pure."""

from __future__ import annotations

from slurm_elastic.model.causes.composed import StoppedMachineUnwanted
from slurm_elastic.model.causes.machine_ends import (
    NodePoweredDown,
    NotListed,
    PoweredUpAgain,
)
from slurm_elastic.model.causes.repairs import StartedByOthers
from slurm_elastic.policies.actions import Action, EndStopped, NoteMissing, RunsAgain
from slurm_elastic.policies.nodes.node_state import Phase
from slurm_elastic.policies.repair.cloud_view import CloudView, StoppedInstance, Thresholds


def missing_stopped(machine: StoppedInstance, patience: Thresholds) -> Action | None:
    """The action for a stopped machine that the list lacks."""
    if machine.missed_listings < patience.max_missed_listings:
        return None
    cause = NotListed(missed_listings=machine.missed_listings, was_stopped=True)
    return NoteMissing(machine=machine.id, cause=cause)


def off(machine: StoppedInstance) -> Action | None:
    """The action for a stopped machine if it does not run."""
    if machine.unwanted is None:
        return None
    return EndStopped(machine=machine.id, cause=StoppedMachineUnwanted(cause=machine.unwanted))


def runs_though_stopped(view: CloudView, machine: StoppedInstance) -> Action:
    """The action for a stopped machine that runs, because the stop had no effect or a person
    started the machine. It is not our start, which the ledger records before we call the cloud.
    """
    state = view.states.get(machine.node)
    if state is not None and state.is_unneeded:
        return EndStopped(machine=machine.id, cause=NodePoweredDown(was_stopped=True))
    # No job runs on it, and a fresh machine boots or will be bought.
    if state is not None and state.phase is Phase.POWERING_UP:
        return EndStopped(machine=machine.id, cause=PoweredUpAgain())
    # The cloud charges a running machine, whatever state its node has. So it counts at its full
    # price in limits and budgets, and the rules of running machines end it if its node has another
    # machine or is not in Slurm.
    return RunsAgain(machine=machine.id, cause=StartedByOthers())
