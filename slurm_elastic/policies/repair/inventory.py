"""Machines that the cloud does not list, or has as stopped: which of them work all the same? Pure.

A list may be read without an error and yet be wrong: with the credentials of another account or
project, or of machines whose tags somebody took away. The other witness is slurmctld, which pings
every node each third of SlurmdTimeout: one that does not answer is NOT_RESPONDING, and DOWN when
SlurmdTimeout is over (src/slurmctld/ping_nodes.c). So nothing is lost but some of that time by
asking for both. With 0 it pings only those that are silent already: then a node that it has up
tells nothing, and a list is doubted only where it lacks all that was there
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

CAP_SHARE = 0.2
CAP_FLOOR = 10
TOLD = 5
"""Nodes that a doubt names."""


class InventoryReport(Struct, frozen=True, kw_only=True):
    """A cloud's list, weighed. ``states`` by id; ``running``: the machines that the list has so, by
    node; ``gone``: ids of those that have ended unseen; ``doubt``: what speaks against the list.
    ``lacked``: ids of those that it lacks and that may run; ``unserved``: nodes that nobody knows a
    machine of. ``hears``: whether it says anything that slurmctld has a node up and answering.
    """

    states: Mapping[str, InstanceState]
    running: Mapping[str, Sequence[Instance]]
    gone: frozenset[str]
    doubt: str = ""
    lacked: frozenset[str] = frozenset()
    unserved: tuple[str, ...] = ()
    hears: bool = True


def cap(live: int) -> int:
    """How many machines or nodes of so many a round may give up that nobody asked for."""
    return max(int(live * CAP_SHARE), CAP_FLOOR)


def is_heard(view: CloudView, node: SlurmNode) -> bool:
    """Whether slurmctld has the node up and answering, and not another machine in its place."""
    return view.states[node.name].answers and node.name not in view.at_others


def answers(
    view: CloudView, machine: TrackedInstance, running: Mapping[str, Sequence[Instance]]
) -> bool:
    """Whether it is this machine, by all signs, that slurmctld hears as its node."""
    node = view.nodes.get(machine.node)
    if node is None or not is_heard(view, node):
        return False
    others = [i for i in running.get(machine.node, ()) if i.id != machine.id]
    if any(other.address == node.address for other in others):
        return False
    at_it = bool(machine.address) and machine.address == node.address
    return at_it or not (others or machine.node in view.elsewhere)


def assess_inventory(view: CloudView, patience: Thresholds) -> InventoryReport:
    """The meaning of the list, and of its gaps. A missing machine is gone unless slurmctld hears
    it, or it boots and the list as a whole is in doubt: more than the cap are missing and may run,
    or most are missing and some of them do run.
    """
    states = {i.id: i.state for i in view.seen or ()}
    running: dict[str, list[Instance]] = {}
    for i in view.seen or ():
        if i.state is InstanceState.RUNNING:
            running.setdefault(i.node, []).append(i)
    if view.seen is None:
        return InventoryReport(states=states, running=running, gone=frozenset())
    live = [m for m in view.known if not m.suspending]
    missing = [m for m in live if m.id not in states and is_overdue(view, m, patience)]
    heard = [m for m in missing if answers(view, m, running)]
    boots = [m for m in missing if _boots(view, m)]
    unserved = _unserved(view)
    if view.pings:
        most = bool(heard) and 2 * len(missing) > len(live)
        doubtful = most or len(heard) + len(boots) > cap(len(live))
    else:
        # Nobody pings: only a list that lacks all that was there, and more than the cap, is in
        # doubt.
        may_run = len({m.id for m in (*heard, *boots)}) + len(unserved)
        doubtful = _lacks_all(live, missing, states) and may_run > cap(len(live))
    hears = view.pings or doubtful
    # Of one that boots nobody can tell: it stays while the list as a whole is in doubt.
    kept = {m.id for m in (*(heard if hears else ()), *(boots if doubtful else ()))}
    doubt = ""
    if doubtful or (hears and (heard or unserved)):
        there = sum(m.id in states for m in live)
        nodes = [*(m.node for m in heard), *unserved]
        doubt = _doubt(there, len(live) + len(unserved), nodes, boots, pings=view.pings)
    gone = frozenset(m.id for m in missing if m.id not in kept)
    return InventoryReport(
        states=states,
        running=running,
        gone=gone,
        doubt=doubt,
        lacked=frozenset(kept),
        unserved=tuple(unserved),
        hears=hears,
    )


def served(view: CloudView) -> set[str]:
    """Nodes that have a machine, or an open launch that may have made one, of whichever cloud. One
    whose end is decided serves nobody, however long its cloud keeps it.
    """
    return standing(view) | {n for i in view.intents for n in i.nodes}


def standing(view: CloudView) -> set[str]:
    leaving = {m.id for m in view.known if m.suspending} | {m.id for m in view.stopped}
    nodes = {m.node for m in view.known if not m.suspending}
    nodes |= {i.node for i in view.seen or () if i.state in STANDING and i.id not in leaving}
    return nodes | view.elsewhere


def is_overdue(view: CloudView, machine: TrackedInstance, patience: Thresholds) -> bool:
    """Missing often enough. A fresh one that no read has had may be hidden for a while."""
    # A machine that is younger than nothing is no fresh one: the clock was set back.
    hidden = not machine.shown and 0 <= view.now - machine.decided < patience.fresh
    return machine.misses >= patience.misses and not hidden


def _lacks_all(
    live: Sequence[TrackedInstance], missing: Sequence[TrackedInstance], states: Collection[str]
) -> bool:
    """Whether it lists none of those that were there: what was launched after them, as with the
    credentials of another account, was not.
    """
    since = max((m.decided for m in missing), default=math.inf)
    return not any(m.id in states and m.decided <= since for m in live)


def _boots(view: CloudView, machine: TrackedInstance) -> bool:
    node = view.nodes.get(machine.node)
    return node is not None and view.states[node.name].phase is Phase.POWERING_UP


def _unserved(view: CloudView) -> list[str]:
    """Nodes that slurmctld hears, though neither the ledger nor the cloud knows of a machine."""
    told = served(view) | {i.node for i in view.seen or ()} | {m.node for m in view.known}
    return [
        name
        for name, node in view.nodes.items()
        if name not in told and name not in view.held and is_heard(view, node)
    ]


def _doubt(
    there: int, of: int, heard: Sequence[str], boots: Sequence[TrackedInstance], *, pings: bool
) -> str:
    text = f"it lists {there} of {of} machines that were there"
    if heard:
        more = f" and {len(heard) - TOLD} more" if len(heard) > TOLD else ""
        hears = "hears the nodes" if pings else "has up, without a ping, the nodes"
        text += f", but slurmctld {hears} {', '.join(heard[:TOLD])}{more}"
    elif boots:
        text += f", and {len(boots)} of those it lacks are booting"
    return f"{text}: are these another account's credentials, or were tags taken away?"
