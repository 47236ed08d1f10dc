"""Rows of the table of repairs (``reconcile_rules``) for nodes out of service, or without a
machine.
"""

from __future__ import annotations

from collections.abc import Container

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
    LaunchMachine,
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
"""Reasons of a DOWN cloud node that we may clear: our own reasons and slurmctld's."""


def of_nodes(view: CloudView, *, pings_count: bool, doubted: Container[str] = ()) -> list[Action]:
    """Return at most one action per node.

    ``pings_count``: a node that answers slurmctld is evidence. ``doubted``: nodes that answer, and
    the list is not believed about them.
    """
    served_nodes = served(view) | (_started_again(view) if view.stopped else set())
    ended_nodes = {i.node for i in view.listed or () if i.state is InstanceState.TERMINATED}
    actions: list[Action] = []
    for name, node in view.nodes.items():
        action = _by_node_state(view, node)
        # Without the cloud's list a node may have a machine that we do not know.
        if (
            action is None
            and view.listed is not None
            and name not in served_nodes
            and _in_order(view, node)
        ):
            action = _unserved_node(
                view, node, lost=name in ended_nodes and name not in doubted,
                heard=pings_count and is_heard(view, node),
            )  # fmt: skip
        if action is not None:
            actions.append(action)
    return actions


def _in_order(view: CloudView, node: SlurmNode) -> bool:
    """Whether Slurm has neither taken the node out of service nor given it up."""
    state = view.states[node.name]
    return state.illness is None and not state.is_down


def _by_node_state(view: CloudView, node: SlurmNode) -> Action | None:
    """The action that follows from the node's states in Slurm alone, whatever the cloud says."""
    state = view.states[node.name]
    if state.illness is not None:
        return _ill(node, state.illness)
    if state.is_down:
        return _down(node, state.phase)
    return _powered_down(node) if state.phase is Phase.POWERED_DOWN else None


def _powered_down(node: SlurmNode) -> Action | None:
    """Correct what a new slurmctld, or a RESUME, leaves behind on a powered-down node."""
    if is_allocated(node):
        return Disclaim(node=node.name, cause=AllocatedWithoutJob())
    if "NOT_RESPONDING" in node.states and not is_busy(node) and not is_drained(node):
        return PowerDownAgain(node=node.name, cause=NotResponding())
    return None


def _started_again(view: CloudView) -> set[str]:
    """Return the nodes that are up and whose stopped machines were started by others."""
    running = {i.id for i in view.listed or () if i.state in STANDING}
    nodes = {machine.node for machine in view.stopped if machine.id in running}
    return {name for name in nodes if view.phase(name) is Phase.UP}


def _unserved_node(view: CloudView, node: SlurmNode, *, lost: bool, heard: bool) -> Action | None:
    """The action for a node that no machine serves."""
    node_phase, is_held = view.states[node.name].phase, node.name in view.held
    if node_phase is Phase.POWERING_UP:
        if is_held:
            return GiveBack(node=node.name, cause=NoOfferLeft())
        return LaunchMachine(node=node.name, cause=RequestLost())
    if node_phase is Phase.POWERED_DOWN and has_mark(node, NOTICE_MARK) and is_drained(node):
        # Slurm powered the node down just as we drained it for a notice. The drain came after the
        # power-down, so Slurm does not lift it.
        return Restore(node=node.name, cause=DrainOutlived())
    if node_phase is Phase.UP and not is_held and (lost or not heard):
        fail = FailLost if lost else FailNode
        return fail(node=node.name, cause=MachineLost())
    return None


def _ill(node: SlurmNode, ails: Ill) -> Action | None:
    """Replace the machine of a node that Slurm has taken out of service, after the node's jobs have
    ended.
    """
    node_phase = phase(node)
    if node_phase is Phase.POWERED_DOWN:
        return Restore(node=node.name, cause=IllAndPoweredDown(node_reason=ails.slurm_reason))
    if node_phase is not Phase.UP or (is_busy(node) and not is_down(node)):
        return None
    if "POWER_DOWN" in node.states:
        return None  # slurmctld powers it down already
    return Recycle(node=node.name, cause=ails.cause)


def _down(node: SlurmNode, node_phase: Phase) -> Action | None:
    """Return a DOWN node that we or slurmctld gave up to the powered-down nodes. A node that an
    admin set DOWN stays.
    """
    if not has_mark(node, _GIVEN_UP) or node_phase not in (Phase.UP, Phase.POWERED_DOWN):
        return None
    action = Restore if node_phase is Phase.POWERED_DOWN else Clear
    return action(node=node.name, cause=NodeDown(node_reason=node.reason))
