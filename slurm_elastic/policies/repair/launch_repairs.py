"""Rows of the table of repairs (``reconcile_rules``) for open launches, and for machines that the
ledger lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from slurm_elastic.model.causes.repairs import (
    MachinesOfLaunch,
    NothingLaunched,
    StillWanted,
    TagsOfCluster,
)
from slurm_elastic.model.cluster import OFF, Instance, InstanceState
from slurm_elastic.policies.actions import Abandon, Action, Adopt, AdoptStopped, Confirm, Retry
from slurm_elastic.policies.clock_guard import age
from slurm_elastic.policies.nodes.node_state import Phase
from slurm_elastic.policies.repair.cloud_view import CloudView, Intent, Thresholds
from slurm_elastic.policies.repair.inventory import standing

_MachinesByLaunch = Mapping[str, Sequence[Instance]]
"""The listed machines of each open launch, by its generation."""


def repair_launches(view: CloudView, patience: Thresholds) -> list[Action]:
    """Return first the adoptions of machines that the ledger lacks, then the actions for open
    launches. The adopted machines must have rows before a launch is settled by them.
    """
    if view.listed is None:
        return []
    machines_by_launch: dict[str, list[Instance]] = {i.generation: [] for i in view.intents}
    for instance in view.listed:
        if instance.generation in machines_by_launch:
            machines_by_launch[instance.generation].append(instance)
    intent_actions = (_settle(view, i, machines_by_launch, patience) for i in view.intents)
    return [
        *_adoptions(view, machines_by_launch),
        *(action for action in intent_actions if action is not None),
    ]


def _adoptions(view: CloudView, machines_by_launch: _MachinesByLaunch) -> list[Action]:
    ledger_ids = {m.id for m in view.tracked} | {m.id for m in view.stopped}
    # A confirmed launch brings its machines with it. The machines of a retried launch are adopted
    # here, because they may be gone before the retry is answered.
    confirmed = {
        i.generation
        for i in view.intents
        if {machine.node for machine in machines_by_launch[i.generation]}.issuperset(i.nodes)
    }
    return [
        # A stopped machine must not count as a running machine.
        (AdoptStopped if instance.state in OFF else Adopt)(
            machine=instance.id,
            cause=TagsOfCluster(node=instance.node),
        )
        for instance in view.listed or ()
        if instance.id not in ledger_ids
        and instance.generation not in confirmed
        and instance.state is not InstanceState.TERMINATED
    ]


def _settle(
    view: CloudView, intent: Intent, machines_by_launch: _MachinesByLaunch, patience: Thresholds
) -> Action | None:
    machines = machines_by_launch[intent.generation]
    lacking_nodes = set(intent.nodes) - {i.node for i in machines}
    served_nodes = standing(view) | {n for i in view.intents if i is not intent for n in i.nodes}
    # These nodes had no machine when the launch was decided, as far as the ledger knew: its file
    # was lost, or a list was incomplete. To retry would give them a second machine.
    served_by_others = sorted(lacking_nodes & served_nodes)
    awaited_nodes = [n for n in lacking_nodes if view.phase(n) is Phase.POWERING_UP]
    lapse = _find_lapse(view, intent, patience, served_by_others)
    if machines:
        # The launch took effect. A retry with its token starts nothing new; the cloud only reports
        # which machines exist. If Slurm no longer waits for the others, the list is enough.
        is_whole = not lacking_nodes or served_by_others or (lapse and not awaited_nodes)
        kind = Confirm if is_whole else Retry
        return kind(generation=intent.generation, cause=MachinesOfLaunch(count=len(machines)))
    if awaited_nodes and not served_by_others:
        still_wanted = StillWanted(count=len(awaited_nodes))
        return Retry(generation=intent.generation, cause=still_wanted, lapse=lapse)
    return Abandon(generation=intent.generation, cause=lapse) if lapse else None


def _find_lapse(
    view: CloudView, intent: Intent, patience: Thresholds, served_by_others: Sequence[str]
) -> NothingLaunched | None:
    """Return why a launch without listed machines counts as failed; None if one of its machines may
    still appear in the list.
    """
    # An unknown age counts as long, or the launch would keep its nodes from others for as long as
    # the clock was set back. A machine that appears later is adopted, and ended as unneeded.
    age_s = age(intent.created, view.now)
    if age_s < patience.invisible_launch_s:
        return None
    return NothingLaunched(
        age_s=round(age_s) if isfinite(age_s) else None,
        served=served_by_others[0] if served_by_others else "",
    )
