"""The repairs: Slurm's view x the ledger x the cloud's view -> actions. Pure.

Level-triggered: each round reads the world anew, so a crash between any two steps needs no recovery
code of its own. The table, per node (rows are tried in this order; "machine" is a live ledger row):

===============  ==================  =======================  =====================================
Slurm's node     ledger              cloud                    action
===============  ==================  =======================  =====================================
any              no row              has the machine          adopt
any              suspending          nothing                  end (as it was decided)
any              to be stopped       missing N reads in a row end-missing
up, heard        machine             missing N reads in a row doubt: the list is told of in health,
                                                              and all stays as it is
any other        machine             missing N reads in a row end-missing (a missing answer is not
                                                              counted; a fresh one may be hidden for
                                                              a while, and a booting one stays while
                                                              the list is in doubt as a whole)
any              to be stopped       off, or about to be      stopped (as it was decided)
any              to be stopped       runs                     stop (again)
any              suspending          still there              terminate (again)
any              stopped             missing N reads in a row end-missing
any              stopped, unwanted   off                      end-stopped, after the grace
                 (``stopped``)
powered down     stopped             runs                     end-stopped, after the grace
up               stopped             runs                     runs-again, after the grace
powering up      to be started       off                      start (again)
any              no row              has it stopped           adopt, after the grace
up, busy, heard  machine             has it stopped           nothing: the job runs
any other        machine             has it stopped           terminate, after the grace: it has
                                                              stopped itself (dead-man switch) or
                                                              was stopped, and serves nobody
any              open intent         all its machines seen    confirm
any              open intent         some are seen            adopt these, which may be gone before
                                                              it answers; retry (tells which there
                                                              are)
powering up      open intent         nothing                  retry (same token)
any              open intent and     nothing of this intent   abandon, after long enough: the call
                 another machine                              would make its node a second one
not powering up  open intent         nothing, long enough     abandon
powering up      nothing             nothing                  launch (the request was lost)
powering up      machine, registered there                    relaunch, after the grace
powering up      nothing, held       nothing                  give-back (no offer was left)
up, heard        nothing             nothing                  doubt
up, not heard    nothing             nothing                  fail-node (its machine is gone)
up               nothing             says that it has ended   fail-lost (at once)
powered down,    nothing             nothing                  restore (to the powered-down nodes)
for a notice
powered down     machine             there                    terminate (orphan), after the grace
not listed       machine > 1 hour    there                    terminate (orphan), after the grace
none (no tag)    machine over age    there                    terminate (orphan), after the grace
two machines     two                 there                    terminate the one that is not at the
                                                              node's address, else the older one
                                                              (not while jobs run on either)
another cloud's  machine             there                    as above, which leaves it while it may
                                                              serve the node; terminate (double) if
                                                              that is at its own cloud's machine
ill, no job      any                 any                      recycle (``node_state.ill``)
ill, powered off any                 any                      restore (to the powered-down nodes)
down, ours       any                 any                      clear (never leave a node DOWN)
down~, ours      any                 any                      restore (to the powered-down nodes)
up, idle         machine over age    there                    power-down
up, busy         machine over age    there                    power-down-asap (after its jobs)
===============  ==================  =======================  =====================================

"Nothing" in the ledger and the cloud: no machine or open launch of another cloud serves the node,
either; one that is suspending, or that the cloud is stopping, serves none. "Heard": slurmctld has
the node up and answering, and pings it (``is_pinged``): with a SlurmdTimeout of 0,
or a very long one, no node counts as heard, unless the list lacks all of many machines that were
there.
"Ill": Slurm itself has drained it or set it DOWN, for one of the causes of ``node_state.ill``.

Deletions that no request asked for, rows that end for missing machines, and failed nodes, are
capped per round at 20 % of the live machines or 10, whichever is more (an error in a view must not
empty the site).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Mapping, Sequence, Set
from functools import cached_property
from math import isfinite

from msgspec import Struct, field

from slurm_elastic.model import OFF, STANDING, Instance, InstanceState
from slurm_elastic.model_slurm import SlurmNode
from slurm_elastic.policies.actions import (
    Abandon,
    Action,
    Adopt,
    AdoptStopped,
    Clear,
    Confirm,
    DoubtList,
    EndStopped,
    FailLost,
    FailNode,
    GiveBack,
    Launch,
    NoteEnd,
    NoteMissing,
    NoteStopped,
    PowerDown,
    PowerDownWhenIdle,
    Recycle,
    Relaunch,
    Restore,
    Retry,
    RunsAgain,
    StartAgain,
    StopAgain,
    Terminate,
    TerminateDouble,
    TerminateOrphan,
    TerminateStopped,
)
from slurm_elastic.policies.clock_guard import age as age_of
from slurm_elastic.policies.node_state import (
    Ill,
    NodeState,
    Phase,
    at_anothers_address,
    is_busy,
    is_down,
    is_drained,
    is_unneeded,
    phase,
    states_of,
)

# The snapshot that repair decides on: one cloud's part of the world, as values; and what can be
# read off it.


class TrackedInstance(Struct, frozen=True, kw_only=True):
    """A live machine by the ledger. ``decided`` is when its launch was decided (head's clock);
    ``shown`` whether any read of the cloud has had it, ``registered`` whether its node was up.
    ``double_of``: where the configuration has given its node to another cloud, the machine of that
    at whose address the node is, if it is. ``stopping``: with ``suspending``, it is to be stopped
    instead of ended. ``born``: when it was first launched, of one that was stopped since.
    """

    id: str
    node: str
    generation: str
    decided: float
    misses: int = 0
    suspending: bool = False
    address: str | None = None
    max_age: float | None = None
    shown: bool = True
    registered: bool = False
    double_of: str = ""
    stopping: bool = False
    born: float | None = None


class StoppedInstance(Struct, frozen=True, kw_only=True):
    """A machine that is stopped, by the ledger; ``unwanted``: why it is to end, if it is."""

    id: str
    node: str
    misses: int = 0
    unwanted: str = ""


class Intent(Struct, frozen=True, kw_only=True):
    """An open launch: its call is not known to have answered."""

    generation: str
    nodes: tuple[str, ...]
    created: float


class CloudView(Struct, frozen=True, kw_only=True, dict=True):
    """One cloud's part of the world at ``now``. ``seen`` is None where the cloud could not be read.

    ``nodes`` are the cloud's nodes by Slurm, and those of ``known``, which may be of no pool any
    more: one that is not there is not listed by Slurm. ``held`` are kept from Slurm on purpose;
    ``elsewhere`` are served by machines or open launches of other clouds; ``machines`` and
    ``all_nodes`` are those of all clouds. ``slurmd_timeout`` is how soon (s) slurmctld finds out by
    itself that a node does not answer, ``slurm_user`` as whom it takes nodes out of service.
    """

    now: float
    nodes: Mapping[str, SlurmNode]
    known: tuple[TrackedInstance, ...]
    intents: tuple[Intent, ...]
    seen: tuple[Instance, ...] | None
    held: frozenset[str] = field(default_factory=frozenset)
    elsewhere: frozenset[str] = field(default_factory=frozenset)
    machines: tuple[Instance, ...] = ()
    all_nodes: Mapping[str, SlurmNode] = field(default_factory=dict)
    slurmd_timeout: float = 300.0
    slurm_user: str = ""
    stopped: tuple[StoppedInstance, ...] = ()

    @cached_property
    def states(self) -> Mapping[str, NodeState]:
        """The meaning of Slurm's words for ``nodes``, read once: each rule asks for it."""
        return states_of(self.nodes, self.slurm_user)

    @cached_property
    def at_others(self) -> frozenset[str]:
        """Nodes that have the address of another one, or of its machine, by now: asked where a node
        answers though nothing is known to serve it.
        """
        return at_anothers_address(self.machines, self.all_nodes.values())

    @property
    def pings(self) -> bool:
        """Whether slurmctld finds out by itself, and soon, that a node does not answer."""
        return is_pinged(self.slurmd_timeout)


class Thresholds(Struct, frozen=True, kw_only=True):
    """How long (s) a finding must stand before it is acted on, and how many reads must miss.

    ``visibility``: after that a launch without an answer has made nothing; ``fresh``: after that a
    machine that no read has had is gone. ``unlisted``: how old a machine must be to end because
    Slurm does not list its node, as after a pool or all of us was taken out of slurm.conf.
    """

    grace: float = 120.0
    misses: int = 3
    visibility: float = 600.0
    fresh: float = 300.0
    unlisted: float = 3600.0


# Machines that the cloud does not list, or has as stopped: which of them work all the same? Pure.
#
# A list may be read without an error and yet be wrong: with the credentials of another account or
# project, or of machines whose tags somebody took away. The other witness is slurmctld, which pings
# every node each third of SlurmdTimeout: one that does not answer is NOT_RESPONDING, and DOWN when
# SlurmdTimeout is over (src/slurmctld/ping_nodes.c). So nothing is lost but some of that time by
# asking for both. With 0 it pings only those that are silent already: then a node that it has up
# tells nothing, and a list is doubted only where it lacks all that was there
# (``assess_inventory``).


CAP_SHARE = 0.2
CAP_FLOOR = 10
PINGED = 1800.0
"""The longest SlurmdTimeout (s) with which it is worth a job's wait that slurmctld finds out."""
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


def is_pinged(timeout: float) -> bool:
    """Whether slurmctld with that SlurmdTimeout (s) finds out, and soon, who does not answer."""
    return 0 < timeout <= PINGED


def is_lasting(stood: float, timeout: float) -> bool:
    """Whether a doubt that has stood for so long (s) is no loss that slurmctld has yet to notice: a
    node that answered in the third of SlurmdTimeout (s) before a ping round is passed over, and
    asked in the next (src/slurmctld/ping_nodes.c).
    """
    return not is_pinged(timeout) or stood >= 2 / 3 * timeout


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
    it; of one that boots nobody can tell, so it stays while the list as a whole is in doubt: more
    than the cap are missing and may run, or most are missing and some of them do run. Where
    slurmctld pings nobody, a list is in doubt only if it lacks all that was there, more than the
    cap.
    """
    states = {i.id: i.state for i in view.seen or ()}
    running: dict[str, list[Instance]] = {}
    for i in view.seen or ():
        if i.state is InstanceState.RUNNING:
            running.setdefault(i.node, []).append(i)
    if view.seen is None:
        return InventoryReport(states=states, running=running, gone=frozenset())
    live = [m for m in view.known if not m.suspending]
    missing = [m for m in live if m.id not in states and _is_overdue(view, m, patience)]
    heard = [m for m in missing if answers(view, m, running)]
    boots = [m for m in missing if _boots(view, m)]
    unserved = _unserved(view)
    if view.pings:
        most = bool(heard) and 2 * len(missing) > len(live)
        doubtful = most or len(heard) + len(boots) > cap(len(live))
    else:
        may_run = len({m.id for m in (*heard, *boots)}) + len(unserved)
        doubtful = _lacks_all(live, missing, states) and may_run > cap(len(live))
    hears = view.pings or doubtful
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
    return _standing(view) | {n for i in view.intents for n in i.nodes}


def _standing(view: CloudView) -> set[str]:
    leaving = {m.id for m in view.known if m.suspending} | {m.id for m in view.stopped}
    nodes = {m.node for m in view.known if not m.suspending}
    nodes |= {i.node for i in view.seen or () if i.state in STANDING and i.id not in leaving}
    return nodes | view.elsewhere


def _is_overdue(view: CloudView, machine: TrackedInstance, patience: Thresholds) -> bool:
    """Missing often enough. A fresh one that no read has had may be hidden for a while; one that is
    younger than nothing is no fresh one, the clock was set back.
    """
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


OUR_MARK = "slurm-elastic:"
"""The beginning of every node reason of ours."""
HOLD_MARK = f"{OUR_MARK}hold:"
"""The beginning of the reason of a node that we keep from Slurm."""
NOTICE_MARK = f"{OUR_MARK}notice:"
"""The beginning of the reason of a node that is drained because its machine is taken away."""
_GIVEN_UP = (OUR_MARK, "ResumeTimeout reached", "Not responding")
"""Reasons of a DOWN cloud node that we may clear: ours, and those slurmctld itself sets."""
POWERED_UP_AGAIN = "Slurm powers its node up again: it waits for a machine that boots after that"


def repairs(view: CloudView, patience: Thresholds) -> tuple[Action, ...]:
    """All findings of this round, in the order they should be acted on."""
    actions: list[Action] = []
    actions += _adoptions(view)
    actions += _intents(view, patience)
    listing = assess_inventory(view, patience)
    if listing.doubt:
        actions.append(DoubtList(reason=listing.doubt))
    for machine in view.known:
        action = _machine(view, machine, patience, listing)
        if action is not None:
            actions.append(action)
    actions += _stopped_ones(view, patience, listing)
    actions += _doubles(view)
    actions += _nodes(view, hears=listing.hears)
    return tuple(actions)


class DueRepairs(Struct, frozen=True, kw_only=True):
    """Repairs that may be done now, how many more the cap leaves for the next round, and since when
    each patient finding has stood (monotonic, by kind and subject).
    """

    ready: tuple[Action, ...]
    waiting: int
    standing: Mapping[tuple[str, str], float]


def due_repairs(
    view: CloudView, patience: Thresholds, before: Mapping[tuple[str, str], float], clock: float
) -> DueRepairs:
    """The repairs that have stood for long enough, and not too many at once."""
    ready, standing = debounce(repairs(view, patience), before, clock, patience.grace)
    ready, waiting = limit_disruption(ready, len(view.known))
    return DueRepairs(ready=ready, waiting=waiting, standing=standing)


def debounce(
    actions: Iterable[Action], first_seen: Mapping[tuple[str, str], float], now: float, grace: float
) -> tuple[tuple[Action, ...], dict[tuple[str, str], float]]:
    """The actions that may be taken now, and since when each patient one has stood.

    A finding that is gone for one round starts anew.
    """
    ready: list[Action] = []
    standing: dict[tuple[str, str], float] = {}
    for action in actions:
        if not action.patient:
            ready.append(action)
            continue
        since = first_seen.get((action.kind, action.subject), now)
        standing[action.kind, action.subject] = since
        if now - since >= grace:
            ready.append(action)
    return tuple(ready), standing


def limit_disruption(actions: Sequence[Action], live: int) -> tuple[tuple[Action, ...], int]:
    """At most 20 % of ``live`` machines or 10 deleted; the rest waits. Returns how many wait."""
    most = cap(live)
    kept: list[Action] = []
    deletions = 0
    for action in actions:
        if action.capped:
            deletions += 1
            if deletions > most:
                continue
        kept.append(action)
    return tuple(kept), max(deletions - most, 0)


_Found = Mapping[str, Sequence[Instance]]
"""By the generation of each open launch, the machines of it that are there."""


def _found(view: CloudView) -> _Found:
    found: dict[str, list[Instance]] = {i.generation: [] for i in view.intents}
    for instance in view.seen or ():
        if instance.generation in found:
            found[instance.generation].append(instance)
    return found


def _is_whole(intent: Intent, found: _Found) -> bool:
    return {i.node for i in found[intent.generation]}.issuperset(intent.nodes)


def _adoptions(view: CloudView) -> list[Action]:
    known = {m.id for m in view.known} | {m.id for m in view.stopped}
    found = _found(view)
    confirmed = {i.generation for i in view.intents if _is_whole(i, found)}
    return [
        (AdoptStopped if instance.state in OFF else Adopt)(
            machine=instance.id,
            reason=f"carries this cluster's tag for node {instance.node}; the ledger lacks it",
        )
        for instance in view.seen or ()
        if instance.id not in known
        and instance.generation not in confirmed
        and instance.state is not InstanceState.TERMINATED
    ]


def _intents(view: CloudView, patience: Thresholds) -> list[Action]:
    if view.seen is None:
        return []
    found = _found(view)
    return [a for i in view.intents if (a := _intent(view, i, found, patience)) is not None]


def _intent(view: CloudView, intent: Intent, found: _Found, patience: Thresholds) -> Action | None:
    some = found[intent.generation]
    left = set(intent.nodes) - {i.node for i in some}
    others = _standing(view) | {n for i in view.intents if i is not intent for n in i.nodes}
    # The ledger lacked them when this was decided: its file was lost, or a list had not all.
    served = sorted(left & others)
    if some:
        # For a launch that took effect the same call tells what else there is, and starts nothing.
        why = f"{len(some)} machine(s) of this open launch are there"
        kind = Confirm if not left or served else Retry
        return kind(generation=intent.generation, reason=why)
    wanted = [n for n in intent.nodes if _phase(view, n) is Phase.POWERING_UP]
    if wanted and not served:
        return Retry(
            generation=intent.generation,
            reason=f"no answer is known and Slurm still wants {len(wanted)} of its nodes",
        )
    age = view.now - intent.created
    if age < patience.visibility:
        return None
    why = f"{served[0]} has another one" if served else "Slurm wants none of its nodes"
    return Abandon(
        generation=intent.generation,
        reason=f"no machine of it was seen for {age:.0f} s and {why}",
    )


def _machine(
    view: CloudView, machine: TrackedInstance, patience: Thresholds, listing: InventoryReport
) -> Action | None:
    """The action that one machine calls for."""
    if view.seen is None:
        return None
    state = listing.states.get(machine.id)
    if state is None:
        return _missing(view, machine, patience, listing)
    if machine.stopping:
        return _to_be_stopped(machine, state)
    if machine.suspending:
        return Terminate(
            machine=machine.id,
            reason="its end was decided and it is still there",
        )
    node = view.nodes.get(machine.node)
    if state in OFF:
        return _to_be_started(view, machine, state) or _stopped(view, machine, node, listing)
    if node is None:
        return _unlisted(view, machine, patience)
    if view.states[node.name].unneeded:
        return TerminateOrphan(machine=machine.id, reason=POWERED_DOWN)
    if machine.double_of:
        return TerminateDouble(
            machine=machine.id,
            reason=f"node {node.name} has machine {machine.double_of} of its own cloud",
        )
    if _is_past(view, machine):
        return Relaunch(machine=machine.id, reason=POWERED_UP_AGAIN)
    return _aged(view, machine, node)


def _stopped(
    view: CloudView, machine: TrackedInstance, node: SlurmNode | None, listing: InventoryReport
) -> Action | None:
    """A cloud may be wrong: a job that runs goes on as long as slurmctld hears the node. A machine
    that has really stopped is NOT_RESPONDING soon.
    """
    works = node is not None and is_busy(node) and answers(view, machine, listing.running)
    if works and listing.hears:
        return None
    return TerminateStopped(
        machine=machine.id,
        reason="the cloud has it stopped, which nobody asked for: it serves nobody",
    )


def _to_be_stopped(machine: TrackedInstance, state: InstanceState) -> Action:
    if state in OFF:
        return NoteStopped(machine=machine.id, reason="it is stopped, to be started again")
    return StopAgain(machine=machine.id, reason="it was to be stopped and still runs")


def _to_be_started(
    view: CloudView, machine: TrackedInstance, state: InstanceState
) -> Action | None:
    """Its start was decided, and the call was lost, or was not taken in yet: it may be repeated."""
    restarted = machine.born is not None and not machine.registered
    if not restarted or state is not InstanceState.STOPPED:
        return None
    if _phase(view, machine.node) is not Phase.POWERING_UP:
        return None
    return StartAgain(machine=machine.id, reason="it was to be started and is still stopped")


def _stopped_ones(
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
                why = f"the cloud did not list it, stopped, {one.misses} times in a row"
                yield NoteMissing(machine=one.id, reason=why)
        elif state in STANDING:
            yield from _started_by_others(view, one, serving)
        elif state in OFF and one.unwanted:
            yield EndStopped(machine=one.id, reason=f"it was stopped: {one.unwanted}")


def _started_by_others(
    view: CloudView, one: StoppedInstance, serving: Container[str]
) -> Iterable[Action]:
    node = view.nodes.get(one.node)
    if node is not None and is_unneeded(node):
        why = f"it was stopped and runs: {POWERED_DOWN}"
        yield EndStopped(machine=one.id, reason=why)
    elif node is not None and phase(node) is Phase.UP and one.node not in serving:
        yield RunsAgain(machine=one.id, reason="somebody has started it, and its node is up")


def _is_past(view: CloudView, machine: TrackedInstance) -> bool:
    """Whether its node powers up once more: slurmctld takes no slurmd that booted before that."""
    return machine.registered and _phase(view, machine.node) is Phase.POWERING_UP


def _unlisted(view: CloudView, machine: TrackedInstance, patience: Thresholds) -> Action | None:
    """No job can be on a node that Slurm does not have. For a machine whose tags name none, as
    when somebody changed them, nobody knows what it does: it may stay for its maximum age.
    """
    limit = patience.unlisted if machine.node else machine.max_age
    # For one without a node a clock that was set back is no proof of any age.
    age = age_of(machine.decided, view.now) if machine.node else view.now - machine.decided
    if limit is None or age <= limit:
        return None
    why = "Slurm has no such node" if machine.node else "its tags name no node and it is too old"
    return TerminateOrphan(machine=machine.id, reason=why)


def _missing(
    view: CloudView, machine: TrackedInstance, patience: Thresholds, listing: InventoryReport
) -> Action | None:
    """One that is to be stopped has not ended because one list lacks it: it may be hidden."""
    if machine.suspending and not machine.stopping:
        return NoteEnd(machine=machine.id, reason="its end was decided and it is gone")
    lost = not listing.doubt and machine.stopping and _is_overdue(view, machine, patience)
    if machine.id not in listing.gone and not lost:
        return None
    return NoteMissing(
        machine=machine.id,
        reason=f"the cloud did not list it {machine.misses} times in a row",
    )


def _aged(view: CloudView, machine: TrackedInstance, node: SlurmNode) -> Action | None:
    if machine.max_age is None:
        return None
    age = age_of(machine.decided if machine.born is None else machine.born, view.now)
    if age <= machine.max_age:
        return None
    if phase(node) is not Phase.UP or is_down(node) or is_drained(node):
        return None  # power_down would undo an admin's drain
    if "POWER_DOWN" in node.states:
        return None  # asked for already, its jobs go on
    action = PowerDownWhenIdle if is_busy(node) else PowerDown
    old = f"{age:.0f} s old" if isfinite(age) else "from before the clock was set back"
    return action(
        node=machine.node,
        reason=f"its machine is {old}, the pool's maximum is {machine.max_age:.0f} s",
    )


def _doubles(view: CloudView) -> list[Action]:
    """Where a node has several live machines, the one at whose address Slurm has the node stays,
    else the newest generation. While jobs run and the address does not tell on which, all stay.
    """
    there = {i.id for i in view.seen or ()}
    by_node: dict[str, list[TrackedInstance]] = {}
    for machine in view.known:
        past = machine.suspending or _is_past(view, machine)
        if machine.id in there and machine.node and not past:
            by_node.setdefault(machine.node, []).append(machine)
    actions: list[Action] = []
    for name, machines in by_node.items():
        keeper = _keeper(view.nodes.get(name), machines)
        actions += [
            TerminateDouble(
                machine=machine.id,
                reason=f"node {name} has machine {keeper.id} of generation {keeper.generation}",
            )
            for machine in machines
            if keeper is not None and machine.id != keeper.id
        ]
    return actions


def _keeper(node: SlurmNode | None, machines: Sequence[TrackedInstance]) -> TrackedInstance | None:
    at_address = [m for m in machines if node and m.address and m.address == node.address]
    if len(at_address) == 1:
        return at_address[0]
    if node is not None and phase(node) is Phase.UP and is_busy(node):
        return None
    return max(machines, key=lambda m: (m.generation, m.id))


def _nodes(view: CloudView, *, hears: bool) -> list[Action]:
    has = served(view) | _started_again(view)
    lost = {i.node for i in view.seen or () if i.state is InstanceState.TERMINATED}
    actions: list[Action] = []
    for name, node in view.nodes.items():
        action = None
        state = view.states[name]
        if state.ails is not None:
            action = _ill(node, state.ails)
        elif state.down:
            action = _down(node, state.phase)
        elif view.seen is not None and name not in has:
            action = _node(view, node, lost=name in lost, heard=hears and is_heard(view, node))
        if action is not None:
            actions.append(action)
    return actions


def _started_again(view: CloudView) -> set[str]:
    """Nodes that are up by their stopped machines, which somebody else has started."""
    running = {i.id for i in view.seen or () if i.state in STANDING}
    nodes = {one.node for one in view.stopped if one.id in running}
    return {name for name in nodes if _phase(view, name) is Phase.UP}


def _node(view: CloudView, node: SlurmNode, *, lost: bool, heard: bool) -> Action | None:
    """The action for a node that nothing serves."""
    where, held = view.states[node.name].phase, node.name in view.held
    if where is Phase.POWERING_UP:
        if held:
            return GiveBack(node=node.name, reason="no offer was left for it")
        return Launch(
            node=node.name,
            reason="Slurm waits for it and nothing serves it: the request was lost",
        )
    if where is Phase.POWERED_DOWN and node.reason.startswith(NOTICE_MARK) and is_drained(node):
        # Slurm powered it down just as it was drained, which ends no drain that comes later.
        why = "drained for a machine that is gone: back to the powered-down nodes"
        return Restore(node=node.name, reason=why)
    if where is Phase.UP and not held and (lost or not heard):
        fail = FailLost if lost else FailNode
        return fail(node=node.name, reason="Slurm has it up and its machine is gone")
    return None


def _ill(node: SlurmNode, ails: Ill) -> Action | None:
    """A node that Slurm has taken out of service gets another machine; its jobs end before that,
    unless Slurm has ended them.
    """
    where = phase(node)
    if where is Phase.POWERED_DOWN:
        why = f"{ails.words}: its machine is gone, back to the powered-down nodes"
        return Restore(node=node.name, reason=why)
    if where is not Phase.UP or (is_busy(node) and not is_down(node)):
        return None
    if "POWER_DOWN" in node.states:
        return None  # it goes
    return Recycle(node=node.name, reason=str(ails))


def _down(node: SlurmNode, where: Phase) -> Action | None:
    """A DOWN node of ours goes back to the powered-down ones; an admin's own stays."""
    if not node.reason.startswith(_GIVEN_UP) or where not in (Phase.UP, Phase.POWERED_DOWN):
        return None
    action = Restore if where is Phase.POWERED_DOWN else Clear
    why = f"DOWN ({node.reason}): back to the powered-down nodes"
    return action(node=node.name, reason=why)


def _phase(view: CloudView, name: str) -> Phase | None:
    state = view.states.get(name)
    return None if state is None else state.phase


# Machines that Slurm does not need any more, told by Slurm's nodes and a cloud's list alone. Pure.
#
# Repair goes by ``is_unneeded`` in all its modes. The watchdog, which remembers nothing but its own
# looks, goes by ``overdue``: the same rule, with a bound on time and on looks in a row.


POWERED_DOWN = "Slurm has its node powered down"


class Bound(Struct, frozen=True, kw_only=True):
    """For how long (s), and in how many looks in a row, a machine must not have been needed."""

    seconds: float
    looks: int = 3


class Standing(Struct, frozen=True, kw_only=True):
    """Since when (monotonic), and in how many looks in a row by now."""

    since: float
    looks: int = 1


class Verdict(Struct, frozen=True, kw_only=True):
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
) -> Verdict:
    """The machines of a cloud's list (``seen``) whose node is unneeded, with no job on it
    (``busy``), and has been for ``bound``. A node that Slurm does not list is a doubt, and stays;
    what was needed in one look starts anew. No look ends more than repair may in a round.
    """
    at_work = _at_work(nodes)
    found = [
        one
        for one in seen
        if one.state is not InstanceState.TERMINATED
        and one.node in nodes
        and one.node not in busy
        and is_unneeded(nodes[one.node])
        and one.address not in at_work
    ]
    standing = {one.id: _next(before.get(one.id), now) for one in found}
    ready = [
        TerminateOrphan(machine=one.id, reason=f"{POWERED_DOWN} for {now - at.since:.0f} s")
        for one in found
        if now - (at := standing[one.id]).since >= bound.seconds and at.looks >= bound.looks
    ]
    most = cap(len(seen))
    return Verdict(ready=tuple(ready[:most]), waiting=max(len(ready) - most, 0), standing=standing)


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
