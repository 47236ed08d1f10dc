"""A run that its launcher lets continue before Slurm requeues it: it loses no work, and it is not
stopped again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.ckptman.moves import migration
from slurm_elastic.model.causes.moves import StoppedInVain
from slurm_elastic.model.causes.requeues import RequeueTooLate
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep
from tests.ckptman.world import CkptWorld

HOLD_S = 600.0
HOUR_S = 3600.0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[CkptWorld]:
    made = CkptWorld()
    made.patch(monkeypatch)
    made.saver.hold_s = HOLD_S
    yield made
    made.close()


def refuse(_job: int) -> None:
    raise SlurmError(("scontrol", "requeue"), 1, "Requested operation is presently disabled")


def ignore(_job: int) -> None:
    """Slurm accepts the requeue, without effect."""


def verify_slowly(world: CkptWorld, monkeypatch: pytest.MonkeyPatch, seconds: float = 5.0) -> None:
    verify = world.saver.verify

    def verify_after_a_pause(image: Image) -> None:
        world.pause(seconds)
        verify(image)

    monkeypatch.setattr(world.saver, "verify", verify_after_a_pause)


def leave(world: CkptWorld, node: str) -> None:
    """A departure: the node is to become empty, and has no deadline."""
    world.order("notice", node=node, reason="drain", departure=True)


def saves(world: CkptWorld) -> int:
    return world.saver.calls.count(("checkpoint", 7))


def seconds_stopped(world: CkptWorld, seconds: float) -> float:
    stopped_s, end = 0.0, world.now + seconds
    while world.now < end:
        before = world.now
        world.advance(5, step=5.0)
        if world.saver.held.get((7, 0), 0.0) > world.now:
            stopped_s += world.now - before
    return stopped_s


def current_move(world: CkptWorld) -> Migration:
    (move,) = world.migrations()
    return move


def lost_s(world: CkptWorld) -> float:
    """The work that the requeue has just lost."""
    image = current_move(world).image
    assert image is not None
    return world.now - image.taken


# Slurm does not requeue the job


@pytest.mark.parametrize("requeue", [refuse, ignore])
def test_a_refused_requeue_stops_a_run_once_until_the_last_moment(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, requeue: Callable[[int], None]
) -> None:
    """The launcher counts from the image, and the head from the end of the verification."""
    node = world.runs(7).nodes[0]
    verify_slowly(world, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(world.slurm, "requeue", requeue)
        world.interrupt(node, notice=20_000.0)
        assert seconds_stopped(world, 4000) <= HOLD_S + 10
        assert saves(world) == 1
        assert "ckpt-stayed" in world.told(7)
        assert "ckpt-again" not in world.told(7)
        assert current_move(world).note == StoppedInVain()
    world.advance(15_000, step=15.0)
    assert (world.job(7).restarts, saves(world)) == (0, 1)
    world.until(lambda: world.job(7).restarts == 1, 2_000)
    assert saves(world) == 2
    assert lost_s(world) <= 30


@pytest.mark.parametrize("requeue", [refuse, ignore])
def test_the_move_ends_with_the_cause_for_which_slurm_did_not_requeue(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, requeue: Callable[[int], None]
) -> None:
    node = world.runs(7).nodes[0]
    monkeypatch.setattr(world.slurm, "requeue", requeue)
    verify_slowly(world, monkeypatch)
    leave(world, node)
    world.until(lambda: current_move_is_over(world), 700)
    note = current_move(world).note
    assert isinstance(note, RequeueTooLate)
    assert HOLD_S - 30 <= note.late_s <= HOLD_S
    assert ("release", 7) not in world.saver.calls


def current_move_is_over(world: CkptWorld) -> bool:
    return any(move.is_over for move in world.migrations())


def test_a_preempted_run_whose_requeue_is_refused_works_until_the_last_moment(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.runs(7)
    verify_slowly(world, monkeypatch)
    monkeypatch.setattr(world.slurm, "requeue", refuse)
    world.slurm.set_job(7, preempted=world.now + 2 * HOUR_S)
    assert seconds_stopped(world, 2 * HOUR_S - 60) <= HOLD_S + 20
    world.advance(60, step=1.0)
    assert saves(world) == 2, "one at once, one at the last moment"


def test_a_preempted_run_that_ends_before_its_last_save_is_requeued(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PreemptMode=CANCEL. Its image is from before its requeue was refused."""
    world.runs(7)
    with monkeypatch.context() as patched:
        patched.setattr(world.slurm, "requeue", refuse)
        world.slurm.set_job(7, preempted=world.now + HOUR_S)
        world.advance(1000)
    assert current_move(world).note == StoppedInVain()
    world.slurm.set_job(7, "PREEMPTED", preempted=0.0)
    world.until(lambda: world.job(7).restarts == 1, HOUR_S)


def test_slurm_that_refuses_for_hours_stops_a_run_ever_less_often(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = world.runs(7).nodes[0]
    verify_slowly(world, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(world.slurm, "requeue", refuse)
        leave(world, node)
        assert seconds_stopped(world, 8 * HOUR_S) <= 4 * (HOLD_S + 20)
        assert saves(world) == 4
    world.until(lambda: world.job(7).restarts == 1, 9 * HOUR_S)
    assert lost_s(world) <= 30, "it is saved before its requeue"


def test_a_shorter_deadline_ends_the_pause_in_time_for_a_save(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = world.runs(7).nodes[0]
    with monkeypatch.context() as patched:
        patched.setattr(world.slurm, "requeue", refuse)
        leave(world, node)
        world.advance(1000)
    assert current_move(world).note == StoppedInVain()
    world.interrupt(node, notice=300.0)
    world.until(lambda: world.job(7).restarts == 1, 300)
    assert saves(world) == 2
    assert lost_s(world) <= 10


def test_a_suspended_job_is_suspended_while_it_waits_for_another_save(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world.slurm, "requeue", refuse)
        world.slurm.suspend(7)
        world.advance(30)
        leave(world, node)
        world.until(lambda: saves(world) == 1, 60)
        world.advance(1000)
        assert current_move(world).note == StoppedInVain()
        assert world.job(7).is_suspended
    world.until(lambda: world.job(7).restarts == 1, HOUR_S)


# ckptman was away


def test_a_run_that_continues_each_time_loses_no_work_with_a_requeue_that_works(
    world: CkptWorld,
) -> None:
    node = world.runs(7).nodes[0]
    leave(world, node)
    for _ in range(3):
        world.die_at = "migration.before-requeue"
        world.until(lambda: world.service is None, 60)
        world.advance(2 * HOUR_S, step=60.0)
        world.start_ckptman()
    world.advance(120, step=1.0)
    assert world.job(7).restarts == 0
    assert saves(world) == 3
    world.until(lambda: world.job(7).restarts == 1, HOUR_S)
    assert lost_s(world) <= 30
    assert saves(world) == 4


def test_a_move_that_was_planned_without_a_save_is_saved_again(world: CkptWorld) -> None:
    """Its deadline came later, and it was saved after all."""
    node = world.runs(7).nodes[0]
    world.die_at = "migration.before-requeue"
    leave(world, node)
    world.until(lambda: world.service is None, 60)
    world.advance(HOUR_S, step=60.0)
    world.start_ckptman()
    world.state.put(replace(current_move(world), saves=False))
    world.until(lambda: world.job(7).restarts == 1, 60)
    assert saves(world) == 2
    assert "ckpt-older-image" not in world.told(7)


# the run ends meanwhile


def saved_move(world: CkptWorld) -> Migration:
    """A move whose next step is the requeue; the service has just started again."""
    node = world.runs(7).nodes[0]
    world.die_at = "migration.before-requeue"
    leave(world, node)
    world.until(lambda: world.service is None, 60)
    world.start_ckptman()
    return current_move(world)


def test_a_run_that_ends_while_no_requeue_is_lifted_does_not_run_again(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = saved_move(world)
    world.slurm.set_job(7, requeue=False)
    set_requeue = world.slurm.set_requeue

    def set_slowly(job: int, *, requeue: bool) -> None:
        set_requeue(job, requeue=requeue)
        world.slurm.set_job(7, "COMPLETING")

    monkeypatch.setattr(world.slurm, "set_requeue", set_slowly)
    assert migration.continue_migration(world.ckpt, move).step is MigrationStep.SAVED
    assert world.slurm.calls["requeue"] == 0
    world.slurm.set_job(7, "COMPLETED")
    world.advance(60)
    assert current_move(world).step is MigrationStep.ENDED
    assert world.job(7).restarts == 0


def test_a_run_that_ends_while_a_shared_directory_hangs_does_not_run_again(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = saved_move(world)
    world.pause(30)

    def hang(_run: JobRun) -> bool:
        world.pause(30)
        world.slurm.set_job(7, "COMPLETING")
        return False

    monkeypatch.setattr(world.saver, "is_at_work", hang)
    assert migration.continue_migration(world.ckpt, move).step is MigrationStep.SAVED
    assert world.slurm.calls["requeue"] == 0
