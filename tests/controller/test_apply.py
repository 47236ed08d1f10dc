"""The actions decided for a cloud, each carried out by itself, on a site in memory."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, CapacityError, ProviderError, SlurmError
from slurm_elastic.controller import adoption, context, ending, recycling
from slurm_elastic.controller.apply import _Apply, apply
from slurm_elastic.controller.context import Site, new_generation
from slurm_elastic.controller.giving_back import power_down_and_requeue
from slurm_elastic.controller.snapshot import build_terms, read_all_nodes, take_snapshot
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.composed import NodeFailed
from slurm_elastic.model.causes.machine_ends import EndedWhileUnwritable
from slurm_elastic.model.causes.repairs import RequestLost
from slurm_elastic.model.cluster import Instance, LaunchSpec
from slurm_elastic.model.exclusion import CAPACITY, OPERATOR, Exclusion
from slurm_elastic.model.launch_states import Failed
from slurm_elastic.model.memory import generation_order
from slurm_elastic.model.slurm import NOWHERE, Request, SlurmNode
from slurm_elastic.policies import actions
from slurm_elastic.policies.nodes.node_reasons import OUR_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import Phase, is_down, phase
from slurm_elastic.policies.repair.cluster import decide
from slurm_elastic.policies.repair.cluster_snapshot import RoundRule
from slurm_elastic.slurm.client.commands import node_updates
from slurm_elastic.state.ledger import Condition, Ledger, Machine
from tests.controller.world import PUB, World

WHY = "so it was decided"
FULL = Condition(end_only="the disk is full")


def do(world: World, *some: actions.Action, seen: Sequence[Instance] = ()) -> None:
    site = world.site
    snapshot = take_snapshot(site, build_terms(site, "pub"), read_all_nodes(site), tuple(seen))
    apply(site, "pub", some, snapshot)


def do_asked(
    world: World, *some: actions.Action, seen: Sequence[Instance] = (), site: Site | None = None
) -> None:
    """As for a request: done as decided, and what fails is raised."""
    site = site or world.site
    snapshot = take_snapshot(site, build_terms(site, "pub"), read_all_nodes(site), tuple(seen))
    asked = Request(id="r1", kind="resume", nodes=(), received=world.now)
    apply(site, "pub", some, replace(snapshot, request=asked))


def up(world: World, *nodes: str) -> list[Instance]:
    for number, node in enumerate(nodes, 1):
        world.slurm.submit(number, (node,))
    world.advance(30)
    return sorted(world.alive(), key=lambda one: one.node)


def intend(world: World, *nodes: str, request: str = "r1") -> LaunchSpec:
    pool = world.site.pools["burst"]
    offer = world.clouds["pub"].offers(pool)[0]
    spec = LaunchSpec(
        generation=new_generation(world.now), pool=pool, nodes=nodes, offer=offer, jobs=(7,)
    )
    world.ledger.launches.record_intent(spec, request, world.now)
    return spec


def calls(world: World, name: str) -> int:
    return sum(call.name == name for call in world.clouds["pub"].calls)


def told(world: World, subject: str, kind: str) -> list[str]:
    return [str(d.reason) for d in world.ledger.decisions.about(subject) if d.kind == kind]


def row(world: World, machine: str) -> Machine:
    (found,) = [m for m in world.ledger.machines.live() if m.instance.id == machine]
    return found


def test_each_kind_of_action_has_a_doer(world: World) -> None:
    """``repairs`` may decide each of them; only two are of others."""
    kinds = {
        kind
        for _, kind in inspect.getmembers(actions, inspect.isclass)
        if issubclass(kind, actions.Action) and hasattr(kind, "kind")
    }
    site = world.site
    snapshot = take_snapshot(site, build_terms(site, "pub"), read_all_nodes(site), ())
    done = {*_Apply(site, "pub", snapshot, {}).doers}
    # The round itself reports a doubt, and slurm-elastic-ckptman saves jobs.
    assert kinds - done == {actions.DoubtList, actions.SaveJob}


def test_an_action_without_a_doer_keeps_no_other_kind_from_its_repair(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Unheard(actions.OnMachine, frozen=True, kw_only=True):
        kind: ClassVar[str] = "unheard"

    (machine,) = up(world, "pub1")
    do(
        world,
        Unheard(machine=machine.id, cause=Quoted(text=WHY)),
        actions.Terminate(machine=machine.id, cause=Quoted(text=WHY)),
    )
    assert world.alive() == []
    assert "kind=unheard" in caplog.text


# open launches


def test_a_launch_that_made_nothing_is_written_down_with_the_reason(world: World) -> None:
    spec = intend(world, "pub1")
    do(world, actions.Abandon(generation=spec.generation, cause=Quoted(text=WHY)))
    assert world.ledger.launches.open() == ()
    launch = world.ledger.launches.get(spec.generation)
    assert launch is not None
    assert launch.state == Failed(finished_at=world.now, error=WHY)


def test_a_request_whose_jobs_cannot_be_read_buys_for_the_jobs_that_slurm_knows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a barred payer would get a machine, and a job of several nodes a part of its nodes."""
    world.tick()
    site, jobs = world.site, list[object]()
    place = "slurm_elastic.controller.apply."
    monkeypatch.setattr(f"{place}provision", lambda *args, **_: jobs.append(args[4]))
    monkeypatch.setattr(f"{place}find_jobs_of_nodes", lambda *_: {6: ("pub1",), 7: ("pub1",)})
    asked = Request(
        id="r1", kind="resume", nodes=("pub1",), received=world.now, jobs={7: ("pub1", "pub2")}
    )
    snapshot = take_snapshot(site, build_terms(site, "pub"), read_all_nodes(site), ())
    launch = actions.LaunchMachine(node="pub1", cause=Quoted(text=WHY))
    for note in ("a job of the resume file cannot be read", None):
        apply(site, "pub", [launch], replace(snapshot, request=replace(asked, note=note)))
    assert jobs == [{6: ("pub1",), 7: ("pub1", "pub2")}, {7: ("pub1", "pub2")}]


def test_a_launch_that_is_not_known_is_not_called_again(world: World) -> None:
    do_asked(world, actions.Retry(generation="g-unknown", cause=Quoted(text=WHY)))
    assert calls(world, "launch") == 0


def test_while_nothing_can_be_written_down_no_launch_is_called_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = intend(world, "pub1")
    monkeypatch.setattr(Ledger, "condition", FULL)
    do_asked(world, actions.Retry(generation=spec.generation, cause=Quoted(text=WHY)))
    assert calls(world, "launch") == 0
    assert len(world.ledger.launches.open()) == 1


def test_of_a_pool_that_the_configuration_has_lost_only_what_is_there_is_taken_in(
    world: World,
) -> None:
    spec = intend(world, "pub1", "pub2")
    (one, other) = world.clouds["pub"].launch(spec)
    site = dataclasses.replace(world.site, pools={})
    retry = actions.Retry(generation=spec.generation, cause=Quoted(text=WHY))
    do_asked(world, retry, seen=[replace(other, generation="another"), one], site=site)
    assert [m.instance.id for m in world.ledger.machines.live()] == [one.id]
    assert world.ledger.launches.open() == ()
    assert calls(world, "launch") == 1, "ours, above"
    assert told(world, "pub1", "confirmed") == [WHY]
    assert told(world, "pub2", "confirmed") == []


@pytest.mark.parametrize(
    ("later", "node", "repeated"),
    [(-1.0, "pub1", True), (0.0, "pub1", False), (1.0, "pub1", False), (1.0, "pub2", True)],
)
def test_a_launch_is_not_repeated_for_a_node_that_was_suspended_since(
    world: World, later: float, node: str, *, repeated: bool
) -> None:
    spec = intend(world, "pub1")
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERING_UP")
    number = world.program("suspend", [node], {}, received=world.now)
    (request,) = world.spool.pending()
    at = generation_order(spec.generation) + later
    world.site.suspends[number] = replace(request, received=at)
    do_asked(world, actions.Retry(generation=spec.generation, cause=Quoted(text=WHY)))
    assert (calls(world, "launch") > 0) is repeated


def test_what_a_repeated_launch_is_refused_is_bought_elsewhere_and_told(world: World) -> None:
    world.advance(1)  # nothing is bought before the cloud was read
    spec = intend(world, "pub1", "pub3")
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERING_UP")
    world.clouds["pub"].fail_next(CapacityError, 1, "launch")
    do_asked(world, actions.Retry(generation=spec.generation, cause=Quoted(text=WHY)))
    assert [i.node for i in world.alive()] == ["pub1"], "pub3 is not waited for"
    for subject in ("pub1", "pub3", "job:7"):
        (reason,) = told(world, subject, "retry-refused")
        assert reason.startswith(f"{WHY}: pub: ")


def test_what_a_repeated_launch_made_is_told_and_not_bought_twice(world: World) -> None:
    spec = intend(world, "pub1")
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERING_UP")
    do_asked(world, actions.Retry(generation=spec.generation, cause=Quoted(text=WHY)))
    assert told(world, "pub1", "retry-started") == [WHY]
    assert calls(world, "launch") == 1
    assert len(world.alive()) == 1


def test_a_repeated_launch_that_stays_in_doubt_buys_nothing_else_and_stops_no_other(
    world: World,
) -> None:
    first, second = intend(world, "pub1"), intend(world, "pub2")
    for node in ("pub1", "pub2"):
        world.slurm.set_node(node, "IDLE", "CLOUD", "POWERING_UP")
    world.clouds["pub"].fail_next(AuthError, 1, "launch")
    some = [actions.Retry(generation=s.generation, cause=Quoted(text=WHY)) for s in (first, second)]
    do_asked(world, *some)
    assert [i.node for i in world.alive()] == ["pub2"]
    assert [r.generation for r in world.ledger.launches.open()] == [first.generation]


# machines


def test_where_nothing_can_be_written_down_a_machine_to_be_stopped_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = up(world, "pub1", "pub2")
    world.ledger.stops.record_stopping("pub", [one.id, other.id], Quoted(text="idle"), world.now)
    monkeypatch.setattr(Ledger, "condition", FULL)
    world.clouds["pub"].fail_next(AuthError, 1, "terminate")
    do_asked(world, actions.StopAgain(machine=one.id, cause=Quoted(text=WHY)))
    assert not row(world, one.id).is_stopping, "the next rounds end it, and stop it no more"
    assert row(world, other.id).is_stopping
    do_asked(world, actions.StopAgain(machine=one.id, cause=Quoted(text=WHY)))
    assert [i.id for i in world.alive()] == [other.id]
    assert calls(world, "stop") == 0


def test_a_machine_that_its_cloud_cannot_stop_ends_in_the_same_round(world: World) -> None:
    (one,) = up(world, "pub1")
    world.ledger.stops.record_stopping("pub", [one.id], Quoted(text="idle"), world.now)
    world.clouds["pub"].fail_next(ProviderError, 1, "stop")
    do(world, actions.StopAgain(machine=one.id, cause=Quoted(text=WHY)))
    assert world.alive() == []
    assert told(world, "pub1", "terminated") == [WHY]


def test_machines_end_each_for_its_own_reason_and_no_other_one(world: World) -> None:
    one, other = up(world, "pub1", "pub2")
    do(world, actions.Terminate(machine=one.id, cause=Quoted(text=WHY)))
    assert [i.id for i in world.alive()] == [other.id]
    assert told(world, "pub1", "terminated") == [WHY]


@pytest.mark.parametrize("kind", [actions.NoteEnd, actions.NoteMissing])
def test_machines_are_written_down_as_gone_each_with_its_reason(
    world: World, kind: type[actions.OnMachine]
) -> None:
    one, other = up(world, "pub1", "pub2")
    for machine in (one, other):
        world.clouds["pub"].take(machine.id)
    do(
        world,
        kind(machine=one.id, cause=Quoted(text=WHY)),
        kind(machine=other.id, cause=Quoted(text="another")),
    )
    assert world.ledger.machines.live() == ()
    assert told(world, "pub1", "ended") == [WHY]
    assert told(world, "pub2", "ended") == ["another"]


def note_missing(world: World) -> Machine:
    """The row of a machine that runs, and that the cloud's list has lacked often enough."""
    (one,) = up(world, "pub1")
    for _ in range(2):
        do(world, actions.NoteMissing(machine=one.id, cause=Quoted(text=WHY)))
    (row,) = world.ledger.machines.live(ended_since=0.0)
    return row


def test_a_machine_that_only_the_list_lacks_stays_and_a_person_reads_it_once(world: World) -> None:
    assert note_missing(world).is_wanted
    assert len(world.alive()) == 1
    assert told(world, "pub1", "ended") == []
    (doubt,) = told(world, "pub1", ending.STILL_THERE)
    assert "which the cloud has by this id" in doubt


@pytest.mark.parametrize("error", [AuthError("pub", "x", "no"), KeyError("a bug of the SDK")])
def test_while_the_cloud_does_not_answer_no_missing_machine_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: Sequence[str]) -> None:
        raise error

    monkeypatch.setattr(world.clouds["pub"], "gone", fail)
    assert note_missing(world).is_wanted
    assert told(world, "pub1", ending.STILL_THERE) == []


def test_the_list_counts_if_the_cloud_cannot_be_asked_by_id(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = up(world, "pub1")
    listing = SimpleNamespace(name="pub", instances=tuple)
    monkeypatch.setitem(world.site.providers, "pub", listing)  # type: ignore[arg-type]
    assert ending.find_gone(world.site, "pub", {one.id: "pub1"}, "r") == [one.id]


# nodes


@pytest.mark.parametrize("told_by_cloud", [True, False])
def test_a_node_whose_machine_is_gone_keeps_its_address_unless_the_cloud_has_told(
    world: World, *, told_by_cloud: bool
) -> None:
    """Another machine may have it by now where the cloud says that it has ended."""
    up(world, "pub1")
    before = world.slurm.node("pub1").address
    kind = actions.FailLost if told_by_cloud else actions.FailNode
    some = [kind(node=name, cause=Quoted(text=WHY)) for name in ("no-such-node", "pub1")]
    do_asked(world, *some)
    assert is_down(world.slurm.node("pub1"))
    assert world.slurm.node("pub1").address == (NOWHERE if told_by_cloud else before)
    assert told(world, "pub1", "node-lost") == [WHY]
    assert told(world, "job:1", "node-lost") == [WHY]


def test_a_node_that_is_lost_while_it_waits_to_power_down_is_ours_to_clear(world: World) -> None:
    """slurmctld 22.05 replaces the reason of that order, and so our mark."""
    up(world, "pub1")
    world.slurm.update_nodes(["pub1"], state="DRAIN", reason="POWER_DOWN_ASAP")
    do_asked(world, actions.FailNode(node="pub1", cause=Quoted(text=WHY)))
    node = world.slurm.node("pub1")
    assert is_down(node)
    assert has_mark(node, OUR_MARK)


def test_a_node_without_a_machine_that_slurm_took_out_of_service_is_told_and_powered_down(
    world: World,
) -> None:
    why = "Low RealMemory (reported:2987 < 90.00% of configured:4096)"
    world.slurm.set_node("pub1", "IDLE", "DRAIN", "CLOUD", reason=why, reason_user="slurm")
    recycling.recycle(
        world.site, "pub", [actions.Recycle(node="pub1", cause=Quoted(text=WHY))], "r1"
    )
    (reason,) = told(world, "pub1", recycling.NODE_FAILED)
    assert why in reason
    assert phase(world.slurm.node("pub1")) is Phase.POWERING_DOWN


def test_a_node_is_given_back_with_the_reason_of_its_hold(world: World) -> None:
    for number, node in enumerate(PUB[:2], 1):
        world.slurm.set_node(node, "ALLOCATED", "POWERING_UP", "CLOUD")
        world.slurm.set_job(number, "CONFIGURING", nodes=(node,))
    hold = Exclusion(
        kind=CAPACITY, scope="pub1", pool="burst", cause=Quoted(text="none left"), until=world.now
    )
    world.ledger.exclusions.add(hold)
    for node in PUB[:2]:
        do_asked(world, actions.GiveBack(node=node, cause=Quoted(text=WHY)))
    assert told(world, "job:1", "requeued") == ["no machine is available for its nodes: none left"]
    assert told(world, "job:2", "requeued") == [f"no machine is available for its nodes: {WHY}"]


def test_a_change_of_a_node_is_told_with_its_reason(world: World) -> None:
    up(world, "pub1")
    do_asked(world, actions.PowerDownWhenIdle(node="pub1", cause=Quoted(text=WHY)))
    assert told(world, "pub1", "power-down-asap") == [WHY]


def test_only_an_allocated_node_that_no_job_has_is_disclaimed(world: World) -> None:
    for node in PUB[:3]:
        world.slurm.set_node(node, "ALLOCATED", "POWERED_DOWN", "CLOUD")
    world.slurm.set_job(1, "CONFIGURING", nodes=PUB[:1])
    world.slurm.set_job(2, "COMPLETED", nodes=PUB[1:2])
    do_asked(world, *(actions.Disclaim(node=node, cause=Quoted(text=WHY)) for node in PUB[:3]))
    assert [is_down(world.slurm.node(node)) for node in PUB[:3]] == [False, True, True]
    assert told(world, PUB[1], "disclaim") == [WHY]


def test_addresses_are_told_to_slurm(world: World) -> None:
    do(world, actions.SetAddress(node="pub1", address="10.9.8.7", cause=Quoted(text=WHY)))
    assert world.slurm.node("pub1").address == "10.9.8.7"


def test_nodes_are_let_go_and_held_each_with_its_own_reason(world: World) -> None:
    for kind, name in ((CAPACITY, "pub1"), (CAPACITY, "pub2"), (OPERATOR, "pub3")):
        world.ledger.exclusions.add(
            Exclusion(
                kind=kind, scope=name, pool="burst", cause=Quoted(text="x"), until=world.now + 1e6
            )
        )
    do(
        world,
        actions.Release(node="pub1", hold=CAPACITY, cause=Quoted(text="there is room")),
        actions.Release(node="pub3", hold=OPERATOR, cause=Quoted(text="its time is over")),
        actions.Hold(node="pub2", pool="burst", cause=Quoted(text="still full")),
        actions.Hold(node="op1", pool="rack", cause=Quoted(text="the rack is dark")),
    )
    assert {h.scope: str(h.cause) for h in world.ledger.exclusions.holds()} == {
        "pub2": "still full",
        "op1": "the rack is dark",
    }
    assert told(world, "pub1", "released") == ["there is room"]
    assert told(world, "pub3", "released") == ["its time is over"]


# buying for nodes


def powering_up(world: World, *nodes: str) -> None:
    for node in nodes:
        world.slurm.set_node(node, "IDLE", "CLOUD", "POWERING_UP")


def test_machines_are_bought_for_nodes_of_the_cloud_that_slurm_waits_for(world: World) -> None:
    world.advance(1)
    powering_up(world, "pub1", "op1")
    do(
        world,
        *(
            actions.LaunchMachine(node=n, cause=RequestLost())
            for n in ("pub1", "pub2", "op1", "of-no-pool")
        ),
    )
    assert [i.node for i in world.alive()] == ["pub1"]


def test_while_slurm_does_not_list_its_jobs_no_machine_is_bought_for_a_node_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise SlurmError(("squeue",), 1, "Socket timed out")

    world.advance(1)
    powering_up(world, "pub1", "pub2", "pub3")
    for job, nodes in ((1, ("pub1", "pub2")), (2, ("pub3",))):
        world.slurm.set_job(job, "CONFIGURING", nodes=nodes)
    with monkeypatch.context() as patched:
        patched.setattr(world.slurm, "jobs", broken)
        do(world, actions.LaunchMachine(node="pub1", cause=RequestLost()))
    do(world, actions.LaunchMachine(node="pub2", cause=RequestLost()))
    jobs = {m.instance.node: m.jobs for m in world.ledger.machines.live()}
    assert jobs == {"pub2": (1,)}


# adopting


def stranger(world: World, **changes: Any) -> Instance:
    (one,) = up(world, "op1")
    return replace(one, cloud="pub", id="pub-x", node="pub2", generation="g-x", **changes)


def taken_in(world: World, one: Instance, doubt: str = "") -> Machine:
    adopt = [actions.Adopt(machine=one.id, cause=Quoted(text=WHY))]
    adoption.adopt(world.site, adopt, [one], {one.id: doubt} if doubt else {})
    return row(world, one.id)


@pytest.mark.parametrize(("price", "worst"), [(0.01, 0.10), (0.50, 0.50)])
def test_what_an_adopted_machine_may_cost_is_at_least_what_the_configuration_says(
    world: World, price: float, worst: float
) -> None:
    one = stranger(world, price=price)
    assert taken_in(world, one).worst_price == pytest.approx(worst)


def test_an_adopted_machine_is_told_with_what_is_not_believed_of_it(world: World) -> None:
    taken_in(world, stranger(world), "its price is no number")
    assert told(world, "pub2", "adopted") == [
        f"{WHY}; its tags are not trusted: its price is no number"
    ]
    assert not world.site.unadopted


def test_a_machine_that_was_gone_before_it_could_be_taken_in_is_written_down_beside_others(
    world: World,
) -> None:
    one = stranger(world, price=0.01)
    elsewhere = replace(one, cloud="onp", id="onp-x")
    for gone in (one, elsewhere):
        world.site.unadopted[gone.cloud, gone.id] = gone
    adoption.record_ended_unadopted(world.site, "pub", [])
    (found,) = [m for m in world.ledger.machines.live(ended_since=0) if m.instance.id == one.id]
    assert found.ended_at == world.now
    assert found.worst_price == pytest.approx(0.10)
    assert told(world, "pub2", "ended") == [str(EndedWhileUnwritable())]
    assert list(world.site.unadopted.snapshot()) == [("onp", "onp-x")], (
        "its list says nothing of the other"
    )


def test_one_that_the_list_still_has_is_not_gone(world: World) -> None:
    one = stranger(world)
    world.site.unadopted["pub", one.id] = one
    adoption.record_ended_unadopted(world.site, "pub", [one])
    assert list(world.site.unadopted.snapshot()) == [("pub", one.id)]
    assert told(world, "pub2", "ended") == []


def test_a_machine_of_a_type_that_the_configuration_lacks_costs_what_it_costs(
    world: World,
) -> None:
    one = stranger(world, price=0.02, instance_type="unknown")
    assert taken_in(world, one).worst_price == pytest.approx(0.02)


# nodes that Slurm goes on with, or not


@pytest.mark.parametrize(
    ("states", "reason", "kept"),
    [
        ("IDLE", "", None),
        ("ALLOCATED", "", None),
        ("IDLE DRAIN", "slurm-elastic:x", None),
        ("ALLOCATED DRAIN", "fan is broken", "fan is broken"),
        ("IDLE DRAIN", "fan is broken", "-"),
        ("IDLE POWERING_UP", "", "-"),
        ("IDLE POWERING_DOWN", "", "-"),
    ],
)
def test_a_node_without_its_machine_goes_down_where_that_helps_its_jobs(
    world: World, states: str, reason: str, kept: str | None
) -> None:
    """Not one that is off, nor an idle one of an admin's, whose words stay."""
    world.slurm.set_node("pub1", "CLOUD", *states.split(), reason=reason)
    do_asked(world, actions.FailNode(node="pub1", cause=Quoted(text=WHY)))
    node = world.slurm.node("pub1")
    assert is_down(node) is (kept != "-")
    if is_down(node):
        assert node.reason == (kept or "slurm-elastic:lost: the machine is gone")
    assert told(world, "pub1", "node-lost") == [WHY] * (kept != "-")


REBOOTED = "Node unexpectedly rebooted"


def test_only_the_machine_of_the_node_that_ails_gets_another(world: World) -> None:
    up(world, "pub1", "pub2", "op1")
    world.slurm.requeue_jobs_of("pub1")
    world.slurm.set_node("pub1", "IDLE", "DOWN", "CLOUD", reason=REBOOTED, reason_user="slurm")
    recycling.recycle(
        world.site, "pub", [actions.Recycle(node="pub1", cause=Quoted(text=WHY))], "r1"
    )
    assert sorted(i.node for i in world.alive()) == ["op1", "pub2"]
    assert len(told(world, "pub1", recycling.NODE_FAILED)) == 1


@pytest.mark.parametrize(
    ("machine", "known"), [("pub-00000001", True), ("i-before", False), ("", False)]
)
def test_a_failure_is_told_of_each_machine_of_a_node(
    world: World, machine: str, *, known: bool
) -> None:
    (one,) = up(world, "pub1")
    cause = (
        NodeFailed(machine=machine, cause=Quoted(text="it rebooted"))
        if machine
        else Quoted(text=one.id)
    )
    world.site.record("r1", recycling.NODE_FAILED, ["pub1"], cause)
    before = told(world, "pub1", recycling.NODE_FAILED)
    world.slurm.requeue_jobs_of("pub1")
    world.slurm.set_node("pub1", "IDLE", "DOWN", "CLOUD", reason=REBOOTED, reason_user="slurm")
    recycling.recycle(
        world.site, "pub", [actions.Recycle(node="pub1", cause=Quoted(text=WHY))], "r1"
    )
    after = told(world, "pub1", recycling.NODE_FAILED)
    assert [why.partition(":")[0] for why in after[len(before) :]] == [one.id] * (not known)


def test_each_node_is_told_its_own_reason(world: World) -> None:
    """One command of Slurm's for all of them; what ``explain`` says of a node is about it."""
    world.slurm.set_node("pub1", "DOWN", "CLOUD", reason="slurm-elastic:lost: the machine is gone")
    world.slurm.set_node("pub2", "DOWN", "CLOUD", reason="ResumeTimeout reached")
    world.advance(120)
    told = {n: str(world.ledger.decisions.about(n)[-1].reason) for n in ("pub1", "pub2")}
    assert "the machine is gone" in told["pub1"]
    assert "ResumeTimeout reached" in told["pub2"]
    assert "ResumeTimeout" not in told["pub1"]


@pytest.mark.parametrize("kind", [actions.Suspend, actions.StopAgain])
def test_each_machine_ends_for_its_own_reason(world: World, kind: type[actions.OnMachine]) -> None:
    machines = up(world, "pub1", "pub2")
    do(world, *(kind(machine=m.id, cause=Quoted(text=f"the reason of {m.node}")) for m in machines))
    told = {m.node: str(world.ledger.decisions.about(m.node)[-1].reason) for m in machines}
    assert told == {node: f"the reason of {node}" for node in ("pub1", "pub2")}


def test_nodes_that_are_given_back_tell_their_jobs_the_reason_of_their_own(world: World) -> None:
    for number, node in enumerate(("pub1", "pub2"), 1):
        world.slurm.submit(number, (node,))
    causes = {"pub1": Quoted(text="sold out"), "pub2": Quoted(text="too dear")}
    view = world.slurm.nodes()
    assert power_down_and_requeue(world.site, [*causes], view, causes, "r1") == {*causes}
    for number, cause in enumerate(causes.values(), 1):
        (made,) = world.ledger.decisions.about(f"job:{number}")
        assert str(made.reason) == f"no machine is available for its nodes: {cause}"


def check_three_kinds(world: World) -> None:
    """Apply a repair that stands, and two of other kinds that do not."""
    world.slurm.set_node(
        "pub1", "DOWN", "CLOUD", "POWERED_DOWN", reason="ResumeTimeout reached"
    )  # fmt: skip
    snapshot = take_snapshot(
        world.site, build_terms(world.site, "pub"), read_all_nodes(world.site), ()
    )
    standing = [a for a in decide(snapshot, (RoundRule.REPAIR,)) if a.by_node]
    assert standing
    apply(
        world.site, "pub",
        [*standing, actions.PowerDown(node="pub2", cause=Quoted(text=WHY)), actions.Clear(node="pub3", cause=Quoted(text=WHY))],
        snapshot,
    )  # fmt: skip


def test_repairs_of_several_kinds_are_checked_by_one_reading_of_slurm(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind used to read all nodes and to decide everything again."""
    monkeypatch.setattr(node_updates, "return_to_service", lambda *_: None)
    monkeypatch.setattr(world.slurm, "nodes", counted := Counted(world.slurm.nodes))
    check_three_kinds(world)
    assert counted.whole == 2, "one for the snapshot, one for the check"


def test_a_repair_after_one_that_took_its_time_is_checked_by_slurm_as_it_is_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object) -> None:
        world.now += 5

    monkeypatch.setattr(node_updates, "return_to_service", slow)
    monkeypatch.setattr(world.slurm, "nodes", counted := Counted(world.slurm.nodes))
    check_three_kinds(world)
    assert counted.whole == 3


class Counted:
    """Reads nodes, and counts how often all of them were read."""

    def __init__(self, read: Callable[..., Mapping[str, SlurmNode]]) -> None:
        self._read = read
        self.whole = 0

    def __call__(self, names: Sequence[str] | None = None) -> Mapping[str, SlurmNode]:
        self.whole += names is None
        return self._read(names)


def test_only_a_node_that_is_still_off_gets_an_address_that_is_none(world: World) -> None:
    (machine,) = up(world, "pub2")
    for name in ("pub1", "pub2"):
        world.slurm.set_addresses({name: name})
    do(world, *(actions.HideName(node=name, cause=Quoted(text=WHY)) for name in ("pub1", "pub2")))
    assert world.slurm.node("pub1").address == NOWHERE
    assert world.slurm.node("pub2").address == "pub2", f"{machine.id} would not be reached"


def test_nodes_get_an_address_before_their_machines_are_bought(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld would look up their names while they boot, and answer nobody meanwhile."""
    addresses: list[str] = []
    launch = world.clouds["pub"].launch

    def noted(spec: LaunchSpec) -> Sequence[Instance]:
        addresses.extend(world.slurm.node(name).address for name in spec.nodes)
        return launch(spec)

    monkeypatch.setattr(context, "_slurmctld_looks_names_up", lambda *_: True)
    world.stop()
    world.start()
    monkeypatch.setattr(world.clouds["pub"], "launch", noted)
    world.slurm.set_addresses({"pub1": "pub1"})
    up(world, "pub1")
    assert addresses == [NOWHERE]
