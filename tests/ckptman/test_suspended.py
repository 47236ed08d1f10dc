"""Jobs that somebody has suspended: saved as they are, moved by a notice, and suspended still."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.base.faults import POINTS
from slurm_elastic.ckptman.suspended import SETTLE_S
from slurm_elastic.state.ckptstate.facts import MigrationStep
from tests.ckptman.world import CkptWorld

OURS = [p for p in POINTS if p.startswith(("migration.", "notice.", "suspended."))]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[CkptWorld]:
    made = CkptWorld()
    made.patch(monkeypatch)
    yield made
    made.close()


def suspends(world: CkptWorld, number: int, since: float = 60.0) -> str:
    """The job runs, is suspended by a person, and that was some time ago; its node."""
    node = world.runs(number).nodes[0]
    world.slurm.suspend(number)
    world.advance(since)
    return node


def is_there(world: CkptWorld, number: int, attempt: int) -> bool:
    """It is suspended where it goes on, and nothing is owed to it."""
    job = world.job(number)
    return job.restarts == attempt and job.is_suspended and not world.state.suspensions()


def test_at_a_notice_it_is_saved_as_it_is_and_suspended_where_it_goes_on(world: CkptWorld) -> None:
    node = suspends(world, 7)
    assert not world.saver.calls, "a policy without periodic saves lets it rest"
    world.interrupt(node)
    world.until(lambda: is_there(world, 7, 1))
    (moved,) = world.migrations()
    assert moved.step is MigrationStep.BACK
    assert moved.image is not None
    assert moved.image.attempt == 0
    assert world.job(7).nodes[0] != node
    told = ["ckpt-resumed", "ckpt-saved", "ckpt-requeued", "ckpt-back", "ckpt-suspended"]
    assert [kind for kind in world.told(7) if kind in told] == told
    asked = [name for name, _ in world.slurm.updates if name in ("suspend", "resume", "release")]
    assert asked == ["suspend", "resume", "suspend"], "Slurm never held it"


@pytest.mark.parametrize("away", [0.0, 20.0])
@pytest.mark.parametrize("point", OURS)
def test_killed_at_any_step_it_is_moved_once_and_suspended(
    world: CkptWorld, point: str, away: float
) -> None:
    node = suspends(world, 7)
    world.die_at = point
    world.interrupt(node)
    world.until(lambda: world.service is None, 90)
    world.advance(away, step=1.0)
    world.start_ckptman()
    world.until(lambda: is_there(world, 7, 1))
    world.until(lambda: not world.state.migrations())
    (moved,) = world.migrations()
    assert moved.step is MigrationStep.BACK
    assert moved.image is not None
    assert world.job(7).restarts == 1, "it was requeued once"
    assert world.saver.calls.count(("checkpoint", 7)) == 1, "nothing was saved twice"
    world.advance(60)
    assert is_there(world, 7, 1)


def test_who_resumes_it_there_finds_it_running_on(world: CkptWorld) -> None:
    node = suspends(world, 7)
    world.interrupt(node)
    world.until(lambda: is_there(world, 7, 1))
    world.slurm.resume(7)
    world.advance(120)
    assert "RUNNING" in world.job(7).states


@pytest.mark.parametrize("since", [0.0, 1.0])
def test_one_that_was_suspended_just_now_is_resumed_a_little_later(
    world: CkptWorld, since: float
) -> None:
    """Its processes are stopped two seconds after the command, and a resume then does not help."""
    node = suspends(world, 7, since)
    began = world.job(7).suspended
    world.interrupt(node)
    world.until(lambda: "ckpt-resumed" in world.told(7))
    assert SETTLE_S <= world.now - began <= SETTLE_S + 5
    world.until(lambda: is_there(world, 7, 1))


def test_one_that_cannot_be_saved_goes_on_from_its_older_save_and_is_suspended(
    world: CkptWorld,
) -> None:
    node = world.runs(7).nodes[0]
    world.save_before(7)
    world.advance(120)
    world.slurm.suspend(7)
    world.advance(300)
    world.saver.fail_next.extend([CheckpointError("no room")] * 3)
    world.interrupt(node)
    world.until(lambda: "ckpt-older-image" in world.told(7))
    world.until(lambda: world.job(7).is_suspended, 5)
    assert world.job(7).restarts == 0, "until the last moment it stays as it is"
    world.until(lambda: is_there(world, 7, 1))
    (moved,) = world.migrations()
    assert moved.image is not None
    text = " ".join(
        str(d.reason) for d in world.ledger.decisions.about("job:7") if d.kind == "ckpt-back"
    )
    assert "2 minutes of its work must be done again" in text


def test_a_machine_that_stays_after_all_leaves_it_suspended(world: CkptWorld) -> None:
    node = suspends(world, 7)
    world.saver.fail_next.extend([CheckpointError("no room")] * 3)
    world.order("notice", node=node, reason="", deadline=world.now + 120, rebalance=False)
    world.until(lambda: "ckpt-no-image" in world.told(7))
    world.order("withdraw", node=node)
    world.advance(30)
    assert is_there(world, 7, 0)
    assert world.migrations()[0].step is MigrationStep.STAYED


def test_it_is_suspended_between_a_failed_save_and_the_next(world: CkptWorld) -> None:
    node = suspends(world, 7)
    world.saver.fail_next.extend([CheckpointError("no room")] * 3)
    world.order("notice", node=node, reason="", deadline=world.now + 3600, rebalance=False)
    world.until(lambda: world.told(7).count("ckpt-failed") == 3)
    world.until(lambda: is_there(world, 7, 0), 30)
    world.until(lambda: is_there(world, 7, 1), 700)
    assert world.migrations()[0].image is not None


def test_an_operator_has_it_saved_and_it_is_suspended_again(world: CkptWorld) -> None:
    suspends(world, 7)
    world.order("save", job=7)
    world.until(lambda: bool(world.state.images(7)))
    assert is_there(world, 7, 0)
    told = ["ckpt-resumed", "ckpt-suspended", "ckpt-saved"]
    assert [kind for kind in world.told(7) if kind in told] == told


@pytest.mark.parametrize("point", [p for p in OURS if p.startswith("suspended.")])
def test_killed_in_a_save_that_it_stays_for_it_is_suspended_again(
    world: CkptWorld, point: str
) -> None:
    suspends(world, 7)
    world.die_at = point
    world.order("save", job=7)
    world.until(lambda: world.service is None, 30)
    world.start_ckptman()
    world.advance(30)
    assert is_there(world, 7, 0)
    world.slurm.resume(7)
    world.advance(60)
    assert "RUNNING" in world.job(7).states, "what was owed is not kept for later"


@pytest.fixture
def periodic(monkeypatch: pytest.MonkeyPatch) -> Iterator[CkptWorld]:
    made = CkptWorld(policy="first_of(on_notice, daly(mtti=3000, least=60))")
    made.patch(monkeypatch)
    yield made
    made.close()


def test_a_policy_with_periodic_saves_has_it_saved_once(periodic: CkptWorld) -> None:
    world = periodic
    suspends(world, 7)
    world.until(lambda: bool(world.state.images(7)), 600)
    world.until(lambda: is_there(world, 7, 0))
    world.advance(3000)
    assert world.saver.calls.count(("checkpoint", 7)) == 1
    world.slurm.resume(7)
    world.advance(600)
    assert world.saver.calls.count(("checkpoint", 7)) > 1


def test_a_policy_resumes_it_for_no_second_save_after_a_failed_one(periodic: CkptWorld) -> None:
    """The job would run for a while at each of the retries, as long as it is suspended."""
    world = periodic
    world.saver.broken = CheckpointError("no room")
    suspends(world, 7)
    world.until(lambda: "ckpt-failed" in world.told(7), 600)
    world.until(lambda: is_there(world, 7, 0))
    world.advance(3000)
    assert world.told(7).count("ckpt-resumed") == 1
    world.saver.broken = None
    world.slurm.resume(7)
    world.until(lambda: bool(world.state.images(7)), 1200)


def test_one_that_slurm_has_suspended_for_another_job_is_left_to_it(periodic: CkptWorld) -> None:
    world = periodic
    node = world.runs(7).nodes[0]
    world.slurm.set_job(7, "SUSPENDED", priority=4, suspended=world.now)
    world.order("save", job=7)
    world.advance(1000)
    assert world.job(7).is_suspended
    assert not world.state.images(7)
    world.interrupt(node)
    world.until(lambda: world.back(7, 1))
    world.advance(60)
    assert "RUNNING" in world.job(7).states, "Slurm does not hold it for a person's word"
    assert world.migrations()[0].image is not None


def test_a_slurm_that_does_not_resume_it_costs_no_more_than_before(world: CkptWorld) -> None:
    node = suspends(world, 7)
    refusal = SlurmError(("scontrol", "resume"), 1, "Access denied")
    world.slurm.resume = lambda _: (_ for _ in ()).throw(refusal)  # type: ignore[method-assign]
    world.interrupt(node)
    world.until(lambda: "ckpt-no-image" in world.told(7))
    assert "Access denied" in str(world.migrations()[0].note)
    assert world.job(7).is_suspended


DENIED = SlurmError(("scontrol", "suspend"), 1, "Access denied")


def test_a_suspension_that_slurm_refuses_once_is_not_forgotten(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspends(world, 7)
    really, refusals = world.slurm.suspend, [DENIED]

    def refuse_once(job: int) -> None:
        if refusals:
            raise refusals.pop()
        really(job)

    monkeypatch.setattr(world.slurm, "suspend", refuse_once)
    world.order("save", job=7)
    world.until(lambda: bool(world.state.images(7)))
    # The list of that tick still shows the job as suspended.
    assert world.state.suspensions()
    world.until(lambda: is_there(world, 7, 0), 30)


def test_a_suspension_that_slurm_refuses_is_recorded_once_and_tried_more_and_more_rarely(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspends(world, 7)
    refusing = Mock(side_effect=DENIED)
    with monkeypatch.context() as patch:
        patch.setattr(world.slurm, "suspend", refusing)
        world.order("save", job=7)
        world.until(lambda: bool(world.state.images(7)))
        world.advance(3600, step=1.0)
        assert 10 <= refusing.call_count <= 25
        assert world.told(7).count("ckpt-not-suspended") == 1
        refusing.side_effect = SlurmError(("scontrol", "suspend"), 1, "Slurm is busy")
        world.advance(300, step=1.0)
        assert world.told(7).count("ckpt-not-suspended") == 2, "another cause is recorded"
    world.until(lambda: is_there(world, 7, 0), 300)
    assert not world.ckpt.refused_suspensions._changes.snapshot()
