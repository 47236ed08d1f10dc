"""Growth starts no spot machine that a job may get which must stay off spot machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.config.sections.policies import SitePolicies
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Limits, Market
from slurm_elastic.model.exclusion import NO_SPOT, Exclusion
from tests.controller.world import PUB, World, make_config


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    """One public cloud, whose pool of three buys spot first. A growth policy starts its nodes."""
    made: list[World] = []

    def world(**pool: Any) -> World:
        plain = make_config(Path("/nonexistent"))
        one = World(
            clouds=(replace(plain.clouds[1], limits=Limits(dollars_per_hour=10.0)),),
            pools=(replace(plain.pools[1], **pool),),
            limits=Limits(),
            policies=SitePolicies(poll_interval=5.0, growth="on_demand"),
        )
        made.append(one)
        one.advance(60)
        return one

    yield world
    for one in made:
        one.close()


def submit(world: World, job: int, **fields: Any) -> None:
    given = {"partitions": ("pub",), "limit": 600, "node_count": 1} | fields
    world.slurm.submit(job, PUB, 1, **given)


def markets(world: World) -> dict[str, Market]:
    return {m.instance.node: m.instance.market for m in world.ledger.machines.live()}


def test_a_job_that_bears_a_loss_gets_a_spot_machine(make: Callable[..., World]) -> None:
    world = make()
    submit(world, 1)
    submit(world, 2, requeue=False, comment="spot=ok")
    world.advance(120)
    assert set(markets(world).values()) == {Market.SPOT}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_job_that_must_not_be_requeued_gets_none(
    make: Callable[..., World], *, restarts: bool
) -> None:
    world = make()
    world.hears = not restarts
    submit(world, 1, requeue=False)
    world.advance(20)
    if restarts:
        world.restart()
        world.hears = True
    world.advance(120)
    assert set(markets(world).values()) == {Market.ON_DEMAND}


def test_a_job_with_a_rule_against_spot_gets_none(make: Callable[..., World]) -> None:
    world = make()
    world.ledger.exclusions.add(
        Exclusion(
            kind=NO_SPOT, scope="job:1", since=world.now, until=world.now + 86400,
            cause=Quoted(text="it cannot be saved"),
        )
    )  # fmt: skip
    submit(world, 1)
    world.advance(120)
    assert set(markets(world).values()) == {Market.ON_DEMAND}


def test_no_job_beside_it_brings_a_spot_machine_that_it_may_get(
    make: Callable[..., World],
) -> None:
    """slurmctld, not growth, decides which of the two jobs starts on which machine."""
    world = make()
    submit(world, 1)
    submit(world, 2, requeue=False)
    world.advance(120)
    assert set(markets(world).values()) == {Market.ON_DEMAND}


def test_a_job_that_excludes_the_spot_nodes_leaves_them_to_spot(
    make: Callable[..., World],
) -> None:
    world = make(on_demand_nodes=1)
    submit(world, 1, requeue=False, excluded=PUB[:2])
    submit(world, 2)
    world.advance(120)
    assert markets(world) == {PUB[0]: Market.SPOT, PUB[2]: Market.ON_DEMAND}


def test_while_no_other_machine_is_available_the_other_jobs_get_spot_machines(
    make: Callable[..., World],
) -> None:
    world = make()
    world.clouds["pub"].limit("*/on-demand", 0)
    submit(world, 1, requeue=False)
    submit(world, 2)
    world.advance(300)
    job = world.slurm.job(1)
    assert job is not None
    assert "PENDING" in job.states
    assert job.begin > world.now
    other = world.slurm.job(2)
    assert other is not None
    assert "RUNNING" in other.states
    assert set(markets(world).values()) == {Market.SPOT}
