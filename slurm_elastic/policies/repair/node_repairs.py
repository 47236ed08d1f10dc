"""Rows of the table of repairs (``reconcile_rules``) for nodes that are out of service, or that
nothing serves.
"""

from __future__ import annotations

from slurm_elastic.model.causes.repairs import (
    AllocatedWithoutJob,
    DrainOutlived,
    IllAndPoweredDown,
    MachineLost,
    NodeDown,
    NoOfferLeft,
    NotResponding,
    RequestLost,
)
from slurm_elastic.model.cluster import STANDING, InstanceState
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.model.slurm_words.node_causes import GIVEN_UP
from slurm_elastic.policies.actions import (
    Action,
    Clear,
    Disclaim,
    FailLost,
    FailNode,
    GiveBack,
    Launch,
    PowerDownAgain,
    Recycle,
    Restore,
)
from slurm_elastic.policies.nodes.node_reasons import NOTICE_MARK, OUR_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import (
    Phase,
    is_allocated,
    is_busy,
    is_down,
    is_drained,
    phase,
)
from slurm_elastic.policies.nodes.out_of_service import Ill
from slurm_elastic.policies.repair.cloud_view import CloudView
from slurm_elastic.policies.repair.inventory import is_heard, served

_GIVEN_UP = (OUR_MARK, *GIVEN_UP)
"""Reasons of a DOWN cloud node that we may clear: ours, and those slurmctld itself sets."""


def of_nodes(view: CloudView, *, hears: bool) -> list[Action]:
    has = served(view) | (_started_again(view) if view.stopped else set())
    lost = {i.node for i in view.seen or () if i.state is InstanceState.TERMINATED}
    actions: list[Action] = []
    for name, node in view.nodes.items():
        action = _by_slurm(view, node)
        # A missing answer is no missing machine.
        if action is None and view.seen is not None and name not in has and _in_order(view, node):
            action = _node(view, node, lost=name in lost, heard=hears and is_heard(view, node))
        if action is not None:
            actions.append(action)
    return actions


def _in_order(view: CloudView, node: SlurmNode) -> bool:
    """Whether Slurm has neither taken the node out of service nor given it up."""
    state = view.states[node.name]
    return state.ails is None and not state.down


def _by_slurm(view: CloudView, node: SlurmNode) -> Action | None:
    """The action for a node by Slurm's words alone."""
    state = view.states[node.name]
    if state.ails is not None:
        return _ill(node, state.ails)
    if state.down:
        return _down(node, state.phase)
    return _powered_down(node) if state.phase is Phase.POWERED_DOWN else None


def _powered_down(node: SlurmNode) -> Action | None:
    """What a slurmctld that takes over, or a RESUME, may leave of a powered-down node."""
    if is_allocated(node):
        return Disclaim(node=node.name, cause=AllocatedWithoutJob())
    if "NOT_RESPONDING" in node.states and not is_busy(node) and not is_drained(node):
        return PowerDownAgain(node=node.name, cause=NotResponding())
    return None


def _started_again(view: CloudView) -> set[str]:
    """Nodes that are up by their stopped machines, which somebody else has started."""
    running = {i.id for i in view.seen or () if i.state in STANDING}
    nodes = {one.node for one in view.stopped if one.id in running}
    return {name for name in nodes if view.phase(name) is Phase.UP}


def _node(view: CloudView, node: SlurmNode, *, lost: bool, heard: bool) -> Action | None:
    """The action for a node that nothing serves."""
    where, held = view.states[node.name].phase, node.name in view.held
    if where is Phase.POWERING_UP:
        if held:
            return GiveBack(node=node.name, cause=NoOfferLeft())
        return Launch(node=node.name, cause=RequestLost())
    if where is Phase.POWERED_DOWN and has_mark(node, NOTICE_MARK) and is_drained(node):
        # Slurm powered it down just as it was drained, which ends no drain that comes later.
        return Restore(node=node.name, cause=DrainOutlived())
    if where is Phase.UP and not held and (lost or not heard):
        fail = FailLost if lost else FailNode
        return fail(node=node.name, cause=MachineLost())
    return None


def _ill(node: SlurmNode, ails: Ill) -> Action | None:
    """A node that Slurm has taken out of service gets another machine; its jobs end before that,
    unless Slurm has ended them.
    """
    where = phase(node)
    if where is Phase.POWERED_DOWN:
        return Restore(node=node.name, cause=IllAndPoweredDown(node_reason=ails.words))
    if where is not Phase.UP or (is_busy(node) and not is_down(node)):
        return None
    if "POWER_DOWN" in node.states:
        return None  # it goes
    return Recycle(node=node.name, cause=ails.cause)


def _down(node: SlurmNode, where: Phase) -> Action | None:
    """A DOWN node of ours goes back to the powered-down ones; an admin's own stays."""
    if not has_mark(node, _GIVEN_UP) or where not in (Phase.UP, Phase.POWERED_DOWN):
        return None
    action = Restore if where is Phase.POWERED_DOWN else Clear
    return action(node=node.name, cause=NodeDown(node_reason=node.reason))
