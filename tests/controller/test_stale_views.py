"""A round that waits for a cloud does not undo what an admin or Slurm changes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.controller.context import new_generation
from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, phase
from tests.controller.world import World

ADMIN = "disk is bad"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def while_the_cloud_is_read(world: World, act: Callable[[], None]) -> None:
    original = world.clouds["pub"].instances

    def slow() -> Sequence[Instance]:
        seen = original()
        act()
        return seen

    world.clouds["pub"].instances = slow  # type: ignore[method-assign]


def drain(world: World, node: str) -> None:
    world.slurm.update_nodes([node], state="DRAIN", reason=ADMIN)


def is_the_admins(node: SlurmNode) -> bool:
    return "DRAIN" in node.states and node.reason == ADMIN


def test_a_hold_that_an_admin_takes_over_is_not_let_go(world: World) -> None:
    world.clouds["pub"].limit("*", 0)
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    world.slurm.finish(1)
    assert {row.scope for row in world.ledger.exclusions.holds()} >= {"pub1", "pub2"}
    world.clouds["pub"].limit("*", None)

    def once_the_hold_is_over() -> None:
        due = min((row.until for row in world.ledger.exclusions.holds()), default=world.now + 1)
        if due <= world.now and not is_the_admins(world.slurm.node("pub2")):
            drain(world, "pub2")

    while_the_cloud_is_read(world, once_the_hold_is_over)
    world.advance(400)
    assert is_the_admins(world.slurm.node("pub2"))
    assert "DRAIN" not in world.slurm.node("pub1").states
    assert world.ledger.exclusions.holds() == ()


def test_a_node_drained_meanwhile_is_not_powered_down_for_its_age(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    (machine,) = world.alive()
    world.slurm.finish(1)
    pool = replace(world.site.pools["burst"], max_age=100.0)
    world.site.pools["burst"] = world.site.pool_of["pub1"] = pool  # type: ignore[index]

    def when_it_is_too_old() -> None:
        if world.now - machine.launched > 100 and not is_the_admins(world.slurm.node("pub1")):
            drain(world, "pub1")

    while_the_cloud_is_read(world, when_it_is_too_old)
    world.advance(200)
    assert is_the_admins(world.slurm.node("pub1"))
    assert world.alive() == [machine]


def test_of_two_machines_none_ends_once_a_job_has_come(world: World) -> None:
    """Which of them it runs on cannot be told: the site goes by names."""
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    (machine,) = world.alive()
    world.slurm.finish(1)
    world.hears = False
    world.slurm.set_node("pub1", address="pub1")
    newer = replace(
        machine, id="pub-newer", generation=new_generation(world.now), address="10.9.9.9"
    )
    world.accounts["pub"].add_foreign(newer, owner="uuid-1")
    while_the_cloud_is_read(world, lambda: world.slurm.set_node("pub1", "ALLOCATED", "CLOUD"))
    for _ in range(8):
        world.slurm.set_node("pub1", "IDLE", "CLOUD")
        world.now += 31
        world.tick()
    assert {i.id for i in world.alive()} == {machine.id, newer.id}


@pytest.mark.parametrize("answers", [True, False])
def test_a_stopped_machine_that_got_a_job_meanwhile_stays_if_it_answers(
    world: World, answers: bool
) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    (machine,) = world.alive()
    world.slurm.finish(1)
    world.hears = False
    record = world.accounts["pub"].machines[machine.id]
    record.instance = replace(machine, state=InstanceState.STOPPING)
    busy = ("ALLOCATED", "CLOUD") if answers else ("ALLOCATED", "CLOUD", "NOT_RESPONDING")
    while_the_cloud_is_read(world, lambda: world.slurm.set_node("pub1", *busy))
    for _ in range(8):
        world.slurm.set_node("pub1", "IDLE", "CLOUD")
        world.now += 31
        world.tick()
    assert bool(world.alive()) is answers


def test_a_down_node_that_an_admin_takes_over_stays_down(world: World) -> None:
    world.slurm.set_node("pub1", "DOWN", "CLOUD", reason="Not responding")
    while_the_cloud_is_read(
        world, lambda: world.slurm.set_node("pub1", "DOWN", "CLOUD", reason=ADMIN)
    )
    world.advance(35)
    node = world.slurm.node("pub1")
    assert (node.reason, "DOWN" in node.states) == (ADMIN, True)
    assert phase(node) is Phase.UP
