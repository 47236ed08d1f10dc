"""Rows of the table of repairs (``reconcile_rules``) for open launches, and for machines that the
ledger lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_elastic.model.causes.repairs import (
    MachinesOfLaunch,
    NothingLaunched,
    StillWanted,
    TagsOfCluster,
)
from slurm_elastic.model.cluster import OFF, Instance, InstanceState
from slurm_elastic.policies.actions import Abandon, Action, Adopt, AdoptStopped, Confirm, Retry
from slurm_elastic.policies.nodes.node_state import Phase
from slurm_elastic.policies.repair.cloud_view import CloudView, Intent, Thresholds
from slurm_elastic.policies.repair.inventory import standing

_Found = Mapping[str, Sequence[Instance]]
"""By the generation of each open launch, the machines of it that are there."""


def of_launches(view: CloudView, patience: Thresholds) -> list[Action]:
    """Machines that the ledger lacks are taken in first, then the open launches are settled."""
    if view.seen is None:
        return []
    found: dict[str, list[Instance]] = {i.generation: [] for i in view.intents}
    for instance in view.seen:
        if instance.generation in found:
            found[instance.generation].append(instance)
    intents = (_intent(view, i, found, patience) for i in view.intents)
    return [*_adoptions(view, found), *(action for action in intents if action is not None)]


def _adoptions(view: CloudView, found: _Found) -> list[Action]:
    known = {m.id for m in view.known} | {m.id for m in view.stopped}
    # Of a launch that is confirmed they are taken in with it. Those of one that is asked once more
    # may be gone before it answers.
    confirmed = {
        i.generation
        for i in view.intents
        if {one.node for one in found[i.generation]}.issuperset(i.nodes)
    }
    return [
        (AdoptStopped if instance.state in OFF else Adopt)(
            machine=instance.id,
            cause=TagsOfCluster(node=instance.node),
        )
        for instance in view.seen or ()
        if instance.id not in known
        and instance.generation not in confirmed
        and instance.state is not InstanceState.TERMINATED
    ]


def _intent(view: CloudView, intent: Intent, found: _Found, patience: Thresholds) -> Action | None:
    some = found[intent.generation]
    left = set(intent.nodes) - {i.node for i in some}
    others = standing(view) | {n for i in view.intents if i is not intent for n in i.nodes}
    # The ledger lacked them when this was decided: its file was lost, or a list had not all.
    served = sorted(left & others)
    if some:
        # For a launch that took effect the same call tells what else there is, and starts nothing.
        kind = Confirm if not left or served else Retry
        return kind(generation=intent.generation, cause=MachinesOfLaunch(count=len(some)))
    wanted = [n for n in intent.nodes if view.phase(n) is Phase.POWERING_UP]
    if wanted and not served:
        return Retry(generation=intent.generation, cause=StillWanted(count=len(wanted)))
    age = view.now - intent.created
    if age < patience.visibility:
        return None
    cause = NothingLaunched(age_s=round(age), served=served[0] if served else "")
    return Abandon(generation=intent.generation, cause=cause)
