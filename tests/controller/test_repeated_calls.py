"""Launches and starts without an answer: what has been forbidden since is not called again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, TransientError, UnsettledError
from slurm_elastic.model.cluster import InstanceState, Limits
from slurm_elastic.model.directive import LimitChange, Pause
from slurm_elastic.model.exclusion import COOL_DOWN, Exclusion
from slurm_elastic.model.launch_states import Failed
from tests.controller.test_stopped import (
    DISK,
    eventually_in,
    idle,
    pools,
    run,
    states,
    stopped,
)
from tests.controller.world import World
from tests.features.test_directives import say

ORDERS = {
    "a pause": lambda world: say(world, Pause(scope="cloud:pub")),
    "a limit": lambda world: say(world, LimitChange(scope="cloud:pub", key="nodes", value=0)),
    "a cloud that is shut": lambda world: shut(world),
}


def shut(world: World) -> None:
    """As without a spending cap in the configuration."""
    onp, pub = world.config.clouds
    world.config = replace(world.config, clouds=(onp, replace(pub, limits=Limits())))
    world.restart()


def calls(world: World, name: str) -> int:
    return sum(call.name == name for call in world.clouds["pub"].calls)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, limits=Limits(nodes=10))
    world.advance(60)
    yield world
    world.close()


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[World]:
    """A machine of its pool is stopped."""
    world = World(tmp_path, pools=pools())
    run(world, 1, "pub1")
    idle(world)
    yield world
    world.close()


def leave_in_doubt(world: World, *nodes: str) -> None:
    world.clouds["pub"].fail_next(TransientError, 500, "launch")
    world.slurm.submit(1, nodes, len(nodes))
    world.advance(5)
    assert [row.nodes for row in world.ledger.launches.open()] == [nodes]


@pytest.mark.parametrize("name", ORDERS)
def test_a_launch_that_is_forbidden_by_now_is_settled_without_a_call(
    world: World, name: str
) -> None:
    leave_in_doubt(world, "pub1", "pub2")
    (row,) = world.ledger.launches.open()
    order: Callable[[World], object] = ORDERS[name]
    order(world)
    world.advance(5)
    world.clouds["pub"].heal()
    before = calls(world, "launch")
    assert eventually_in(world, lambda: not world.ledger.launches.open())
    assert (calls(world, "launch"), world.alive("pub")) == (before, [])
    settled = world.ledger.launches.get(row.generation)
    assert settled is not None
    assert isinstance(settled.state, Failed)
    assert "PENDING" in world.slurm.queue()[1].states


def test_a_launch_that_is_allowed_again_is_repeated(world: World) -> None:
    leave_in_doubt(world, "pub1")
    say(world, Pause(scope="cloud:pub"), seconds=60)
    world.clouds["pub"].heal()
    world.advance(30)
    assert world.alive("pub") == []
    world.advance(90)
    assert [i.node for i in world.alive("pub")] == ["pub1"]
    assert len(world.ledger.launches.open()) == 0


def test_a_cool_down_does_not_keep_a_launch_from_its_answer(world: World) -> None:
    leave_in_doubt(world, "pub1")
    scope, until = "pub/*/*/*", world.now + 3000
    world.ledger.exclusions.add(Exclusion(kind=COOL_DOWN, scope=scope, until=until))
    world.clouds["pub"].heal()
    world.advance(30)
    assert [i.node for i in world.alive("pub")] == ["pub1"]


def test_its_own_room_does_not_forbid_a_launch(tmp_path: Path) -> None:
    world = World(tmp_path, limits=Limits(nodes=2))
    world.advance(60)
    leave_in_doubt(world, "pub1", "pub2")
    world.clouds["pub"].heal()
    world.advance(30)
    assert sorted(i.node for i in world.alive("pub")) == ["pub1", "pub2"]
    world.close()


def test_the_machines_of_a_forbidden_launch_are_recorded_as_they_are_listed(world: World) -> None:
    world.clouds["pub"].lose_answer_next(500)
    world.clouds["pub"].limit("*", 1)
    world.slurm.submit(1, ("pub1",), 1)
    world.advance(5)
    assert len(world.ledger.launches.open()) == 1
    say(world, Pause(scope="cloud:pub"))
    world.advance(30)
    assert world.ledger.launches.open() == ()
    assert [m.instance.node for m in world.ledger.machines.live()] == ["pub1"]


@pytest.mark.parametrize("name", ORDERS)
def test_a_start_that_is_forbidden_by_now_is_not_repeated_and_the_machine_stays(
    keeping: World, name: str
) -> None:
    world = keeping
    (machine,) = stopped(world)
    world.clouds["pub"].fail_next(TransientError, 500, "start")
    world.slurm.submit(9, ("pub1",), 1)
    world.advance(5)
    assert stopped(world) == {}, "its start is in doubt"
    order: Callable[[World], object] = ORDERS[name]
    order(world)
    world.advance(5)
    world.clouds["pub"].heal()
    before = calls(world, "start")
    assert eventually_in(world, lambda: machine in stopped(world))
    assert eventually_in(world, lambda: "PENDING" in world.slurm.queue()[9].states)
    assert (calls(world, "start"), states(world)) == (before, {machine: "stopped"})


def test_a_machine_that_is_asked_to_start_while_it_stops_starts_when_it_is_off(
    keeping: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before that, and it does not end."""
    world = keeping
    (machine,) = stopped(world)
    account, provider = world.accounts["pub"], world.clouds["pub"]
    kept = account.machines[machine]
    kept.instance = replace(kept.instance, state=InstanceState.STOPPING)
    start = provider.start

    def refuse_while_it_stops(id_: str) -> None:
        if kept.instance.state is InstanceState.STOPPING:
            raise UnsettledError("pub", "IncorrectInstanceState", "it is still stopping")
        start(id_)

    monkeypatch.setattr(provider, "start", refuse_while_it_stops)
    world.slurm.submit(9, ("pub1",), 1)
    world.advance(200)
    assert states(world) == {machine: "stopping"}
    kept.instance = replace(kept.instance, state=InstanceState.STOPPED)
    assert eventually_in(world, lambda: "RUNNING" in world.slurm.queue()[9].states)
    assert states(world) == {machine: "running"}


def test_a_denied_start_costs_no_more_than_the_disk(keeping: World) -> None:
    world = keeping
    (machine,) = stopped(world)
    world.clouds["pub"].fail_next(AuthError, 1, "start")
    world.slurm.submit(9, ("pub1",), 1)
    world.advance(5)
    assert machine in stopped(world)
    parts = world.ledger.machines.live(ended_since=world.now - 30, stopped=True)
    prices = {m.instance.price for m in parts if m.instance.id.startswith(machine)}
    assert prices == {DISK}
