"""A job that takes each of its machines with it is held, and a person reads why."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_elastic.controller.machine_losers import IN_A_ROW_S, MAX_LOSSES
from slurm_elastic.features.waits.wait_situation import WaitFacts, situation_of
from slurm_elastic.model.job_holds import MACHINES_LOST
from slurm_elastic.model.memory import Decision
from slurm_elastic.policies.waits.situation import Obstacles
from slurm_elastic.policies.waits.wait import judge
from slurm_elastic.watch.doctor import kept
from tests.controller.world import World


@pytest.fixture(autouse=True)
def _losses_are_reported(world: World) -> None:
    world.clouds["pub"].tells_losses = True


def lose_machine(world: World) -> None:
    """Wait until the job runs on a machine, and end that machine."""
    for _ in range(100):
        if world.alive() and world.slurm.queue()[1].states == {"RUNNING"}:
            break
        world.advance(10)
    for machine in world.alive():
        world.clouds["pub"].take(machine.id)
    world.advance(world.config.timings.reconcile_interval + 5)


def holds(world: World) -> list[Decision]:
    return [d for d in world.ledger.decisions.about("job:1") if d.kind == MACHINES_LOST]


def test_a_job_that_loses_machine_after_machine_is_held(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    for _ in range(MAX_LOSSES - 1):
        lose_machine(world)
    assert not holds(world)
    lose_machine(world)
    world.advance(300)
    job = world.slurm.queue()[1]
    assert job.reason == "JobHeldUser"
    assert world.alive() == [], "nothing more is bought for it"
    (decision,) = holds(world)
    assert f"{MAX_LOSSES} machines in a row ended under it since" in str(decision.reason)
    assert str(decision.reason).endswith(
        "the job is held; after a look at its output: scontrol release 1"
    )


def test_status_and_doctor_name_the_hold_with_its_reason(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    for _ in range(MAX_LOSSES):
        lose_machine(world)
    world.advance(60)
    job = world.slurm.queue()[1]
    recorded = world.ledger.decisions.job_holds()
    facts = WaitFacts(now=world.now, obstacles=Obstacles(job_holds=recorded))
    situation = situation_of(world.config, facts)
    wait = judge(job, situation)
    assert "machines in a row ended under it" in wait.text
    assert (wait.is_meant, wait.command) == (False, "scontrol release 1")
    findings, stuck = kept.examine(world.config, world.slurm, world.now)
    assert stuck == 1
    assert any("job 1 is held: 6 machines in a row" in one.observed for one in findings)
    requeued = replace(job, submit=recorded[1].at + 1)
    assert judge(requeued, situation).is_meant, "a later hold"


def test_a_job_that_was_released_is_counted_anew(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    for _ in range(MAX_LOSSES):
        lose_machine(world)
    world.advance(60)
    assert len(holds(world)) == 1
    world.slurm.release(1)
    for _ in range(3):
        lose_machine(world)
    assert len(holds(world)) == 1
    assert not world.slurm.queue()[1].is_held


def test_a_job_that_works_between_its_losses_is_not_held(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    for _ in range(MAX_LOSSES + 1):
        lose_machine(world)
        world.advance(IN_A_ROW_S + 60, step=60)
    assert not holds(world)
    assert "RUNNING" in world.slurm.queue()[1].states
