"""A job that ends while it is to be moved: whether it has finished, or ended for our sake."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.checkpointers.signal import SignalCheckpointer
from slurm_elastic.ckptman.moves.requeueing import REQUEUE_TIMEOUT_S
from slurm_elastic.config.sections.checkpoint import SignalSettings
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.state.ckptstate.facts import MigrationStep
from tests.ckptman.world import CkptWorld

USR1, KILL = 10, 9


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[CkptWorld]:
    made = CkptWorld(method="signal", signal=SignalSettings(saved="file:state"))
    made.patch(monkeypatch)
    use_signal(made)
    yield made
    made.close()


def use_signal(world: CkptWorld) -> None:
    world.saver.name = "signal"
    world.ckpt.checkpointers["signal"] = world.saver  # type: ignore[index]


def waits(world: CkptWorld, *, notice: float) -> None:
    """Job 7 has a periodic image and waits for the last moment before its node is taken."""
    node = world.runs(7).nodes[0]
    world.saver.seconds = 40.0
    world.order("save", job=7)
    world.advance(150)
    world.interrupt(node, notice=notice)
    world.until(lambda: [r.step for r in world.migrations()] == [MigrationStep.WAITING])
    assert world.migrations()[0].image is not None


@pytest.mark.parametrize("end", ["COMPLETED", "FAILED", "OUT_OF_MEMORY", "TIMEOUT"])
def test_an_older_image_does_not_make_a_finished_job_run_again(world: CkptWorld, end: str) -> None:
    waits(world, notice=55.0)
    assert world.saver.calls.count(("checkpoint", 7)) == 1, "no save fits: nothing was sent"
    assert "a save may take 50s, which does not fit into 49s" in str(world.migrations()[0].note)
    world.slurm.set_job(7, end)
    world.advance(120)
    assert world.migrations()[0].step is MigrationStep.ENDED
    assert world.job(7).restarts == 0


@pytest.mark.parametrize("end", ["COMPLETED", "CANCELLED"])
def test_a_job_that_finishes_does_not_run_again_because_its_epilog_is_long(
    world: CkptWorld, end: str
) -> None:
    """22.05 shows COMPLETING alone until the epilog is over, and takes the requeue (measured)."""
    waits(world, notice=55.0)
    (move,) = world.migrations()
    assert move.at is not None
    world.until(lambda: world.now >= move.at - 3)  # type: ignore[operator]
    world.slurm.set_job(7, "COMPLETING")
    world.advance(30, step=1.0)
    assert world.slurm.calls["requeue"] == 0
    assert "ckpt-not-yet" in world.told(7)
    world.slurm.set_job(7, end)
    world.advance(30, step=1.0)
    assert world.migrations()[0].step is MigrationStep.ENDED
    assert world.job(7).restarts == 0


def saves_by_signal(world: CkptWorld, path: Path) -> str:
    """The real method. Return the node on which job 7 runs."""
    world.ckpt.checkpointers["signal"] = SignalCheckpointer(  # type: ignore[index]
        world.ckpt.config.checkpoint.signal, path / "saves", world.slurm, world.ckpt.jobs.find,
        lambda: world.now, world.pause,
    )  # fmt: skip
    return world.runs(7, directory=str(path), uid=os.getuid(), batch=True).nodes[0]


@pytest.mark.parametrize("end", [("COMPLETED",), ("FAILED",), ("COMPLETING", "FAILED")])
def test_a_job_that_ends_right_after_its_sign_is_requeued(
    world: CkptWorld, tmp_path: Path, end: tuple[str, ...]
) -> None:
    """It has not finished, whatever its exit code."""
    node = saves_by_signal(world, tmp_path)

    def saves_and_ends(job: int, name: str) -> None:
        assert name == "USR1", "nothing is left to stop"
        (tmp_path / "state").write_text("step 1")
        world.slurm.set_job(job, *end)

    world.slurm.on_signal = saves_and_ends
    world.interrupt(node)
    world.until(lambda: world.back(7, 1), 900)
    world.advance(30)
    (move,) = world.migrations()
    assert move.step is MigrationStep.BACK
    assert move.image is not None
    assert "ckpt-saved" in world.told(7)
    assert "ckpt-failed" not in world.told(7)


@pytest.mark.parametrize("code", [85, 1])
def test_a_script_that_ends_as_its_sign_before_the_next_try_is_requeued(
    tmp_path: Path, code: int
) -> None:
    world = CkptWorld(method="signal", signal=SignalSettings(saved="exit:85"))
    try:
        node = saves_by_signal(world, tmp_path)
        world.order("notice", node=node)
        world.until(lambda: "ckpt-failed" in world.told(7), 3600)
        assert "RUNNING" in world.job(7).states
        world.slurm.set_job(7, "FAILED", exit_code=code)
        if code == 85:
            world.until(lambda: world.back(7, 1), 900)
        world.advance(30)
        (move,) = world.migrations()
        assert move.step is (MigrationStep.BACK if code == 85 else MigrationStep.ENDED)
        assert world.job(7).restarts == (code == 85)
    finally:
        world.close()


def test_a_stopped_run_that_slurm_ended_is_moved_after_the_longest_epilog(world: CkptWorld) -> None:
    """It cannot continue where it is, so it is not released there."""
    node = world.runs(7).nodes[0]
    world.die_at = "migration.saved"
    world.interrupt(node)
    world.until(lambda: world.service is None, 60)
    world.slurm.set_job(7, "COMPLETING")
    world.start_ckptman()
    use_signal(world)
    world.advance(REQUEUE_TIMEOUT_S + 60, step=5.0)
    assert ("release", 7) not in world.saver.calls
    world.slurm.set_job(7, "FAILED")
    world.until(lambda: world.back(7, 1))


@pytest.mark.parametrize(
    ("killed_by", "exit_code", "restarts"),
    [
        (USR1, 0, 1), (KILL, 0, 0), (11, 0, 0), (0, 0, 0),
        (0, 128 + USR1, 1), (0, 128 + KILL, 0), (0, USR1, 0), (0, 1, 0),
    ],
)  # fmt: skip
def test_only_our_own_signal_is_what_it_dies_of_for_our_sake(
    world: CkptWorld, killed_by: int, exit_code: int, restarts: int
) -> None:
    """Itself, or the launcher of MPI whose exit code its script hands on."""
    node = world.runs(7).nodes[0]
    world.saver.broken = CheckpointError("no sign")
    world.interrupt(node)
    world.until(lambda: [r.step for r in world.migrations()] == [MigrationStep.WAITING])
    world.slurm.set_job(7, "FAILED", killed_by=killed_by, exit_code=exit_code)
    world.advance(60)
    assert world.job(7).restarts == restarts


def test_one_that_died_of_our_signal_while_nobody_looked_goes_on(world: CkptWorld) -> None:
    """Killed between the signal and its answer: that a save was asked for is on the disk."""
    node = world.runs(7).nodes[0]
    world.die_at = "migration.before-save"
    world.interrupt(node, notice=60.0)
    world.until(lambda: world.service is None, 60)
    world.slurm.set_job(7, "FAILED", killed_by=USR1)
    world.advance(50)
    world.start_ckptman()
    use_signal(world)
    world.until(lambda: world.back(7, 1))


def test_a_job_that_saved_itself_and_ended_is_moved(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.die_at = "migration.saved"
    world.interrupt(node)
    world.until(lambda: world.service is None, 60)
    world.slurm.set_job(7, "COMPLETED")
    world.start_ckptman()
    use_signal(world)
    world.until(lambda: world.back(7, 1))


@pytest.mark.parametrize("ahead", [0.0, 600.0, -600.0])
@pytest.mark.parametrize("point", ["migration.before-save", "migration.after-save"])
def test_the_last_save_is_known_by_its_number_whatever_the_nodes_clock_says(
    world: CkptWorld, point: str, ahead: float
) -> None:
    """Images bear the time of the node that took them."""
    node = world.runs(7).nodes[0]
    world.save_before(7)
    world.die_at = point
    world.interrupt(node)
    world.until(lambda: world.service is None, 60)
    taken = world.saver._images[7]
    taken[:] = [replace(image, taken=image.taken + ahead) for image in taken]
    world.start_ckptman()
    use_signal(world)
    world.until(lambda: not world.state.migrations() and world.back(7, 1))
    (moved,) = world.migrations()
    assert moved.image is not None
    assert moved.image.number == 2
    assert world.saver.calls.count(("checkpoint", 7)) == 2


def on_clock(world: CkptWorld, ahead: float) -> None:
    """Images bear the time of a node whose clock is ahead by that many seconds. Only ``signal``
    saves by the clock of this head.
    """
    plain = world.saver._add_image

    def keep(run: JobRun, began: float, *, stop: bool) -> Image:
        image = replace(plain(run, began, stop=stop), taken=world.now + ahead, method="criu")
        world.saver._images[run.job][0] = image
        return image

    world.saver._add_image = keep  # type: ignore[method-assign]


@pytest.mark.parametrize("ahead", [600.0, -600.0])
def test_a_job_is_saved_for_a_notice_whatever_its_nodes_clock_says(
    world: CkptWorld, ahead: float
) -> None:
    on_clock(world, ahead)
    node = world.runs(7).nodes[0]
    world.save_before(7)
    world.interrupt(node)
    world.until(lambda: world.back(7, 1))
    assert world.saver.calls.count(("checkpoint", 7)) == 2


@pytest.mark.parametrize("ahead", [600.0, -600.0])
def test_a_recommendation_is_answered_once_whatever_the_nodes_clock_says(
    world: CkptWorld, ahead: float
) -> None:
    on_clock(world, ahead)
    node = world.runs(7).nodes[0]
    world.save_before(7)
    world.order("notice", node=node, rebalance=True)
    world.advance(120)
    assert world.saver.calls.count(("checkpoint", 7)) == 2


def test_a_periodic_image_that_was_not_noted_before_a_crash_is_not_the_last_one(
    world: CkptWorld,
) -> None:
    node = world.runs(7).nodes[0]
    world.save_before(7)
    world.restart_ckptman()
    use_signal(world)
    for image in world.state.images():
        world.state.forget_image(image)
    world.interrupt(node)
    world.until(lambda: world.back(7, 1))
    image = world.migrations()[0].image
    assert image is not None
    assert image.number == world.saver.calls.count(("checkpoint", 7)) >= 2
