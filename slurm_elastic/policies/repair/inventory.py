"""Weighs a cloud's list against slurmctld: which machines that it lacks, or has as stopped, work
all the same? Pure.

A cloud may answer without an error and the list may be wrong: because of the credentials of another
account or project, or because someone removed the machines' tags. The other witness is slurmctld.
It pings every node each third of SlurmdTimeout; a node that does not answer becomes NOT_RESPONDING,
and DOWN after SlurmdTimeout (src/slurmctld/ping_nodes.c). To ask for both witnesses costs at most
some of that time. With SlurmdTimeout 0 slurmctld pings only silent nodes. A node that it has up
then proves nothing, and we doubt a list only if it lacks everything that was there
(``assess_inventory``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.model.cluster import STANDING, Instance, InstanceState
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase
from slurm_elastic.policies.repair.cloud_view import CloudView, Thresholds, TrackedInstance
from slurm_elastic.policies.repair.list_plausibility import most_lost

CAP_SHARE = 0.2
CAP_FLOOR = 10
TOLD = 5
"""How many nodes the text of a doubt names."""


class InventoryReport(Struct, frozen=True, kw_only=True):
    """A cloud's list, and how far we believe it.

    ``states``: by machine id. ``running``: the machines listed as running, by node. ``gone``: ids
    of machines that have ended without our doing. ``doubt``: the reason not to believe the list, ""
    if there is none. ``lacked``: ids of machines that the list lacks and that may run.
    ``unserved``: nodes that answer although neither the ledger nor the list has a machine for them,
    or although the list shows their machine and too many others as ended.
    ``pings_count``: a node that slurmctld has up and answering is evidence (False: slurmctld sends
    no pings).
    """

    states: Mapping[str, InstanceState]
    running: Mapping[str, Sequence[Instance]]
    gone: frozenset[str]
    doubt: str = ""
    lacked: frozenset[str] = frozenset()
    unserved: tuple[str, ...] = ()
    pings_count: bool = True


def cap(live: int) -> int:
    """How many machines or nodes, out of ``live``, repair may give up per round unasked."""
    # The floor lets a small site repair itself: 20 % of two machines would be none.
    return max(int(live * CAP_SHARE), CAP_FLOOR)


def is_heard(view: CloudView, node: SlurmNode) -> bool:
    """Whether slurmctld has the node up and answering, and its address is not another machine's."""
    return view.states[node.name].is_answering and node.name not in view.at_others


def answers(
    view: CloudView, machine: TrackedInstance, running: Mapping[str, Sequence[Instance]]
) -> bool:
    """Whether ``machine`` is, as far as all signs show, the machine that answers slurmctld for its
    node.
    """
    node = view.nodes.get(machine.node)
    if node is None or not is_heard(view, node):
        return False
    node_mates = [i for i in running.get(machine.node, ()) if i.id != machine.id]
    if any(mate.address == node.address for mate in node_mates):
        return False
    has_nodes_address = bool(machine.address) and machine.address == node.address
    return has_nodes_address or not (node_mates or machine.node in view.elsewhere)


def assess_inventory(view: CloudView, patience: Thresholds) -> InventoryReport:
    """Weigh the list and its gaps.

    A missing machine counts as gone unless slurmctld hears it, or it boots while the whole list is
    in doubt. The list is in doubt if more machines than the cap are missing and may run, or if most
    are missing and some of these do run.
    """
    states = {i.id: i.state for i in view.listed or ()}
    running: dict[str, list[Instance]] = {}
    for i in view.listed or ():
        if i.state is InstanceState.RUNNING:
            running.setdefault(i.node, []).append(i)
    if view.listed is None:
        return InventoryReport(states=states, running=running, gone=frozenset())
    live = [m for m in view.tracked if not m.is_ending]
    missing = [m for m in live if m.id not in states and is_overdue(view, m, patience)]
    heard = [m for m in missing if answers(view, m, running)]
    boots = [m for m in missing if _boots(view, m)]
    unserved = _unserved(view)
    unbelieved = _unbelieved_ends(view, len(live)) if view.pings else []
    if view.pings:
        most_are_missing = bool(heard) and 2 * len(missing) > len(live)
        doubtful = most_are_missing or len(heard) + len(boots) > cap(len(live))
    else:
        # slurmctld pings no node, so a node that it has up proves nothing. Doubt only a list that
        # lacks all that was there, and more than the cap.
        may_run_count = len({m.id for m in (*heard, *boots)}) + len(unserved)
        doubtful = _lacks_all(live, missing, states) and may_run_count > cap(len(live))
    pings_count = view.pings or doubtful
    # Nothing proves that a booting machine runs, so it is kept only while the whole list is in
    # doubt.
    may_run_ids = {m.id for m in (*(heard if pings_count else ()), *(boots if doubtful else ()))}
    doubt = ""
    if doubtful or (pings_count and (heard or unserved)):
        listed_count = sum(m.id in states for m in live)
        nodes = [*(m.node for m in heard), *unserved]
        doubt = _doubt(listed_count, len(live) + len(unserved), nodes, boots, pings=view.pings)
    elif unbelieved:
        doubt = (
            f"it shows {len(unbelieved)} machines as ended at once, but slurmctld hears the nodes "
            f"{_first_named(unbelieved)}: no node is set DOWN for this before it is silent, too"
        )
    gone_ids = frozenset(m.id for m in missing if m.id not in may_run_ids)
    return InventoryReport(
        states=states,
        running=running,
        gone=gone_ids,
        doubt=doubt,
        lacked=frozenset(may_run_ids),
        unserved=(*unserved, *unbelieved),
        pings_count=pings_count,
    )


def served(view: CloudView) -> set[str]:
    """Return the nodes of all clouds with a machine, or with an open launch whose call may have
    made one. A machine whose end is decided does not count, however long its cloud keeps it.
    """
    return standing(view) | {n for i in view.intents for n in i.nodes}


def standing(view: CloudView) -> set[str]:
    """Return the nodes of all clouds with a machine whose end is not decided."""
    leaving = {m.id for m in view.tracked if m.is_ending} | {m.id for m in view.stopped}
    nodes = {m.node for m in view.tracked if not m.is_ending}
    nodes |= {i.node for i in view.listed or () if i.state in STANDING and i.id not in leaving}
    return nodes | view.elsewhere


def is_overdue(view: CloudView, machine: TrackedInstance, patience: Thresholds) -> bool:
    """Whether enough lists in a row lacked the machine. A fresh machine that no list has had may be
    hidden for a while.
    """
    # A negative age means that the clock was set back: such a machine is not fresh.
    may_be_hidden = (
        not machine.was_listed and 0 <= view.now - machine.decided_at < patience.hidden_start_s
    )
    return machine.missed_listings >= patience.max_missed_listings and not may_be_hidden


def _lacks_all(
    live: Sequence[TrackedInstance], missing: Sequence[TrackedInstance], states: Collection[str]
) -> bool:
    """Whether the list lacks every machine launched up to the newest missing machine. Younger
    machines do not count: with another account's credentials we would still see what we launch with
    them.
    """
    newest_missing_at = max((m.decided_at for m in missing), default=math.inf)
    return not any(m.id in states and m.decided_at <= newest_missing_at for m in live)


def _boots(view: CloudView, machine: TrackedInstance) -> bool:
    node = view.nodes.get(machine.node)
    return node is not None and view.states[node.name].phase is Phase.POWERING_UP


def _unserved(view: CloudView) -> list[str]:
    """Return the nodes that slurmctld hears although neither the ledger nor the cloud has a
    machine.
    """
    nodes_with_machine = (
        served(view) | {i.node for i in view.listed or ()} | {m.node for m in view.tracked}
    )
    return [
        name
        for name, node in view.nodes.items()
        if name not in nodes_with_machine and name not in view.held and is_heard(view, node)
    ]


def _unbelieved_ends(view: CloudView, live_count: int) -> list[str]:
    """Return the nodes that slurmctld hears although the list shows their machines as ended. Return
    none if so many machines may end at once (``most_lost``).
    """
    ended_nodes = {i.node for i in view.listed or () if i.state is InstanceState.TERMINATED}
    lost = ended_nodes.intersection(view.nodes) - served(view) - view.held
    heard = sorted(name for name in lost if is_heard(view, view.nodes[name]))
    return heard if len(heard) > most_lost(live_count + len(lost)) else []


def _first_named(nodes: Sequence[str]) -> str:
    unnamed = f" and {len(nodes) - TOLD} more" if len(nodes) > TOLD else ""
    return f"{', '.join(nodes[:TOLD])}{unnamed}"


def _doubt(
    listed_count: int,
    expected_count: int,
    heard: Sequence[str],
    boots: Sequence[TrackedInstance],
    *,
    pings: bool,
) -> str:
    text = f"it lists {listed_count} of {expected_count} machines that were there"
    if heard:
        hears = "hears the nodes" if pings else "has up, without a ping, the nodes"
        text += f", but slurmctld {hears} {_first_named(heard)}"
    elif boots:
        text += f", and {len(boots)} of those it lacks are booting"
    return f"{text}: are these another account's credentials, or were tags taken away?"
