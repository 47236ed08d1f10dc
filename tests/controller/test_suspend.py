"""A suspend request ends the machines of its nodes: all of them, and no others."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from ledger_cases import instance, offer, spec
from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, InstanceNotFound, TransientError
from slurm_elastic.controller import ending, stale_machines, suspend
from slurm_elastic.controller.stale_machines import nodes_with_capacity
from slurm_elastic.model.cluster import Instance
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.state.ledger import Machine
from slurm_elastic.state.spool import Request
from tests.controller.world import World


def up(world: World, *nodes: str) -> None:
    for number, node in enumerate(nodes, 1):
        world.slurm.submit(number, (node,))
    world.advance(30)
    assert all(phase(world.slurm.node(n)) is Phase.UP for n in nodes)


def idle(world: World, seconds: float = 320) -> None:
    for job in world.slurm.queue():
        world.slurm.finish(job)
    world.advance(seconds)


def add(world: World, machine: Instance, ident: str, **changes: object) -> Instance:
    """One more machine with our tags, in its cloud and in the ledger."""
    other = replace(machine, id=ident, **changes)
    world.accounts[other.cloud].add_foreign(other, owner="uuid-1")
    world.ledger.adopt(other, "burst", world.now)
    return other


def test_an_idle_nodes_machine_ends(world: World) -> None:
    up(world, "pub1", "op1")
    idle(world)
    assert world.alive() == []
    assert world.ledger.machines() == ()
    assert world.kinds("pub1")[-1] == "terminated"


def test_both_machines_of_a_node_end(world: World) -> None:
    up(world, "pub1")
    (machine,) = world.alive()
    add(world, machine, "pub-second")
    idle(world)
    assert world.alive() == []


def test_a_suspend_of_a_node_that_is_up_is_dropped(world: World) -> None:
    up(world, "pub1")
    world.program("suspend", ["pub1"], {}, received=world.now)
    world.advance(10)
    assert len(world.machines_of("pub1")) == 1
    assert world.kinds("pub1")[-1] == "dropped"


def test_a_newer_machine_outlives_an_old_suspend(world: World) -> None:
    before = world.now - 50
    up(world, "pub1")
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERING_DOWN")
    world.program("suspend", ["pub1"], {}, received=before)
    world.tick()
    assert len(world.machines_of("pub1")) == 1


def test_another_clouds_machine_for_the_node_is_not_asked_of_this_one(world: World) -> None:
    """The pool has moved to another cloud while its machine lived."""
    up(world, "pub1")
    (machine,) = world.alive()
    add(world, machine, "onp-left", cloud="onp")
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERING_DOWN")
    world.program("suspend", ["pub1"], {}, received=world.now)
    world.tick()
    assert [i.id for i in world.alive()] == ["onp-left"]
    assert [m.instance.id for m in world.ledger.machines()] == ["onp-left"]


@pytest.mark.parametrize("error", [TransientError, AuthError])
def test_a_failed_end_is_repeated_until_it_is_done(
    world: World, error: type[TransientError]
) -> None:
    up(world, "pub1")
    world.clouds["pub"].fail_next(error, 2, "terminate")
    idle(world, 305)
    assert len(world.alive()) == 1
    assert [m.suspending is not None for m in world.ledger.machines()] == [True]
    world.advance(120)
    assert world.alive() == []
    assert "terminate-failed" in world.kinds("pub1")


def test_a_machine_that_is_gone_already_has_ended(world: World) -> None:
    up(world, "pub1")
    (machine,) = world.alive()
    world.clouds["pub"].fail_next(InstanceNotFound, 1, "terminate")
    world.clouds["pub"].take(machine.id)
    idle(world, 305)
    assert world.ledger.machines() == ()


def test_a_machine_that_a_cloud_wrongly_calls_gone_is_ended_when_it_shows(world: World) -> None:
    up(world, "pub1")
    world.clouds["pub"].fail_next(InstanceNotFound, 1, "terminate")
    idle(world, 400)
    assert world.alive() == []
    ends = [c for c in world.clouds["pub"].calls if c.name == "terminate"]
    assert len(ends) == 2


def test_a_node_that_never_came_up_loses_its_machine(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(5)
    world.slurm.finish(1)
    world.slurm._fail("pub1", "ResumeTimeout reached", {"POWERED_DOWN"})
    world.program("resume-fail", ["pub1"], {}, received=world.now)
    world.advance(40)
    assert world.alive() == []
    assert world.slurm.node("pub1").reason.startswith("slurm-elastic:hold:pool burst cools down")
    world.advance(200)
    assert world.slurm.node("pub1").states == {"IDLE", "CLOUD", "POWERED_DOWN"}


# which machines stand for a node


def row(
    world: World, ident: str = "i-1", node: str = "pub1", cloud: str = "pub", age: float = 0.0
) -> Machine:
    at = world.now - age
    made = instance(
        ident, node, f"g{at * 1000:.0f}-{ident[2:]}", launched=at, bought=offer(cloud=cloud)
    )
    world.ledger.adopt(made, "burst", world.now)
    return next(m for m in world.ledger.machines() if m.instance.id == ident)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, True),
        ({"node": "pub2"}, False),
        ({"cloud": "pub"}, False),
        ({"registered": None}, False),
        ({"suspending": 7.0}, False),
    ],
)
def test_a_node_may_have_been_up_on_a_machine_of_another_cloud(
    world: World, changes: dict[str, Any], found: bool
) -> None:
    own = {"node": "pub1", "cloud": "onp"} | changes
    one = row(world, node=own.pop("node"), cloud=own.pop("cloud"))
    one = replace(one, **({"registered": 1.0, "suspending": None} | own))
    others = stale_machines.instances_of_other_clouds([one], "pub", ["pub1"])
    assert others == ([one] if found else [])


@pytest.mark.parametrize(("age", "boots"), [(599.0, True), (600.0, False), (601.0, False)])
def test_a_machine_of_another_cloud_boots_until_its_resume_timeout(
    world: World, age: float, boots: bool
) -> None:
    one = row(world, age=age)
    assert stale_machines.boots_still(world.site, one) is boots
    assert not stale_machines.boots_still(world.site, replace(one, registered=world.now))


def serves(world: World, request: str = "", long_ago: float = inf) -> set[str]:
    asked = ("pub1", "pub2")
    return nodes_with_capacity(world.site, "pub", asked, long_ago=long_ago, request=request)


@pytest.mark.parametrize(("cloud", "age", "served"), [
    ("pub", 0.0, True), ("pub", 900.0, True), ("onp", 0.0, True), ("onp", 900.0, False),
    ("gone", 0.0, False),
])  # fmt: skip
@pytest.mark.parametrize("ends", [False, True])
def test_a_node_has_what_boots_for_it_and_is_not_to_end(
    world: World, cloud: str, age: float, served: bool, *, ends: bool
) -> None:
    """A machine of another cloud counts only for so long as it may still come up."""
    row(world, cloud=cloud, age=age)
    row(world, "i-3", "pub3", cloud=cloud, age=age)
    if ends:
        world.ledger.suspending(cloud, ["i-1"], "idle", world.now)
    assert serves(world) == ({"pub1"} if served and not ends else set())


@pytest.mark.parametrize(("long_ago", "served"), [(9.0, True), (10.0, False), (11.0, False)])
def test_what_was_up_on_another_cloud_long_ago_serves_nobody(
    world: World, long_ago: float, served: bool
) -> None:
    row(world, cloud="onp", age=50.0)
    world.ledger.registered("onp", ["i-1"], world.now - 10.0)
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERING_UP")
    start = world.now - 20.0
    assert (serves(world, long_ago=start + long_ago) == {"pub1"}) is served


@pytest.mark.parametrize(
    ("cloud", "age", "served"),
    [
        ("pub", 0.0, True), ("pub", 900.0, True), ("onp", 599.0, True), ("onp", 600.0, False),
        ("gone", 0.0, False),
    ],
)  # fmt: skip
def test_an_open_launch_stands_for_its_nodes(
    world: World, cloud: str, age: float, served: bool
) -> None:
    """One of a cloud that has left the configuration only for its own request."""
    made = spec("g1", ("pub1", "pub3"), world.site.pools["burst"], offer(cloud=cloud))
    world.ledger.intend(made, "r1", world.now - age)
    assert serves(world, "r2") == ({"pub1"} if served else set())
    assert serves(world, "r1") == {"pub1"}


@pytest.mark.parametrize(("request_", "served"), [("r1", True), ("r2", False)])
def test_a_machine_of_a_cloud_that_is_no_more_serves_its_own_request_alone(
    world: World, request_: str, served: bool
) -> None:
    generation = f"g{world.now * 1000:.0f}-x"
    bought = offer(cloud="gone")
    made = spec(generation, ("pub1",), world.site.pools["burst"], bought)
    world.ledger.intend(made, "r1", world.now)
    machine = instance("i-1", "pub1", generation, launched=world.now, bought=bought)
    world.ledger.launched(generation, [machine], world.now)
    assert serves(world, request_) == ({"pub1"} if served else set())
    world.now += 600.0
    assert serves(world, request_) == set()


@pytest.mark.parametrize(("received", "ends"), [(-0.001, False), (0.0, True)])
def test_a_machine_ends_by_a_request_that_came_when_it_was_decided_or_later(
    world: World, received: float, ends: bool
) -> None:
    row(world)
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERING_DOWN")
    at = world.now + received
    asked = Request(id="r1", kind="suspend", nodes=("pub1",), jobs={}, received=at)
    suspend.suspend(world.site, "pub", asked, world.slurm.nodes(["pub1"]))
    (machine,) = world.ledger.machines(ended_since=0.0)
    assert (machine.ended is not None) is ends


def test_another_word_of_the_cloud_about_an_end_is_told_too(world: World) -> None:
    row(world)
    world.site.record("r0", "launched", ["pub1"], "x")
    for error in (TransientError, TransientError, AuthError, AuthError):
        world.clouds["pub"].fail_next(error, 1, "terminate")
        ending.terminate(world.site, "pub", world.ledger.machines(), "idle", "r1")
    told = [d.reason for d in world.ledger.decisions("pub1") if d.kind == "terminate-failed"]
    assert told == [f"pub: Fake{e}: as it was asked to" for e in ("TransientError", "AuthError")]
