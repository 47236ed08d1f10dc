"""A cloud that was never read."""

from __future__ import annotations

import pytest

from slurm_elastic.errors import AuthError, ProviderError, TransientError
from slurm_elastic.policies.phase import Phase, phase
from tests.lifecycle.world import World


def never_read(world: World, cloud: str, error: type[ProviderError] = AuthError) -> None:
    world.lose_ledger()
    world.clouds[cloud].fail_next(error, 10**6, "instances")


@pytest.mark.parametrize("error", [AuthError, TransientError])
@pytest.mark.parametrize("requeue", [True, False])
def test_jobs_start_elsewhere_at_once(
    world: World, error: type[ProviderError], requeue: bool
) -> None:
    never_read(world, "onp", error)
    world.slurm.submit(1, ("op1", "pub1"), requeue=requeue)
    world.advance(60)
    job = world.slurm.queue()[1]
    assert job.nodes == ("pub1",)
    assert "RUNNING" in job.states
    assert job.restarts <= 1
    assert world.alive("onp") == [], "nothing is bought: it may have the machine already"
    (why,) = [d.reason for d in world.ledger.decisions("op1") if d.kind == "refused"]
    assert why.startswith("it was never read, what it has is not known: onp: ")


def test_a_job_with_no_other_place_waits_and_starts_when_the_cloud_is_read(world: World) -> None:
    never_read(world, "onp")
    world.slurm.submit(1, ("op1",), requeue=False)
    world.advance(3600, step=10)
    job = world.slurm.queue()[1]
    assert "PENDING" in job.states
    assert job.restarts <= 1, "its nodes are held as long as that lasts"
    assert world.kinds("op1").count("refused") == 1
    assert world.spool.count() == 0
    world.clouds["onp"].heal()
    world.advance(world.config.timings.capacity_cooldown + 240)
    assert "RUNNING" in world.slurm.queue()[1].states
    assert len(world.alive("onp")) == 1


def test_while_nothing_is_known_only_nodes_that_slurm_waits_for_wait(world: World) -> None:
    never_read(world, "onp")
    assert world.daemon is not None
    world.daemon._rounds["onp"].run = lambda: None  # type: ignore[method-assign]
    world.slurm.submit(1, ("op1",))
    world.advance(60)
    assert world.spool.count() == 1
    assert phase(world.slurm.node("op1")) is Phase.POWERING_UP
    assert world.alive() == []
    world.slurm.finish(1)
    world.slurm.set_node("op1", "IDLE", "CLOUD", "POWERED_DOWN")
    world.advance(60)
    assert world.spool.count() == 0
    assert world.kinds("op1") == ["dropped"]
