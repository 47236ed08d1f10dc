"""Of a job that Slurm no longer has nothing stays in the service's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.ckptman.saves import GONE
from tests.ckptman.world import CkptWorld


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld(policy="daly", probe=10.0)
    yield made
    made.close()


def _refuses(*_: object, **__: object) -> Any:
    raise CheckpointError("no")


def remembered(world: CkptWorld) -> set[int]:
    """Jobs by all memories of the service that are by job."""
    assert world.service is not None
    found: set[int] = set()
    for part in (world.service.acts, world.service.acts.saves):
        for memory in vars(part).values():
            found |= memory.keys() if isinstance(memory, dict) else set()
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
    world.advance(GONE + 60)
    assert remembered(world) == {7}


def test_of_a_job_with_images_it_is_known_since_when_it_is_missing(world: CkptWorld) -> None:
    world.runs(1)
    world.save_before(1)
    world.runs(2)
    world.slurm.finish(1)
    world.advance(GONE / 2)
    assert 1 in remembered(world)
    assert world.state.images(1)
    world.advance(GONE)
    assert not world.state.images(1)
    assert 1 not in remembered(world)
