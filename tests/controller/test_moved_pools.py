"""A pool that the configuration gives to another cloud while its machines run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, ProviderError, TransientError
from slurm_elastic.config.sections.policies import Budget, CloudPolicies
from slurm_elastic.model.cluster import Instance, Limits, Location
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.providers.fake.provider import FakeAccount
from slurm_elastic.providers.fake.settings import FakeCloud
from tests.controller.world import SHAPE, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def move(world: World, *, keep: bool = True) -> None:
    """The pool of the public cloud is another one's from now on; the old cloud may leave, too."""
    world.stop()
    old = world.config
    new = FakeCloud(
        name="new", location=Location.PUBLIC, types=SHAPE, limits=Limits(dollars_per_hour=1.0)
    )
    clouds = old.clouds if keep else tuple(c for c in old.clouds if c.name != "pub")
    pools = tuple(replace(p, cloud="new") if p.cloud == "pub" else p for p in old.pools)
    world.config = replace(old, clouds=(*clouds, new), pools=pools)
    world.accounts["new"] = FakeAccount()
    if not keep:
        world.clouds.pop("pub")
    world.start()


def run_jobs(world: World, *nodes: str) -> list[Instance]:
    for number, node in enumerate(nodes, 1):
        world.slurm.submit(number, (node,))
    world.advance(60)
    return world.alive()


def jobs(world: World) -> list[tuple[bool, int]]:
    return [("RUNNING" in j.states, j.restarts) for j in world.slurm.queue().values()]


@pytest.mark.parametrize("keep", [True, False])
def test_jobs_run_on_and_no_second_machine_is_bought(world: World, keep: bool) -> None:
    machines = run_jobs(world, "pub1", "pub2")
    move(world, keep=keep)
    world.advance(900)
    assert jobs(world) == [(True, 0), (True, 0)]
    assert world.alive() == machines


@pytest.mark.parametrize("keep", [True, False])
def test_a_node_that_boots_on_the_old_cloud_comes_up_there(world: World, keep: bool) -> None:
    world.slurm.submit(1, ("pub1",))
    world.tick()
    (machine,) = world.alive()
    move(world, keep=keep)
    world.advance(600)
    assert jobs(world) == [(True, 0)]
    assert world.alive() == [machine]


def test_the_old_machine_ends_when_its_node_powers_down(world: World) -> None:
    run_jobs(world, "pub1")
    move(world)
    world.advance(60)
    world.slurm.finish(1)
    world.advance(world.config.timings.suspend_time + 300)
    assert world.alive() == []
    world.slurm.submit(2, ("pub1",))
    world.advance(60)
    assert [i.cloud for i in world.alive()] == ["new"]
    assert jobs(world) == [(True, 0)]


@pytest.mark.parametrize("keep", [True, False])
def test_a_node_asked_for_anew_at_once_gets_a_machine_of_its_own_cloud(
    world: World, keep: bool
) -> None:
    (old,) = run_jobs(world, "pub1")
    move(world, keep=keep)
    world.slurm.finish(1)
    timings = world.config.timings
    world.advance(timings.suspend_time + timings.suspend_timeout + 5)
    assert phase(world.slurm.node("pub1")) is Phase.POWERED_DOWN
    world.slurm.submit(2, ("pub1",))
    world.advance(500)
    assert jobs(world) == [(True, 0)]
    here = [i for i in world.alive() if i.id != old.id]
    assert [i.cloud for i in here] == ["new"]
    assert (old in world.alive()) is not keep, "nobody can end what the configuration lacks"


@pytest.mark.parametrize("error", [AuthError, TransientError])
@pytest.mark.parametrize("requeue", [True, False])
def test_a_node_asked_for_anew_waits_for_no_cloud_that_cannot_be_read(
    world: World, error: type[ProviderError], requeue: bool
) -> None:
    (old,) = run_jobs(world, "pub1")
    move(world)
    world.clouds["pub"].fail_next(error, 10**6)
    world.slurm.finish(1)
    timings = world.config.timings
    world.advance(timings.suspend_time + timings.suspend_timeout + 60)
    world.slurm.submit(2, ("pub1",), requeue=requeue)
    world.advance(60)
    assert jobs(world) == [(True, 0)], "at once"
    world.advance(600)
    assert jobs(world) == [(True, 0)]
    assert [i.cloud for i in world.alive() if i != old] == ["new"]


def test_one_that_is_lost_with_its_request_gets_its_machine_from_the_repair(world: World) -> None:
    run_jobs(world, "pub1")
    move(world)
    world.clouds["pub"].fail_next(AuthError, 10**6)
    world.slurm.finish(1)
    timings = world.config.timings
    world.advance(timings.suspend_time + timings.suspend_timeout + 60)
    world.programs = lambda *_: None
    world.slurm.submit(2, ("pub1",), requeue=False)
    world.advance(timings.orphan_timeout + 2 * timings.reconcile_interval + 60)
    assert jobs(world) == [(True, 0)]
    assert len(world.alive("new")) == 1


@pytest.mark.parametrize("keep", [True, False])
def test_nothing_is_bought_where_a_job_runs_on_although_slurmctld_forgot_that(
    world: World, keep: bool
) -> None:
    machines = run_jobs(world, "pub1")
    move(world, keep=keep)
    forgotten = {"ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING"}
    world.slurm.set_node("pub1", *forgotten)
    world.program("resume", ("pub1",), {1: ("pub1",)})
    world.advance(400)
    assert world.alive() == machines
    assert jobs(world) == [(True, 0)]


def test_of_two_the_one_of_the_old_cloud_ends_where_the_node_is_at_the_others(
    world: World,
) -> None:
    (old,) = run_jobs(world, "pub1")
    move(world)
    own = replace(old, id="new-1", cloud="new", address="10.7.7.7", launched=world.now)
    world.accounts["new"].add_foreign(own, owner="uuid-1")
    world.slurm.set_addresses({"pub1": "10.7.7.7"})
    world.advance(300)
    assert world.alive() == [own]
    assert jobs(world) == [(True, 0)]


def test_a_node_that_left_the_configuration_keeps_no_budget_from_closing_the_others(
    tmp_path: Path,
) -> None:
    """Its machine is still there, and counts in the cloud's money."""
    made = World(tmp_path)
    run_jobs(made, "pub1", "pub2")
    made.stop()
    spent = CloudPolicies(budget=Budget(per_day=0.001))
    clouds = tuple(replace(c, policies=spent) if c.name == "pub" else c for c in made.config.clouds)
    pools = tuple(replace(p, nodes="pub1") if p.cloud == "pub" else p for p in made.config.pools)
    made.config = replace(made.config, clouds=clouds, pools=pools)
    made.start()
    made.advance(120)
    assert all("POWER_DOWN" in made.slurm.node(name).states for name in ("pub1", "pub2"))
    made.close()
