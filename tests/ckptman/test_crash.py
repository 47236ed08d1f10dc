"""slurm-elastic-ckptman killed between any two steps: no job lost, none twice, no image half
trusted.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.base.faults import POINTS
from slurm_elastic.state.ckptstate.facts import MigrationStep
from tests.ckptman.world import CkptWorld

OURS = [p for p in POINTS if p.startswith(("migration.", "notice."))]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[CkptWorld]:
    made = CkptWorld()
    made.patch(monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize("away", [0.0, 20.0])
@pytest.mark.parametrize("point", OURS)
def test_killed_at_any_step_it_goes_on_where_it_was(
    world: CkptWorld, point: str, away: float
) -> None:
    node = world.runs(7).nodes[0]
    world.die_at = point
    world.interrupt(node)
    world.until(lambda: world.service is None, 60)
    world.advance(away, step=1.0)
    world.start_ckptman()
    world.until(lambda: world.back(7, 1))
    world.until(lambda: not world.state.migrations())
    (moved,) = world.migrations()
    assert moved.step is MigrationStep.BACK
    assert moved.image is not None
    assert moved.image.attempt == 0
    assert world.job(7).restarts == 1, "it was requeued once"
    assert world.job(7).nodes[0] != node
    assert world.saver.calls.count(("checkpoint", 7)) == 1, "nothing was saved twice"
    assert not world.state.notices() or node not in world.slurm.queue()[7].nodes


def test_killed_in_the_middle_of_a_save_it_saves_again(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.die_at = "migration.before-save"
    world.interrupt(node)
    world.until(lambda: world.service is None, 60)
    world.start_ckptman()
    world.until(lambda: world.back(7, 1))
    assert world.saver.calls.count(("checkpoint", 7)) == 1


def test_a_run_that_was_told_to_save_itself_goes_on_where_its_time_is_over(
    world: CkptWorld,
) -> None:
    node = world.runs(7).nodes[0]
    world.die_at = "migration.before-save"
    world.interrupt(node)
    world.until(lambda: world.service is None, 60)
    world.advance(150, step=1.0)
    world.start_ckptman()
    world.advance(5)
    assert ("checkpoint", 7) not in world.saver.calls
    assert ("release", 7) in world.saver.calls


def test_an_image_that_is_spoilt_while_nobody_looks_is_not_trusted(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.die_at = "migration.after-save"
    world.interrupt(node)
    world.until(lambda: world.service is None, 60)
    world.saver.spoilt.add((7, 1))
    world.start_ckptman()
    world.until(lambda: world.back(7, 1))
    world.until(lambda: not world.state.migrations())
    image = world.migrations()[0].image
    assert image is not None
    assert image.number == 2


@pytest.mark.parametrize("point", ["migration.after-save", "migration.before-requeue"])
def test_a_run_that_continued_while_the_service_was_away_is_saved_again(
    world: CkptWorld, point: str
) -> None:
    """Its launcher has waited for the requeue for as long as it may, and hours ago."""
    node = world.runs(7).nodes[0]
    world.die_at = point
    world.order("notice", node=node, reason="drain", departure=True)
    world.until(lambda: world.service is None, 60)
    world.saver.held.clear()
    world.advance(7200, step=60.0)
    world.start_ckptman()
    began = world.now
    world.until(lambda: world.back(7, 1))
    (moved,) = world.migrations()
    assert moved.image is not None
    assert moved.image.taken >= began, "the work of two hours is kept"
    assert world.saver.calls.count(("checkpoint", 7)) == 2


def test_a_run_that_continued_and_cannot_be_saved_again_keeps_its_image(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.die_at = "migration.before-requeue"
    world.interrupt(node, notice=900.0)
    world.until(lambda: world.service is None, 60)
    world.saver.held.clear()
    world.saver.broken = CheckpointError("no")
    world.advance(700, step=10.0)
    world.start_ckptman()
    world.until(lambda: world.job(7).restarts == 1)
    (moved,) = world.migrations()
    assert moved.image is not None
    assert moved.deadline is not None
    assert world.now >= moved.deadline - 10, "it works until the last moment"


def test_it_is_away_until_the_machine_is_gone(world: CkptWorld) -> None:
    """The requeue is Slurm's and the daemon's then; the image is still what it goes on from."""
    node = world.runs(7).nodes[0]
    world.die_at = "migration.saved"
    world.interrupt(node)
    world.until(lambda: world.service is None, 60)
    world.advance(100)
    world.take(node)
    world.until(lambda: world.job(7).restarts == 1)
    world.start_ckptman()
    world.until(lambda: not world.state.migrations())
    (moved,) = world.migrations()
    assert moved.step is MigrationStep.BACK
    assert moved.image is not None
    assert world.job(7).restarts == 1
