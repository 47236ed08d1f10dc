"""The repairs: Slurm's view x the ledger x the cloud's view -> actions. Pure.

Level-triggered: each round reads everything again, so a crash between any two steps needs no
recovery code of its own. The table, per node ("machine" is a live row of the ledger). Rows are
tried in this order, except that a node that is ill or down comes before all else of nodes, and a
double machine before a relaunch:

===============  ==================  =======================  =====================================
Slurm's node     ledger              cloud                    action
===============  ==================  =======================  =====================================
any              no row              has the machine          adopt
any              suspending          nothing                  end (as it was decided), if the cloud
                                                              confirms it by the machine's id; also
                                                              while the whole list is in doubt
any              to be stopped       missing N reads in a row end-missing (here and below: if the
                                                              cloud has no such machine by its id)
up, heard        machine             missing N reads in a row doubt: health reports the list, and no
                                                              row changes
any other        machine             missing N reads in a row end-missing (a missing answer is not
                                                              counted; a fresh machine may be hidden
                                                              for a while, and a booting machine
                                                              stays while the whole list is in
                                                              doubt)
any              to be stopped       off, or about to be      stopped (as it was decided)
any              to be stopped       runs                     stop (again)
any              suspending          still there, or the list terminate (again)
                                     cannot be read
any              stopped             missing N reads in a row end-missing
any              stopped, unwanted   off                      end-stopped, after the grace
                 (``stopped``)
powered down     stopped             runs                     end-stopped, after the grace
powering up      stopped             runs                     end-stopped, after the grace
any other        stopped             runs                     runs-again, after the grace: from then
                                                              on as any machine, also beside another
                                                              machine of its node
powering up      to be started       off                      start (again), if it would be allowed
                                                              now; else it stays stopped
powering up      to be started       about to be off          nothing: it starts when it is off
any              no row              has it stopped           adopt, after the grace
up, busy, heard  machine             has it stopped           nothing: the job runs
any other        machine             has it stopped           terminate, after the grace: it has
                                                              stopped itself (dead-man switch) or
                                                              was stopped, and serves no node
any              open intent         all its machines seen    confirm
not powering up  open intent         some, long enough        confirm
any              open intent         some are seen            adopt these, which may be gone before
                                                              it answers; retry (its answer lists
                                                              all of them)
powering up      open intent         nothing                  retry (same token). A call that is
                                                              forbidden by now: abandon, after long
                                                              enough
any              open intent and     nothing of this intent   abandon, after long enough: the call
                 another machine                              would make its node a second one
not powering up  open intent         nothing, long enough     abandon
powering up      nothing, held       nothing                  give-back (no offer was left)
powering up      nothing             nothing                  launch (the request was lost)
powering up      machine, registered there                    relaunch, after the grace
up, heard        nothing             nothing                  doubt
up, not heard    nothing             nothing                  fail-node (its machine is gone)
up, heard        nothing             lists it and too many    doubt
                                     others as ended
                                     (``most_lost``)
any other up     nothing             lists it as ended        fail-lost (at once)
powered down,    nothing             nothing                  restore (to the powered-down nodes)
for a notice
powered down     machine             there                    terminate (orphan), after the grace
not listed       machine             there                    terminate (unlisted), after an hour
none (no tag)    machine over age    there                    terminate (orphan), after the grace
two machines     two                 there                    terminate the one that is not at the
                                                              node's address; if none or both
                                                              are, the older one, unless the
                                                              node is busy
another cloud's  machine             there                    as above, which leaves it while it may
                                                              serve the node; terminate (double) if
                                                              that is at its own cloud's machine
ill, no job      any                 any                      recycle (``out_of_service.ill``)
ill, powered off any                 any                      restore (to the powered-down nodes)
down, ours       any                 any                      clear (never leave a node DOWN)
down~, ours      any                 any                      restore (to the powered-down nodes)
allocated~       any                 any                      disclaim, after the grace, if no job
                                                              has it (a takeover of slurmctld)
idle~, not       any                 any                      power-down-again, after the grace
responding
up, idle         machine over age    there, alone or at the   power-down
                                     node's address
up, busy         machine over age    there                    power-down-asap (after its jobs)
===============  ==================  =======================  =====================================

The rows of machines are here; rows of open launches are in ``launch_repairs``, of nodes in
``node_repairs``, of stopped machines in ``stopped_repairs``.

"Nothing" in the ledger and the cloud: no machine or open launch of another cloud serves the node,
either. A machine that is suspending, or that the cloud is stopping, serves no node.

"Heard": slurmctld has the node up and answering, and pings it (``is_pinged``). With a SlurmdTimeout
of 0, or a very long one, no node counts as heard, unless the list lacks all of many machines that
were there.

"Ill": Slurm itself has drained the node or set it DOWN, for one of the causes of
``out_of_service.ill``.

If a request of slurmctld names the node, the row "powering up, nothing -> launch" is decided at
once (``request_rules``). So is the row that ends the machine of a node that slurmctld powers down.

A cap per round, 20 % of the live machines or 10, whichever is more, applies to deletions that no
request asked for, to rows that end for missing machines, and to failed nodes: an error in a view
must not empty the site.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import assert_never

from slurm_elastic.model.causes.machine_ends import (
    EndConfirmed,
    EndPending,
    NodePoweredDown,
    NoSuchNode,
    NotListed,
    PoweredUpAgain,
    SecondMachine,
    StoppedByOthers,
    TooOldWithoutNode,
)
from slurm_elastic.model.causes.repairs import (
    ListDoubted,
    OverAge,
    StartPending,
    StopConfirmed,
    StopPending,
)
from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.actions import (
    Action,
    DoubtList,
    NoteEnd,
    NoteMissing,
    NoteStopped,
    PowerDown,
    PowerDownWhenIdle,
    Relaunch,
    StartAgain,
    StopAgain,
    Terminate,
    TerminateDouble,
    TerminateOrphan,
    TerminateStopped,
    TerminateUnlisted,
)
from slurm_elastic.policies.clock_guard import age as age_of
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, is_down, is_drained, phase
from slurm_elastic.policies.repair.cloud_view import (
    CloudView,
    Recorded,
    StoppedInstance,
    Thresholds,
    TrackedInstance,
)
from slurm_elastic.policies.repair.inventory import (
    InventoryReport,
    answers,
    assess_inventory,
    is_overdue,
)
from slurm_elastic.policies.repair.launch_repairs import repair_launches
from slurm_elastic.policies.repair.node_repairs import of_nodes
from slurm_elastic.policies.repair.stopped_repairs import (
    missing_stopped,
    off,
    runs_though_stopped,
)


def repairs(view: CloudView, patience: Thresholds) -> tuple[Action, ...]:
    """Return all findings of this round, in the order in which they must be acted on."""
    actions: list[Action] = []
    # Launches first: adopted machines must be in the ledger before anything is ended or launched.
    actions += repair_launches(view, patience)
    listing = assess_inventory(view, patience)
    if listing.doubt:
        actions.append(DoubtList(cause=ListDoubted(doubt=listing.doubt)))
    paid_machines: tuple[TrackedInstance | StoppedInstance, ...] = (*view.tracked, *view.stopped)
    for machine in paid_machines:
        action = _machine(view, machine, patience, listing)
        if action is not None:
            actions.append(action)
    actions += _doubles(view)
    # Nodes last: they are about nodes without a machine, and an adoption may give a node one.
    actions += of_nodes(view, pings_count=listing.pings_count, doubted=listing.unserved)
    return tuple(actions)


def _machine(
    view: CloudView,
    machine: TrackedInstance | StoppedInstance,
    patience: Thresholds,
    listing: InventoryReport,
) -> Action | None:
    """The action that one machine calls for. Every state of the row has a rule for every state in
    the list, which mypy checks: a pair that no rule minds would be paid for as long as it lasts.
    """
    if view.listed is None:
        return _unread(machine)
    state = listing.states.get(machine.id)
    if isinstance(machine, StoppedInstance):
        # The list may show another account's machines, or lack tags.
        return None if listing.doubt else _while_stopped(view, machine, state, patience)
    match machine.recorded:
        case Recorded.ENDING:
            return _while_ending(machine, state)
        case Recorded.STOPPING:
            return _while_stopping(view, machine, state, patience, listing)
        case Recorded.WANTED:
            return _while_wanted(view, machine, state, listing)
        case Recorded.STOPPED:
            return None  # ``StoppedInstance`` above
        case _:
            assert_never(machine.recorded)


def _unread(machine: TrackedInstance | StoppedInstance) -> Action | None:
    """The action while the cloud's list cannot be read."""
    # An end needs only the machine's id, and a cloud whose list fails may well end machines.
    if machine.recorded is Recorded.ENDING:
        return Terminate(machine=machine.id, cause=EndPending())
    return None


def _while_ending(machine: TrackedInstance, state: InstanceState | None) -> Action | None:
    match state:
        case None:
            return NoteEnd(machine=machine.id, cause=EndConfirmed())
        case (
            InstanceState.PENDING
            | InstanceState.RUNNING
            | InstanceState.STOPPING
            | InstanceState.STOPPED
            | InstanceState.TERMINATED
        ):
            return Terminate(machine=machine.id, cause=EndPending())
        case _:
            assert_never(state)


def _while_stopping(
    view: CloudView,
    machine: TrackedInstance,
    state: InstanceState | None,
    patience: Thresholds,
    listing: InventoryReport,
) -> Action | None:
    """Record that the machine has stopped or ended, or repeat the stop."""
    match state:
        case None:
            # One list that lacks the machine may hide it.
            is_lost = not listing.doubt and is_overdue(view, machine, patience)
            return _note_missing(machine) if is_lost else None
        case InstanceState.STOPPING | InstanceState.STOPPED:
            return NoteStopped(machine=machine.id, cause=StopConfirmed())
        case InstanceState.PENDING | InstanceState.RUNNING | InstanceState.TERMINATED:
            return StopAgain(machine=machine.id, cause=StopPending())
        case _:
            assert_never(state)


def _while_stopped(
    view: CloudView,
    machine: StoppedInstance,
    state: InstanceState | None,
    patience: Thresholds,
) -> Action | None:
    match state:
        case None:
            return missing_stopped(machine, patience)
        case InstanceState.STOPPING | InstanceState.STOPPED:
            return off(machine)
        case InstanceState.PENDING | InstanceState.RUNNING:
            return runs_though_stopped(view, machine)
        case InstanceState.TERMINATED:
            return None  # the ledger has closed its row as it read the list
        case _:
            assert_never(state)


def _while_wanted(
    view: CloudView,
    machine: TrackedInstance,
    state: InstanceState | None,
    listing: InventoryReport,
) -> Action | None:
    node = view.nodes.get(machine.node)
    match state:
        case None:
            return _note_missing(machine) if machine.id in listing.gone else None
        case InstanceState.STOPPING | InstanceState.STOPPED:
            if _awaits_start(view, machine):
                return _to_be_started(machine, state)
            return _stopped(view, machine, node, listing)
        case InstanceState.PENDING | InstanceState.RUNNING | InstanceState.TERMINATED:
            return _standing(view, machine, node)
        case _:
            assert_never(state)


def _standing(view: CloudView, machine: TrackedInstance, node: SlurmNode | None) -> Action | None:
    """The action for a machine that runs. The first condition that holds decides, in the order of
    the table.
    """
    if node is None:
        return _unlisted(view, machine)
    if view.states[node.name].is_unneeded:
        return TerminateOrphan(machine=machine.id, cause=NodePoweredDown())
    if machine.double_of:
        return TerminateDouble(
            machine=machine.id,
            cause=SecondMachine(node=node.name, keeper=machine.double_of),
        )
    if _is_past(view, machine):
        return Relaunch(machine=machine.id, cause=PoweredUpAgain())
    return _aged(view, machine, node)


def _note_missing(machine: TrackedInstance) -> Action:
    return NoteMissing(machine=machine.id, cause=NotListed(missed_listings=machine.missed_listings))


def _stopped(
    view: CloudView, machine: TrackedInstance, node: SlurmNode | None, listing: InventoryReport
) -> Action | None:
    """End a machine that the cloud has as stopped, unless its node runs jobs and answers slurmctld.
    The cloud may be wrong, and the node of a machine that has really stopped is NOT_RESPONDING
    soon.
    """
    runs_job = node is not None and is_busy(node) and answers(view, machine, listing.running)
    if runs_job and listing.pings_count:
        return None
    return TerminateStopped(machine=machine.id, cause=StoppedByOthers())


def _awaits_start(view: CloudView, machine: TrackedInstance) -> bool:
    """Whether the start of the machine was decided and its node still waits for it."""
    awaits_start = machine.first_launched_at is not None and not machine.has_registered
    return awaits_start and view.phase(machine.node) is Phase.POWERING_UP


def _to_be_started(machine: TrackedInstance, state: InstanceState) -> Action | None:
    """Repeat the start of a machine whose call was lost or has not taken effect. A repeated start
    does no harm.
    """
    # No cloud starts a machine that it is still stopping. A later round repeats the start.
    if state is InstanceState.STOPPING:
        return None
    return StartAgain(machine=machine.id, cause=StartPending())


def _is_past(view: CloudView, machine: TrackedInstance) -> bool:
    """Whether the machine is of an earlier power-up of its node: slurmctld refuses a slurmd that
    booted before the present power-up.
    """
    return machine.has_registered and view.phase(machine.node) is Phase.POWERING_UP


def _unlisted(view: CloudView, machine: TrackedInstance) -> Action | None:
    """End the machine of a node that Slurm does not have. No job can be on such a node."""
    if machine.node:
        return TerminateUnlisted(machine=machine.id, cause=NoSuchNode())
    # If its tags name no node, as after a manual change, we do not know what the machine does. It
    # may stay for its maximum age. After the clock was set back the age is negative, and a machine
    # that may be working stays.
    if machine.max_age is None or view.now - machine.decided_at <= machine.max_age:
        return None
    return TerminateOrphan(machine=machine.id, cause=TooOldWithoutNode())


def _aged(view: CloudView, machine: TrackedInstance, node: SlurmNode) -> Action | None:
    """Power the node of a machine over its maximum age down, after its jobs if it is busy."""
    if machine.max_age is None:
        return None
    age = age_of(
        machine.decided_at if machine.first_launched_at is None else machine.first_launched_at,
        view.now,
    )
    if age <= machine.max_age:
        return None
    # The age of a machine beside the node's own is no reason to power the node down: this would end
    # both. The rule for two machines of a node ends only the wrong machine.
    is_nodes_own = bool(machine.address) and machine.address == node.address
    if machine.node in view.crowded and not is_nodes_own:
        return None
    if phase(node) is not Phase.UP or is_down(node) or is_drained(node):
        return None  # a power-down would undo an admin's drain
    if "POWER_DOWN" in node.states:
        return None  # already ordered; it waits for the jobs
    action = PowerDownWhenIdle if is_busy(node) else PowerDown
    cause = OverAge(age_s=round(age) if isfinite(age) else None, maximum_s=round(machine.max_age))
    return action(node=machine.node, cause=cause)


def _doubles(view: CloudView) -> list[Action]:
    """If a node has several live machines, keep the machine at whose address Slurm has the node,
    else the machine of the newest generation, and end the others.
    """
    listed_ids = {i.id for i in view.listed or ()}
    by_node: dict[str, list[TrackedInstance]] = {}
    for machine in view.tracked:
        does_not_count = machine.is_ending or _is_past(view, machine)
        if machine.id in listed_ids and machine.node and not does_not_count:
            by_node.setdefault(machine.node, []).append(machine)
    actions: list[Action] = []
    for name, machines in by_node.items():
        keeper = _keeper(view.nodes.get(name), machines)
        actions += [
            TerminateDouble(
                machine=machine.id,
                cause=SecondMachine(node=name, keeper=keeper.id, generation=keeper.generation),
            )
            for machine in machines
            if keeper is not None and machine.id != keeper.id
        ]
    return actions


def _keeper(node: SlurmNode | None, machines: Sequence[TrackedInstance]) -> TrackedInstance | None:
    """Return the machine to keep; None if all must stay."""
    at_address = [m for m in machines if node and m.address and m.address == node.address]
    if len(at_address) == 1:
        return at_address[0]
    # Jobs run, and the address does not show on which machine: all of them stay.
    if node is not None and phase(node) is Phase.UP and is_busy(node):
        return None
    return max(machines, key=lambda m: (m.generation, m.id))
