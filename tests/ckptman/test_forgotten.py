"""Of a job that Slurm no longer has nothing stays in the service's memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import asdict

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.ckptman.saves import MISSING_JOB_TIMEOUT_S, SavesInPlace
from slurm_elastic.policies.checkpoint.lost_state import LOST_STATE_TIMEOUT_S
from tests.ckptman.world import CkptWorld
from tests.controller.world import PUB


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld(policy="daly", probe_after=10.0)
    yield made
    made.close()


def _refuses(*_: object, **__: object) -> Any:
    raise CheckpointError("no")


def remembered(world: CkptWorld) -> set[int]:
    """Jobs by all memories of the service that are by job."""
    assert world.service is not None
    found: set[int] = set()
    for part in (world.service.applier, world.service.applier.saves):
        for memory in vars(part).values():
            if isinstance(memory, ReportOnce):
                found |= memory._reports.keys()
            elif isinstance(memory, SharedDict):
                found |= memory.snapshot().keys()
    return found


def test_jobs_that_came_and_went_are_forgotten(world: CkptWorld) -> None:
    world.saver.checkpoint = _refuses  # type: ignore[method-assign]
    world.saver.hindered = lambda run: "an obstacle that is none of ours"  # type: ignore[method-assign]
    for number in range(1, 7):
        world.runs(number, comment="ckpt=nosuchmethod" if number % 2 else "")
        assert number in remembered(world)
        world.slurm.finish(number)
        world.advance(60)
    world.runs(7)
    world.advance(MISSING_JOB_TIMEOUT_S + 60)
    assert remembered(world) == {7}


def test_a_step_of_the_heads_clock_ends_no_job(world: CkptWorld) -> None:
    """Otherwise all images would be removed at once while slurmctld lacks its state."""
    clock = world.now
    saves = SavesInPlace(replace(world.ckpt, monotonic=lambda: clock), world.service.orders)
    assert not saves._is_over(7, {})
    world.now += 10 * LOST_STATE_TIMEOUT_S
    assert not saves._is_over(7, {})
    clock += 2 * LOST_STATE_TIMEOUT_S
    assert saves._is_over(7, {})


def test_of_a_job_with_images_it_is_known_since_when_it_is_missing(world: CkptWorld) -> None:
    world.runs(1)
    world.save_before(1)
    world.runs(2)
    world.slurm.finish(1)
    world.advance(MISSING_JOB_TIMEOUT_S / 2)
    assert 1 in remembered(world)
    assert world.state.images(1)
    world.advance(MISSING_JOB_TIMEOUT_S)
    assert not world.state.images(1)
    assert 1 not in remembered(world)


def test_images_of_the_last_job_go_though_the_queue_is_empty(world: CkptWorld) -> None:
    world.runs(1)
    world.save_before(1)
    world.slurm.finish(1)
    world.advance(MISSING_JOB_TIMEOUT_S + 60)
    assert world.state.images(1), "a slurmctld that lost its state lists no job either"
    world.advance(LOST_STATE_TIMEOUT_S, step=3600.0)
    assert not world.state.images(1)


def test_a_slurmctld_that_counts_from_the_start_again_ends_no_image(world: CkptWorld) -> None:
    """It has lost its state on a Friday night, and new jobs have come since. A person restores the
    state on Monday.
    """
    world.runs(20)
    world.save_before(20)
    job = world.job(20)
    world.slurm.remove_job(20)
    world.slurm.set_job(1, "PENDING")
    world.advance(3 * 86400.0, step=3600.0)
    world.slurm.set_job(20, **asdict(job))
    world.advance(3600)
    assert world.state.images(20)


def test_an_outage_of_slurmctld_ends_no_image(world: CkptWorld) -> None:
    world.runs(1)
    world.save_before(1)
    world.slurm.broken = SlurmError(("squeue",), 1, "Unable to contact slurm controller")
    world.restart_ckptman()
    world.advance(2 * LOST_STATE_TIMEOUT_S, step=3600.0)
    world.slurm.broken = None
    world.advance(30)
    assert world.state.images(1)


def test_a_job_with_the_number_of_an_earlier_saved_job_gets_none_of_its_records(
    world: CkptWorld,
) -> None:
    world.runs(1)
    world.save_before(1)
    world.slurm.finish(1)
    world.slurm.submit(1, PUB)
    world.advance(1.0, step=1.0)
    assert not world.state.images(1)
