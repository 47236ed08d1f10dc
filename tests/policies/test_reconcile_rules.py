"""Repair decisions: the table of policies.repair.reconcile_rules, and what must never be
decided.
"""

from __future__ import annotations

import time
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.actions import NoteEnd, Terminate, TerminateOrphan
from slurm_elastic.policies.nodes.out_of_service import DrainTerms
from slurm_elastic.policies.nodes.pings import is_lasting, is_pinged
from slurm_elastic.policies.repair.cloud_view import (
    CloudView,
    Intent,
    StoppedInstance,
    Thresholds,
    TrackedInstance,
)
from slurm_elastic.policies.repair.reconcile_rules import repairs
from slurm_elastic.policies.repair.repair_pace import debounce, due_repairs, limit_disruption
from tests.policies.strategies import NOW, instance, views

UP = frozenset({"IDLE", "CLOUD"})
BUSY = frozenset({"ALLOCATED", "CLOUD"})
SILENT = BUSY | {"NOT_RESPONDING"}
BOOTING = frozenset({"ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING"})
OFF = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
MUTE_OFF = OFF | {"NOT_RESPONDING"}
GOING = frozenset({"IDLE", "CLOUD", "POWERING_DOWN"})
DOWN = frozenset({"DOWN", "CLOUD", "NOT_RESPONDING"})
DOWN_OFF = frozenset({"DOWN", "CLOUD", "POWERED_DOWN"})

KNOWN = TrackedInstance(id="i-1", node="pub1", generation="g1", decided_at=NOW - 100)
SEEN = instance("i-1", "pub1", "g1")
OLD = replace(KNOWN, decided_at=NOW - 4000)
AHEAD = replace(KNOWN, decided_at=NOW + 7000)
NAMED = replace(KNOWN, id="i-2")
NAMED_SEEN = replace(SEEN, id="i-2")
STOPPED = replace(SEEN, state=InstanceState.STOPPING)
IS_OFF = replace(SEEN, state=InstanceState.STOPPED)
BEGUN = replace(KNOWN, first_launched_at=NOW - 9000)
MISSED = replace(KNOWN, missed_listings=3)
ENDED = replace(SEEN, id="i-0", state=InstanceState.TERMINATED)
INTENT = Intent(generation="g9", nodes=("pub1",), created=NOW - 1000)
NINTH = instance("i-9", "pub2", "g9")
BOTH = replace(INTENT, nodes=("pub2", "pub1"))


def view(states: frozenset[str] | None, *, reason: str = "", **changes: object) -> CloudView:
    nodes = {} if states is None else {"pub1": SlurmNode(name="pub1", states=states, reason=reason)}
    base = CloudView(now=NOW, nodes=nodes, tracked=(), intents=(), listed=())
    return replace(base, **changes)


def unreachable(**changes: object) -> CloudView:
    """A busy node whose address another one has by now, so that it is that one that answers."""
    at = {"address": "10.0.0.9", "states": BUSY}
    nodes = {name: SlurmNode(name=name, **at) for name in ("pub1", "own1")}  # type: ignore[arg-type]
    return view(BUSY, nodes={"pub1": nodes["pub1"]}, all_nodes=nodes, **changes)


NOTICE = "slurm-elastic:notice:interruption notice"
REBOOTED = "Node unexpectedly rebooted"
INVALID = UP | {"DRAIN", "INVALID_REG"}


def ailing(states: frozenset[str], reason: str = REBOOTED, user: str = "slurm") -> CloudView:
    """A node that ``user`` has taken out of service, with its machine there."""
    node = SlurmNode(name="pub1", states=states, reason=reason, reason_user=user)
    base = view(states, tracked=(KNOWN,), listed=(SEEN,), drain_terms=DrainTerms())
    return replace(base, nodes={"pub1": node})


CASES = {
    "rebooted": (ailing(UP | {"DOWN"}), [("recycle", "pub1")]),
    "rebooted, jobs not yet gone": (ailing(frozenset({"DOWN", "CLOUD", "COMPLETING"})),
                                    [("recycle", "pub1")]),
    "refused as it registered": (ailing(INVALID, "Low CPUs"), [("recycle", "pub1")]),
    "draining by Slurm, a job runs": (ailing(BUSY | {"DRAIN"}, "Epilog error"), []),
    "drained by Slurm": (ailing(UP | {"DRAIN"}, "Kill task failed", "root"),
                         [("recycle", "pub1")]),
    "drained by Slurm, going down": (ailing(GOING | {"DRAIN"}, "Kill task failed"), []),
    "drained by Slurm, told to go down": (
        ailing(UP | {"DRAIN", "POWER_DOWN"}, "Kill task failed"), []),
    "drained by Slurm, powered down": (
        replace(ailing(OFF | {"DRAIN"}, "Low CPUs"), tracked=(), listed=()), [("restore", "pub1")]),
    "down by Slurm, powered down": (
        replace(ailing(DOWN_OFF, "Low CPUs"), tracked=(), listed=()), [("restore", "pub1")]),
    "drained by a person in Slurm's words": (ailing(UP | {"DRAIN"}, "Low CPUs", "ann"), []),
    "drained by a person": (ailing(UP | {"DRAIN"}, "Low CPUs, I guess", "root"), []),
    "down by a person": (ailing(UP | {"DOWN"}, "fan broken", "root"), []),
    "drained by a person, powered down": (
        replace(ailing(OFF | {"DRAIN"}, "Low CPUs", "ann"), tracked=(), listed=()), []),
    "unknown machine is adopted": (view(UP, listed=(SEEN,)), [("adopt", "i-1")]),
    "stopped, ours": (view(UP, tracked=(KNOWN,), listed=(replace(SEEN, state=InstanceState.STOPPING),)),
                      [("terminate-stopped", "i-1")]),
    "to be started, still stopped": (
        view(BOOTING, tracked=(BEGUN,), listed=(IS_OFF,)), [("start", "i-1")]),
    "to be started, still stopping": (
        view(BOOTING, tracked=(BEGUN,), listed=(STOPPED,)), []),
    "started, registered, stopped": (
        view(BOOTING, tracked=(replace(BEGUN, has_registered=True),), listed=(IS_OFF,)),
        [("terminate-stopped", "i-1")]),
    "to be started, needed no more": (
        view(OFF, tracked=(BEGUN,), listed=(IS_OFF,)), [("terminate-stopped", "i-1")]),
    "bought, stopped before it was up": (
        view(BOOTING, tracked=(KNOWN,), listed=(IS_OFF,)), [("terminate-stopped", "i-1")]),
    "stopped, but slurmctld hears its job": (view(BUSY, tracked=(KNOWN,), listed=(STOPPED,)), []),
    "stopped, and slurmctld hears nothing": (view(SILENT, tracked=(KNOWN,), listed=(STOPPED,)),
                                             [("terminate-stopped", "i-1")]),
    "stopped, and slurmctld hears another machine in its place": (
        unreachable(tracked=(KNOWN,), listed=(STOPPED,)),
        [("terminate-stopped", "i-1")]),
    "stopped, and another one of the node runs": (
        view(BUSY, tracked=(KNOWN, NAMED), listed=(STOPPED, NAMED_SEEN)),
        [("terminate-stopped", "i-1")]),
    "stopped, unknown": (view(UP, listed=(replace(SEEN, state=InstanceState.STOPPING),)),
                         [("adopt-stopped", "i-1")]),
    "stopped, its end was decided": (
        view(OFF, tracked=(replace(KNOWN, is_ending=True),),
             listed=(replace(SEEN, state=InstanceState.STOPPING),)), [("terminate", "i-1")]),
    "all in order": (view(UP, tracked=(KNOWN,), listed=(SEEN,)), []),
    "missing once": (view(UP, tracked=(replace(KNOWN, missed_listings=1),)), []),
    "missing three times": (view(SILENT, tracked=(MISSED,)), [("end-missing", "i-1")]),
    "missing three times, powered down": (view(OFF, tracked=(MISSED,)), [("end-missing", "i-1")]),
    "missing three times, down": (view(DOWN, tracked=(MISSED,)), [("end-missing", "i-1")]),
    "missing three times, of no node": (view(None, tracked=(MISSED,)), [("end-missing", "i-1")]),
    "missing three times, booting": (view(BOOTING, tracked=(MISSED,)), [("end-missing", "i-1")]),
    "missing three times, but slurmctld hears it": (view(BUSY, tracked=(MISSED,)),
                                                    [("doubt", "list")]),
    "missing three times, slurmctld hears another machine in its place": (
        unreachable(tracked=(MISSED,)), [("end-missing", "i-1")]),
    "missing three times, slurmctld hears another one of the node": (
        view(BUSY, tracked=(MISSED, NAMED), listed=(NAMED_SEEN,)), [("end-missing", "i-1")]),
    "missing, its end was decided": (view(OFF, tracked=(replace(KNOWN, is_ending=True),)),
                                     [("end", "i-1")]),
    "cloud unreadable, its end was decided": (
        view(OFF, tracked=(replace(KNOWN, is_ending=True),), listed=None), [("terminate", "i-1")]),
    "cloud unreadable, to be stopped": (
        view(OFF, tracked=(replace(KNOWN, is_ending=True, is_stopping=True),), listed=None), []),
    "cloud unreadable": (view(OFF, tracked=(replace(KNOWN, missed_listings=9),), listed=None), []),
    "end decided, still there": (view(OFF, tracked=(replace(KNOWN, is_ending=True),), listed=(SEEN,)),
                                 [("terminate", "i-1")]),
    "intent answered": (view(BOOTING, intents=(INTENT,), listed=(replace(SEEN, generation="g9"),)),
                        [("confirm", "g9")]),
    "intent unanswered, wanted": (view(BOOTING, intents=(INTENT,)), [("retry", "g9")]),
    "intent unanswered, wanted, one of its nodes has a machine by now": (
        view(BOOTING, tracked=(KNOWN,), listed=(SEEN,), intents=(BOTH,)), [("abandon", "g9")]),
    "intent unanswered, wanted, its node has a machine that is yet to be taken in": (
        view(BOOTING, listed=(SEEN,), intents=(replace(INTENT, created=NOW - 9),)),
        [("adopt", "i-1")]),
    "intent unanswered, wanted, the machine of its node ends": (
        view(BOOTING, tracked=(replace(KNOWN, is_ending=True),), listed=(SEEN,), intents=(INTENT,)),
        [("retry", "g9"), ("terminate", "i-1")]),
    "intent answered in part, another machine has the other node": (
        view(BOOTING, tracked=(KNOWN,), listed=(SEEN, NINTH), intents=(BOTH,)),
        [("adopt", "i-9"), ("confirm", "g9")]),
    "intent answered in part, its other node is wanted": (
        view(BOOTING, listed=(NINTH,), intents=(BOTH,)), [("adopt", "i-9"), ("retry", "g9")]),
    "intent answered in part, its other node is not wanted": (
        view(OFF, listed=(NINTH,), intents=(BOTH,)), [("adopt", "i-9"), ("confirm", "g9")]),
    "intents unanswered, wanted, of the same node": (
        view(BOOTING, intents=(INTENT, replace(BOTH, generation="g8", created=NOW - 9))),
        [("abandon", "g9")]),
    "intent unanswered, wanted, another cloud serves its node": (
        view(BOOTING, intents=(INTENT,), elsewhere=frozenset({"pub1"})), [("abandon", "g9")]),
    "intent unanswered, unwanted, from before the clock was set back": (
        view(OFF, intents=(replace(INTENT, created=NOW + 5 * 86400),)), [("abandon", "g9")]),
    "intent unanswered, unwanted": (view(OFF, intents=(INTENT,)), [("abandon", "g9")]),
    "intent unanswered, young": (view(OFF, intents=(replace(INTENT, created=NOW - 9),)), []),
    "wanted again, its machine was up before": (
        view(BOOTING, tracked=(replace(KNOWN, has_registered=True),), listed=(SEEN,)),
        [("relaunch", "i-1")]),
    "wanted, its machine boots": (view(BOOTING, tracked=(KNOWN,), listed=(SEEN,)), []),
    "wanted again, two machines, one was up before": (
        view(BOOTING, tracked=(replace(KNOWN, has_registered=True), replace(NAMED, generation="g0")),
             listed=(SEEN, replace(NAMED_SEEN, generation="g0"))),
        [("relaunch", "i-1")]),
    "wanted, nothing there": (view(BOOTING), [("launch", "pub1")]),
    "wanted, but held": (view(BOOTING, held=frozenset({"pub1"})), [("give-back", "pub1")]),
    "wanted, another cloud's machine boots": (view(BOOTING, elsewhere=frozenset({"pub1"})), []),
    "wanted, a machine of it is on its way out": (
        view(BOOTING, tracked=(replace(KNOWN, is_ending=True),), listed=(SEEN,)),
        [("terminate", "i-1"), ("launch", "pub1")]),
    "wanted, a machine of it is being stopped": (
        view(BOOTING, listed=(STOPPED,)), [("adopt-stopped", "i-1"), ("launch", "pub1")]),
    "wanted, one machine of it is on its way out, another boots": (
        view(BOOTING, tracked=(replace(KNOWN, is_ending=True), NAMED), listed=(SEEN, NAMED_SEEN)),
        [("terminate", "i-1")]),
    "up, silent, a machine of it is on its way out": (
        view(SILENT, tracked=(replace(KNOWN, is_ending=True),), listed=(SEEN,)),
        [("terminate", "i-1"), ("fail-node", "pub1")]),
    "up, heard, a machine of it is on its way out and hidden": (
        view(BUSY, tracked=(replace(KNOWN, is_ending=True),)), [("end", "i-1")]),
    "up, its machine has ended, an earlier one is on its way out": (
        view(BUSY, tracked=(replace(KNOWN, is_ending=True),), listed=(SEEN, ENDED)),
        [("terminate", "i-1"), ("fail-lost", "pub1")]),
    "up without a machine": (view(SILENT), [("fail-node", "pub1")]),
    "up without a machine, but slurmctld hears it": (view(BUSY), [("doubt", "list")]),
    "up without a machine, slurmctld hears another in its place": (
        unreachable(), [("fail-node", "pub1")]),
    "up on another cloud's machine": (view(SILENT, elsewhere=frozenset({"pub1"})), []),
    "moved, its node is at its own cloud's machine": (
        view(BUSY, tracked=(replace(KNOWN, double_of="i-7"),), listed=(SEEN,)),
        [("terminate-double", "i-1")]),
    "up, and its machine has ended": (view(BUSY, listed=(ENDED,)), [("fail-lost", "pub1")]),
    "up on another machine than the ended": (view(BUSY, tracked=(KNOWN,), listed=(SEEN, ENDED)), []),
    "powered down with a machine": (view(OFF, tracked=(KNOWN,), listed=(SEEN,)),
                                    [("terminate-orphan", "i-1")]),
    "powering down with a machine": (view(GOING, tracked=(KNOWN,), listed=(SEEN,)), []),
    "node unknown to Slurm": (
        view(None, tracked=(KNOWN,), listed=(SEEN,)), [("terminate-unlisted", "i-1")]),
    "node unknown to Slurm, cloud unreadable": (view(None, tracked=(OLD,), listed=None), []),
    "no node's name": (view(UP, tracked=(replace(OLD, node=""), NAMED), listed=(SEEN, NAMED_SEEN)), []),
    "no node's name, too old": (
        view(UP, tracked=(replace(OLD, node="", max_age=3000), NAMED), listed=(SEEN, NAMED_SEEN)),
        [("terminate-orphan", "i-1")]),
    "two without a node's name": (
        view(None, tracked=(replace(KNOWN, node=""), replace(NAMED, node="")),
             listed=(SEEN, NAMED_SEEN)), []),
    "down, Slurm's own reason": (view(DOWN, reason="Not responding", tracked=(KNOWN,), listed=(SEEN,)),
                                 [("clear", "pub1")]),
    "down, an admin's": (view(DOWN, reason="fan", tracked=(KNOWN,), listed=(SEEN,)), []),
    "drained for a notice, powered down": (
        view(OFF | {"DRAIN"}, reason=NOTICE), [("restore", "pub1")]),
    "drained for a notice, powered down, its machine there": (
        view(OFF | {"DRAIN"}, reason=NOTICE, tracked=(KNOWN,), listed=(SEEN,)),
        [("terminate-orphan", "i-1")]),
    "drained for a notice, going down": (view(GOING | {"DRAIN"}, reason=NOTICE), []),
    "drained by a person, powered down, nothing there": (
        view(OFF | {"DRAIN"}, reason="notice: fan"), []),
    "down and powered down": (view(DOWN_OFF, reason="ResumeTimeout reached"), [("restore", "pub1")]),
    "powered down, allocated": (view(OFF | {"ALLOCATED"}, tracked=(KNOWN,), listed=(SEEN,)),
                                [("disclaim", "pub1")]),
    "powered down, not responding": (view(MUTE_OFF), [("power-down-again", "pub1")]),
    "powered down, not responding, its machine there": (
        view(MUTE_OFF, tracked=(KNOWN,), listed=(SEEN,)),
        [("terminate-orphan", "i-1"), ("power-down-again", "pub1")]),
    "powered down, not responding, drained": (view(MUTE_OFF | {"DRAIN"}, reason="fan"), []),
    "powered down, not responding, jobs not yet gone": (view(MUTE_OFF | {"COMPLETING"}), []),
    "powered down, not responding, its cloud unreadable": (
        view(MUTE_OFF, listed=None), [("power-down-again", "pub1")]),
    "powered down, jobs not yet gone": (
        view(OFF | {"COMPLETING"}, tracked=(KNOWN,), listed=(SEEN,)), []),
    "too old, idle": (view(UP, tracked=(replace(KNOWN, max_age=50),), listed=(SEEN,)),
                      [("power-down", "pub1")]),
    "too old, and another one of the node is young": (
        view(UP, tracked=(replace(KNOWN, max_age=50), replace(NAMED, generation="g2", max_age=500)),
             listed=(SEEN, NAMED_SEEN)), [("terminate-double", "i-1")]),
    "too old, busy, and another one of the node is young": (
        view(BUSY, tracked=(replace(KNOWN, max_age=50), replace(NAMED, max_age=500)),
             listed=(SEEN, NAMED_SEEN)), []),
    "too old, and another one of the node ends": (
        view(UP, tracked=(replace(KNOWN, max_age=50), replace(NAMED, is_ending=True)),
             listed=(SEEN,)), [("power-down", "pub1"), ("end", "i-2")]),
    "too old, busy": (view(BUSY, tracked=(replace(KNOWN, max_age=50),), listed=(SEEN,)),
                      [("power-down-asap", "pub1")]),
    "too old by a clock that was set back": (
        view(BUSY, tracked=(replace(AHEAD, max_age=50),), listed=(SEEN,)),
        [("power-down-asap", "pub1")]),
    "its cloud's clock is ahead": (
        view(UP, tracked=(replace(KNOWN, decided_at=NOW + 600, max_age=50),), listed=(SEEN,)), []),
    "node unknown to Slurm, from before the clock was set back": (
        view(None, tracked=(AHEAD,), listed=(SEEN,)), [("terminate-unlisted", "i-1")]),
    "no node's name, from before the clock was set back": (
        view(UP, tracked=(replace(AHEAD, node="", max_age=50), NAMED), listed=(SEEN, NAMED_SEEN)), []),
    "too old, an admin's drain": (
        view(UP | {"DRAIN"}, tracked=(replace(KNOWN, max_age=50),), listed=(SEEN,)), []),
    "too old, an admin's drain of a busy one": (
        view(BUSY | {"DRAIN"}, tracked=(replace(KNOWN, max_age=50),), listed=(SEEN,)), []),
    "too old, it boots": (view(BOOTING, tracked=(replace(KNOWN, max_age=50),), listed=(SEEN,)), []),
    "too old, set down by an admin": (
        view(UP | {"DOWN"}, tracked=(replace(KNOWN, max_age=50),), listed=(SEEN,)), []),
    "old enough": (view(BUSY, tracked=(replace(KNOWN, max_age=500),), listed=(SEEN,)), []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_table(name: str) -> None:
    world, expected = CASES[name]
    assert [(a.kind, a.subject) for a in repairs(world, Thresholds())] == expected
    assert all(str(a.reason) for a in repairs(world, Thresholds()))


@pytest.mark.parametrize(
    ("before", "since", "expected"),
    [
        (view(OFF, intents=(replace(INTENT, created=NOW - 599),)),
         view(OFF, intents=(replace(INTENT, created=NOW - 600),)), "abandon"),
        (view(UP, tracked=(replace(KNOWN, max_age=100),), listed=(SEEN,)),
         view(UP, tracked=(replace(KNOWN, max_age=99),), listed=(SEEN,)), "power-down"),
        (view(OFF, tracked=(replace(MISSED, missed_listings=2),)), view(OFF, tracked=(MISSED,)), "end-missing"),
    ],
)  # fmt: skip
def test_what_waits_for_an_age_begins_with_that(
    before: CloudView, since: CloudView, expected: str
) -> None:
    """Ten minutes, the pool's maximum, three reads."""
    assert [[a.kind for a in repairs(world, Thresholds())] for world in (before, since)] == [
        [], [expected],
    ]  # fmt: skip


def test_one_that_is_to_be_stopped_has_ended_after_as_many_reads_as_any_other() -> None:
    """A list that lacks it says nothing of a stop whose answer was lost: its disk is paid on."""
    one = replace(KNOWN, is_ending=True, is_stopping=True)
    hidden = replace(one, missed_listings=3, was_listed=False)
    found = [
        [a.kind for a in repairs(view(OFF, tracked=(known,)), Thresholds())]
        for known in (one, replace(one, missed_listings=2), hidden, replace(one, missed_listings=3))
    ]
    assert found == [[], [], [], ["end-missing"]]


def test_one_that_is_stopped_has_ended_after_as_many_reads_as_any_other() -> None:
    worlds = [
        view(OFF, stopped=(StoppedInstance(id="i-1", node="pub1", missed_listings=misses),))
        for misses in range(1, 5)
    ]
    found = [[a.kind for a in repairs(world, Thresholds())] for world in worlds]
    assert found == [[], [], ["end-missing"], ["end-missing"]]


@pytest.mark.parametrize(
    ("states", "seen", "expected"),
    [
        (SILENT, SEEN, ["runs-again"]),
        (SILENT, replace(SEEN, state=InstanceState.STOPPED), ["fail-node"]),
        (BOOTING, SEEN, ["end-stopped", "launch"]),
    ],
)
def test_a_node_whose_stopped_machine_was_started_by_somebody_has_not_lost_it(
    states: frozenset[str], seen: Instance, expected: list[str]
) -> None:
    world = view(states, stopped=(StoppedInstance(id="i-1", node="pub1"),), listed=(seen,))
    assert [a.kind for a in repairs(world, Thresholds())] == expected


@pytest.mark.parametrize("beside", [(), (replace(NAMED, address="10.0.0.2"),)])
@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (UP, "runs-again"),
        (BUSY, "runs-again"),
        (BUSY | {"DRAIN"}, "runs-again"),
        (DOWN, "runs-again"),
        (None, "runs-again"),
        (BOOTING, "end-stopped"),
        (OFF, "end-stopped"),
    ],
)
def test_a_stopped_machine_that_runs_has_a_rule_whatever_its_node_and_other_machine_do(
    states: frozenset[str] | None, expected: str, beside: tuple[TrackedInstance, ...]
) -> None:
    world = view(
        states,
        stopped=(StoppedInstance(id="i-1", node="pub1"),),
        tracked=beside,
        listed=(SEEN, *(NAMED_SEEN for _ in beside)),
    )
    (action,) = [a for a in repairs(world, Thresholds()) if a.subject == "i-1"]
    assert action.kind == expected


@pytest.mark.parametrize("needed", [1, 2, 5])
def test_a_machine_is_missing_after_as_many_reads_as_the_site_says(needed: int) -> None:
    patience = Thresholds(max_missed_listings=needed)
    found = [
        [a.kind for a in repairs(view(OFF, tracked=(one,)), patience)]
        for one in (
            KNOWN,
            replace(KNOWN, missed_listings=needed - 1),
            replace(KNOWN, missed_listings=needed),
        )
    ]
    assert found == [[], [], ["end-missing"]]


def test_a_patient_repair_is_due_after_two_minutes() -> None:
    world = view(UP, listed=(SEEN,), tracked=(replace(KNOWN, is_ending=True),))
    at_once = due_repairs(world, Thresholds(), {}, 0.0)
    assert [a.kind for a in at_once.ready] == ["terminate"]
    orphan = view(OFF, listed=(SEEN,), tracked=(KNOWN,))
    first = due_repairs(orphan, Thresholds(), {}, 1000.0)
    assert (first.ready, first.deferred_count) == ((), 0)
    assert due_repairs(orphan, Thresholds(), first.found_since, 1119.0).ready == ()
    (due,) = due_repairs(orphan, Thresholds(), first.found_since, 1120.0).ready
    assert due.kind == "terminate-orphan"


def test_a_machine_ends_an_hour_after_slurm_has_lost_its_node() -> None:
    """However old it is: the include file may have been commented out by mistake."""
    world = view(None, tracked=(replace(KNOWN, decided_at=NOW - 90_000),), listed=(SEEN,))
    first = due_repairs(world, Thresholds(), {}, 1000.0)
    assert first.ready == ()
    assert due_repairs(world, Thresholds(), first.found_since, 4599.0).ready == ()
    (due,) = due_repairs(world, Thresholds(), first.found_since, 4600.0).ready
    assert due.kind == "terminate-unlisted"
    there = view(UP, tracked=world.tracked, listed=(SEEN,))
    back = due_repairs(there, Thresholds(), first.found_since, 2000.0)
    again = due_repairs(world, Thresholds(), back.found_since, 4600.0)
    assert again.ready == ()
    after_takeover = replace(Thresholds(), grace_s=inf)
    assert due_repairs(world, after_takeover, first.found_since, 9000.0).ready == ()


def many(count: int, states: frozenset[str], start: int = 0) -> CloudView:
    """So many machines in that state, none of which the cloud lists."""
    names = [f"pub{i}" for i in range(start, start + count)]
    return view(
        None,
        nodes={n: SlurmNode(name=n, states=states) for n in names},
        tracked=tuple(replace(MISSED, id=f"i-{n}", node=n, generation=n) for n in names),
    )


def both(one: CloudView, other: CloudView, **changes: object) -> CloudView:
    return replace(
        one, nodes={**one.nodes, **other.nodes}, tracked=(*one.tracked, *other.tracked), **changes
    )


def kinds(world: CloudView) -> dict[str, int]:
    found = [a.kind for a in repairs(world, Thresholds())]
    return {kind: found.count(kind) for kind in found}


def test_a_list_that_lacks_what_slurmctld_hears_ends_nothing_that_boots() -> None:
    world = both(many(40, BUSY), many(3, BOOTING, 40))
    assert kinds(world) == {"doubt": 1}
    (finding,) = repairs(world, Thresholds())
    assert str(finding.reason) == (
        "it lists 0 of 43 machines that were there, but slurmctld hears the nodes pub0, pub1, "
        "pub2, pub3, pub4 and 35 more: are these another account's credentials, or were tags "
        "taken away?"
    )


def test_a_list_that_lacks_many_booting_machines_ends_none_until_slurm_gives_them_up() -> None:
    assert kinds(many(10, BOOTING)) == {"end-missing": 10}
    assert kinds(many(11, BOOTING)) == {"doubt": 1}
    assert "11 of those it lacks are booting" in str(
        repairs(many(11, BOOTING), Thresholds())[0].reason
    )
    assert kinds(many(11, DOWN_OFF)) == {"end-missing": 11}


def test_a_loss_that_slurmctld_notices_too_is_no_doubt() -> None:
    """As when a host fails with 30 of 40 machines."""
    there = [instance(f"i-pub{i}", f"pub{i}", f"pub{i}") for i in range(30, 40)]
    world = both(many(30, SILENT), many(10, BUSY, 30), listed=tuple(there))
    actions = repairs(world, Thresholds())
    assert {a.kind for a in actions} == {"end-missing"}
    kept, waiting = limit_disruption(actions, 40)
    assert (len(kept), waiting) == (10, 20)


def ended_at_once(count: int, states: frozenset[str]) -> CloudView:
    """So many nodes in that state whose machines the cloud lists as ended."""
    world = many(count, states, 10)
    ended = [replace(instance(f"i-{n}", n, n), state=InstanceState.TERMINATED) for n in world.nodes]
    return replace(world, tracked=(), listed=tuple(ended))


def test_many_machines_that_a_list_shows_as_ended_have_ended_only_if_slurm_agrees() -> None:
    assert kinds(ended_at_once(2, BUSY)) == {"fail-lost": 2}
    assert kinds(ended_at_once(3, BUSY)) == {"doubt": 1}
    assert kinds(ended_at_once(3, SILENT)) == {"fail-lost": 3}
    assert str(repairs(ended_at_once(3, BUSY), Thresholds())[0].reason) == (
        "it shows 3 machines as ended at once, but slurmctld hears the nodes pub10, pub11, pub12: "
        "no node is set DOWN for this before it is silent, too"
    )


def test_without_pings_machines_that_a_list_shows_as_ended_are_lost_some_at_a_time() -> None:
    world = unpinged(ended_at_once(30, BUSY))
    assert kinds(world) == {"fail-lost": 30}
    due = due_repairs(world, Thresholds(), {}, 0.0)
    assert (len(due.ready), due.deferred_count) == (10, 20)


def test_machines_that_already_end_do_not_raise_how_many_may_be_lost_in_a_round() -> None:
    """100 machines of which 60 end: 20 % of the other 40 are fewer than the 10 of any site."""
    ending = many(60, OFF)
    ending = replace(
        ending, tracked=tuple(replace(m, is_ending=True, missed_listings=0) for m in ending.tracked)
    )
    world = both(many(40, SILENT, 60), ending)
    due = due_repairs(world, Thresholds(grace_s=0.0), {}, 0.0)
    assert [a.kind for a in due.ready].count("end-missing") == 10
    assert due.deferred_count == 30


def unpinged(one: CloudView, **changes: object) -> CloudView:
    return replace(one, slurmd_timeout=0.0, **changes)


def test_without_pings_a_node_that_slurmctld_has_up_keeps_no_lost_machine() -> None:
    """As with a SlurmdTimeout of 0."""
    assert kinds(unpinged(many(1, BUSY))) == {"end-missing": 1}
    assert kinds(unpinged(many(10, BUSY))) == {"end-missing": 10}
    assert kinds(unpinged(view(BUSY))) == {"fail-node": 1}
    assert kinds(unpinged(view(BUSY, tracked=(KNOWN,), listed=(STOPPED,)))) == {
        "terminate-stopped": 1
    }


def test_without_pings_a_list_that_lacks_all_of_many_ends_nothing() -> None:
    assert kinds(unpinged(many(11, BUSY))) == {"doubt": 1}
    assert "has up, without a ping, the nodes" in str(
        repairs(unpinged(many(11, BUSY)), Thresholds())[0].reason
    )
    since = replace(KNOWN, id="i-new", node="new", decided_at=NOW - 1)
    started = replace(SEEN, id="i-new", node="new")
    world = both(many(11, BUSY), view(None, tracked=(since,), listed=(started,)), listed=(started,))
    assert kinds(unpinged(world)) == {"doubt": 1, "terminate-unlisted": 1}
    nameless = replace(many(11, BUSY), tracked=())
    assert kinds(unpinged(nameless)) == {"doubt": 1}


def test_without_pings_a_list_that_has_one_as_old_as_a_lost_one_is_believed() -> None:
    """Both were there before, and the list has one of them: it is no other account's."""
    kept = replace(KNOWN, id="i-kept", node="kept", decided_at=NOW - 50)
    seen = (replace(SEEN, id="i-kept", node="kept"),)
    world = both(many(11, BUSY), view(None, tracked=(kept,)), listed=seen)
    assert kinds(unpinged(world)) == {"doubt": 1, "terminate-unlisted": 1}
    newest = replace(world.tracked[0], decided_at=NOW - 50)
    assert kinds(unpinged(replace(world, tracked=(newest, *world.tracked[1:])))) == {
        "end-missing": 11,
        "terminate-unlisted": 1,
    }


def test_without_pings_what_slurm_gives_up_ends_whatever_the_list() -> None:
    assert kinds(unpinged(both(many(11, BUSY), many(3, DOWN, 11)))) == {
        "doubt": 1,
        "end-missing": 3,
    }


def test_without_pings_a_loss_of_most_machines_is_believed() -> None:
    there = [instance(f"i-pub{i}", f"pub{i}", f"pub{i}") for i in range(30, 40)]
    world = both(many(30, BUSY), many(10, BUSY, 30), listed=tuple(there))
    assert kinds(unpinged(world)) == {"end-missing": 30}


@pytest.mark.parametrize(
    ("timeout", "pinged"), [(0, False), (1, True), (1800, True), (7200, False)]
)
def test_what_slurmctld_pings(timeout: float, pinged: bool) -> None:
    assert is_pinged(timeout) is pinged


def test_a_doubt_lasts_once_slurmctld_would_know_of_a_loss() -> None:
    assert [is_lasting(stood, 300) for stood in (120, 199, 200)] == [False, False, True]
    assert is_lasting(120, 0)


def test_one_missing_machine_that_is_heard_does_not_keep_the_others() -> None:
    there = [instance(f"i-pub{i}", f"pub{i}", f"pub{i}") for i in range(2, 9)]
    world = both(both(many(1, BUSY), many(1, BOOTING, 1)), many(7, BUSY, 2), listed=tuple(there))
    assert kinds(world) == {"doubt": 1, "end-missing": 1}


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        ({"decided_at": NOW - 299, "was_listed": False}, False),
        ({"decided_at": NOW - 300, "was_listed": False}, True),
        ({"decided_at": NOW, "was_listed": False}, False),
        ({"decided_at": NOW + 1, "was_listed": False}, True),
        ({"decided_at": NOW - 299}, True),
        ({"decided_at": NOW - 4000, "missed_listings": 2}, False),
    ],
)
def test_a_missing_machine_has_ended_unless_the_cloud_may_still_hide_it(
    change: dict[str, object], *, ends: bool
) -> None:
    """Five minutes for one that no read has had; a launch in the future is of a clock set back."""
    found = kinds(view(OFF, tracked=(replace(MISSED, **change),)))
    assert ("end-missing" in found) is ends


def test_of_two_machines_the_newer_stays() -> None:
    older = replace(KNOWN, id="i-0", generation="g0")
    world = view(
        UP, tracked=(older, KNOWN), listed=(SEEN, replace(SEEN, id="i-0", generation="g0"))
    )
    assert [(a.kind, a.subject) for a in repairs(world, Thresholds())] == [
        ("terminate-double", "i-0")
    ]


def test_of_two_machines_the_one_at_the_nodes_address_stays() -> None:
    older = replace(KNOWN, id="i-0", generation="g0", address="10.0.0.1")
    newer = replace(KNOWN, address="10.0.0.2")
    node = SlurmNode(name="pub1", states=BUSY, address="10.0.0.1")
    world = view(
        BUSY,
        nodes={"pub1": node},
        tracked=(older, newer),
        listed=(SEEN, replace(SEEN, id="i-0", generation="g0")),
    )
    assert [(a.kind, a.subject) for a in repairs(world, Thresholds())] == [
        ("terminate-double", "i-1")
    ]


@given(views())
def test_nothing_is_deleted_when_the_cloud_was_not_read(world: CloudView) -> None:
    actions = repairs(replace(world, listed=None), Thresholds())
    repeated = [a for a in actions if isinstance(a, Terminate)]
    assert {a.machine for a in repeated} == {m.id for m in world.tracked if m.is_ending}
    decided = [a for a in actions if a not in repeated]
    assert not [a for a in decided if a.kind.startswith(("terminate", "end", "abandon", "launch"))]


@given(views())
def test_a_machine_of_a_node_in_use_is_never_an_orphan(world: CloudView) -> None:
    orphans = {a.subject for a in repairs(world, Thresholds()) if a.kind == "terminate-orphan"}
    for machine in world.tracked:
        if machine.id in orphans and machine.node in world.nodes:
            assert "POWERED_DOWN" in world.nodes[machine.node].states


@given(views())
def test_no_second_machine_for_a_node_that_has_one_or_may_have_one(world: CloudView) -> None:
    launched = {a.subject for a in repairs(world, Thresholds()) if a.kind == "launch"}
    assert launched.isdisjoint(m.node for m in world.tracked if not m.is_ending)
    assert launched.isdisjoint(n for i in world.intents for n in i.nodes)
    assert launched.isdisjoint(world.held)


@given(views())
def test_an_admins_own_down_node_is_left_alone(world: CloudView) -> None:
    touched = {a.subject for a in repairs(world, Thresholds())}
    for node in world.nodes.values():
        if "DOWN" in node.states and node.reason == "admin: broken fan":
            assert node.name not in touched


def test_patient_findings_must_stand() -> None:
    finding = TerminateOrphan(machine="i-1", cause=Quoted(text="x"))
    ready, standing = debounce([finding], {}, NOW, lambda _: 60.0)
    assert ready == ()
    ready, standing = debounce([finding], standing, NOW + 59, lambda _: 60.0)
    assert ready == ()
    ready, _ = debounce([finding], standing, NOW + 60, lambda _: 60.0)
    assert ready == (finding,)
    _, gone = debounce([], standing, NOW + 61, lambda _: 60.0)
    assert gone == {}


@given(st.integers(0, 400), st.integers(0, 400))
def test_deletions_nobody_asked_for_are_capped(count: int, live: int) -> None:
    actions = [TerminateOrphan(machine=str(i), cause=Quoted(text="x")) for i in range(count)]
    kept, waiting = limit_disruption(actions, live)
    assert len(kept) <= max(10, live * 0.2)
    assert len(kept) + waiting == count


def test_what_is_done_at_once_is_not_remembered() -> None:
    finding = NoteEnd(machine="i-1", cause=Quoted(text="x"))
    assert debounce([finding], {}, NOW, lambda _: 0.0) == ((finding,), {})


HERE, THERE, BEYOND = "10.0.0.1", "10.0.0.2", "10.0.0.3"


@pytest.mark.parametrize(
    ("own", "others", "works"),
    [
        (HERE, THERE, True),
        (HERE, HERE, False),
        (THERE, HERE, False),
        (THERE, BEYOND, False),
        (None, BEYOND, False),
    ],
)
def test_a_stopped_machine_works_where_its_node_is_at_its_address_alone(
    own: str | None, others: str, *, works: bool
) -> None:
    """Another machine with the node's name runs, as after a tag was copied."""
    world = view(
        BUSY,
        nodes={"pub1": SlurmNode(name="pub1", states=BUSY, address=HERE)},
        tracked=(replace(KNOWN, address=own), NAMED),
        listed=(STOPPED, replace(NAMED_SEEN, address=others)),
    )
    assert ("terminate-stopped" in kinds(world)) is not works


@pytest.mark.parametrize(("there", "ends"), [(1, 0), (2, 1)])
def test_a_list_that_lacks_just_half_is_believed_of_what_boots(there: int, ends: int) -> None:
    """One is missing that slurmctld hears, and one that boots."""
    listed = [instance(f"i-pub{i}", f"pub{i}", f"pub{i}") for i in range(2, 2 + there)]
    missing = both(many(1, BUSY), many(1, BOOTING, 1))
    world = both(missing, many(there, BUSY, 2), listed=tuple(listed))
    assert kinds(world).get("end-missing", 0) == ends


def test_a_doubt_counts_nodes_without_any_machine_and_names_up_to_five() -> None:
    def told(world: CloudView) -> str:
        return str(repairs(world, Thresholds())[0].reason).partition(":")[0]

    assert told(view(BUSY)) == (
        "it lists 0 of 1 machines that were there, but slurmctld hears the nodes pub1"
    )
    assert told(many(5, BUSY)).endswith("hears the nodes pub0, pub1, pub2, pub3, pub4")
    assert told(many(6, BUSY)).endswith("pub4 and 1 more")


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        (view(None, tracked=(OLD,), listed=(SEEN,)), "Slurm has no such node"),
        (view(UP, tracked=(replace(OLD, node="", max_age=3000), NAMED), listed=(SEEN, NAMED_SEEN)),
         "its tags name no node and it is too old"),
        (view(UP, tracked=(replace(KNOWN, max_age=50),), listed=(SEEN,)),
         "its machine is 1m 40s old, the pool's maximum is 50s"),
        (view(UP, tracked=(replace(AHEAD, max_age=50),), listed=(SEEN,)),
         "its machine is from before the clock was set back, the pool's maximum is 50s"),
        (view(OFF, intents=(INTENT,)),
         "no machine of this launch was seen for 16m and Slurm wants none of its nodes"),
        (view(DOWN, tracked=(MISSED,)), "the cloud did not list it 3 times in a row"),
    ],
)  # fmt: skip
def test_why_something_is_mended_is_told(world: CloudView, reason: str) -> None:
    assert [str(a.reason) for a in repairs(world, Thresholds())] == [reason]


def seconds_for(count: int) -> float:
    """Processor time of a round over so many busy nodes, the best of three."""
    names = [f"pub{i}" for i in range(count)]
    world = CloudView(
        now=NOW,
        nodes={n: SlurmNode(name=n, states=BUSY) for n in names},
        tracked=tuple(replace(KNOWN, id=f"i-{n}", node=n, generation=n) for n in names),
        intents=(),
        listed=tuple(replace(SEEN, id=f"i-{n}", node=n, generation=n) for n in names),
    )
    times = []
    for _ in range(3):
        began = time.process_time()
        assert repairs(world, Thresholds()) == ()
        times.append(time.process_time() - began)
    return min(times)


def test_a_round_takes_time_by_the_number_of_machines_not_by_its_square() -> None:
    assert seconds_for(8000) < 30 * seconds_for(1000)
