"""slurm-elasticd is away for longer than ResumeTimeout: what becomes of jobs that wait for nodes."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.ckptman.requeue_failover import RequeueFailover
from slurm_elastic.controller.requeues import REQUEUE_TIMEOUT_S
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.state.heartbeat import Mark, leave_mark
from tests.ckptman.world import CkptWorld
from tests.controller.world import PUB


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld()
    yield made
    made.close()


def daemon_dies(world: CkptWorld) -> None:
    world.advance(10)
    world.daemon = None


def come_back(world: CkptWorld) -> None:
    """Also from ResumeTimeout's hold of the job, and the daemon's patience with it."""
    world.ledger.close()
    world.start()
    world.advance(300)


def test_a_job_that_may_not_be_requeued_is_not_lost_at_resume_timeout(world: CkptWorld) -> None:
    daemon_dies(world)
    world.slurm.submit(7, PUB, requeue=False)
    world.advance(world.config.timings.resume_timeout + 60)
    job = world.job(7)
    assert job.restarts == 1, "slurmctld has requeued it"
    assert "requeue-lifted" in world.told(7)
    come_back(world)
    job = world.job(7)
    assert ("RUNNING" in job.states, job.requeue) == (True, False), "its user's word counts again"
    assert world.ledger.requeues.lifted() == ()
    assert len(world.alive()) == 1


def test_one_whose_machine_comes_up_after_all_keeps_its_users_word(world: CkptWorld) -> None:
    """Launched before the daemon died; nobody else is there to put its setting back."""
    world.slurm.submit(7, PUB, requeue=False)
    world.hears = False  # it boots slowly
    world.advance(10)
    daemon_dies(world)
    world.advance(world.config.timings.daemon_timeout + 60)
    assert world.job(7).requeue is True
    world.hears = True
    world.advance(30)
    job = world.job(7)
    assert ("RUNNING" in job.states, job.restarts, job.requeue) == (True, 0, False)
    assert world.told(7)[-1] == "requeue-put-back"
    assert world.ledger.requeues.lifted() == ()


def test_a_lift_for_a_verification_stays_while_the_daemon_is_away(world: CkptWorld) -> None:
    """Else a node that is lost in that time ends the job, although its image is whole."""
    world.runs(7, requeue=False)
    daemon_dies(world)
    world.advance(world.config.timings.daemon_timeout + 60)
    seen: list[bool] = []

    def verify(_: Image) -> None:
        RequeueFailover(world.ckpt).protect(world.ckpt.jobs.read(refresh=True))
        seen.append(world.job(7).requeue)

    world.saver.verify = verify  # type: ignore[method-assign]
    world.order("save", job=7)
    world.until(lambda: seen)
    assert seen == [True]


@pytest.mark.parametrize("boots", [True, False])
def test_a_daemon_that_only_hung_finds_all_as_it_was(world: CkptWorld, boots: bool) -> None:
    """It is the same process, and does not look for what others have changed."""
    hung = world.daemon
    daemon_dies(world)
    world.slurm.submit(7, PUB, requeue=False)
    world.advance(world.config.timings.daemon_timeout + 30)
    assert world.job(7).requeue is True
    world.daemon = hung
    if not boots:
        world.clouds["pub"].limit("*", 0)
    world.advance(60)
    job = world.job(7)
    assert ("RUNNING" in job.states, job.restarts) == ((True, 0) if boots else (False, 1))
    assert job.requeue is False
    assert world.ledger.requeues.lifted() == ()


def test_a_job_that_is_cancelled_meanwhile_leaves_nothing(world: CkptWorld) -> None:
    daemon_dies(world)
    world.slurm.submit(7, PUB, requeue=False)
    world.advance(world.config.timings.daemon_timeout + 30)
    world.slurm.finish(7)
    world.advance(10)
    assert world.ledger.requeues.lifted() == ()


@pytest.mark.parametrize("left", [110.0, 60.0, 45.0])
def test_a_daemon_that_dies_shortly_before_resume_timeout_loses_none(
    world: CkptWorld, left: float
) -> None:
    """Its heartbeat is still fresh by then."""
    world.slurm.submit(7, PUB, requeue=False)
    world.hears = False  # it boots slowly
    world.advance(world.config.timings.resume_timeout - left)
    daemon_dies(world)
    world.advance(left)
    assert world.job(7).restarts == 1, "slurmctld has requeued it"
    assert "requeue-lifted" in world.told(7)
    (reason,) = [
        str(d.reason) for d in world.ledger.decisions.about("job:7") if d.kind == "requeue-lifted"
    ]
    assert "pub1 has not come up for" in reason


def test_it_is_not_put_back_while_the_job_still_waits_for_its_node(world: CkptWorld) -> None:
    world.slurm.submit(7, PUB, requeue=False)
    world.hears = False  # it boots slowly
    timeout = world.config.timings.resume_timeout
    world.advance(timeout - 60)
    world.daemon = None
    world.advance(35)
    assert ("CONFIGURING" in world.job(7).states, world.job(7).requeue) == (True, True)
    world.hears = True
    world.advance(20)
    job = world.job(7)
    assert ("RUNNING" in job.states, job.restarts, job.requeue) == (True, 0, False)
    assert world.ledger.requeues.lifted() == ()


def test_a_job_that_came_later_to_a_node_that_boots_is_not_lost_either(world: CkptWorld) -> None:
    """slurmctld counts from when the node was powered up, for the first of its jobs."""
    world.hears = False  # it boots slowly
    world.slurm.submit(7, PUB)
    world.advance(world.config.timings.resume_timeout - 100)
    nodes = world.job(7).nodes
    world.slurm.set_job(8, "CONFIGURING", requeue=False, nodes=nodes, start=world.now)
    daemon_dies(world)
    world.advance(75)
    assert world.job(8).requeue is True


def test_a_cloud_whose_resume_timeout_is_shorter_than_a_stale_heartbeat(world: CkptWorld) -> None:
    short = tuple(replace(c, resume_timeout=90.0) for c in world.config.clouds)
    world.config = replace(world.config, clouds=short)
    world.restart_ckptman()
    daemon_dies(world)
    world.slurm.submit(7, PUB, requeue=False)
    world.advance(given_up_after(90.0) + 5)
    assert world.job(7).requeue is True


def test_a_daemon_that_gives_the_node_up_at_the_same_moment_is_not_disturbed(
    world: CkptWorld,
) -> None:
    """Whoever is first: the job is requeued once, and has its user's word in the end."""
    daemon = world.daemon
    world.slurm.submit(7, PUB, requeue=False)
    world.hears = False  # it boots slowly
    world.advance(given_up_after(world.config.timings.resume_timeout) - 10)
    world.daemon = None  # it is busy
    world.advance(15)
    assert world.job(7).requeue is True
    world.daemon = daemon
    world.advance(10)
    world.hears = True
    world.advance(400)
    job = world.job(7)
    assert ("RUNNING" in job.states, job.restarts, job.requeue) == (True, 1, False)
    assert world.ledger.requeues.lifted() == ()


def test_what_a_stand_in_that_was_restarted_has_lifted_is_put_back_by_the_daemon_that_hung(
    world: CkptWorld,
) -> None:
    hung = world.daemon
    daemon_dies(world)
    world.slurm.submit(7, PUB, requeue=False)
    world.advance(world.config.timings.daemon_timeout + 30)
    assert world.job(7).requeue is True
    world.daemon = hung
    world.advance(5)
    world.restart_ckptman()
    world.advance(REQUEUE_TIMEOUT_S + 2 * world.config.timings.reconcile_interval)
    job = world.job(7)
    assert ("RUNNING" in job.states, job.restarts, job.requeue) == (True, 0, False)
    assert world.ledger.requeues.lifted() == ()


@pytest.mark.parametrize("before", [("PENDING",), ("RUNNING",)])
def test_a_job_whose_nodes_are_given_back_since_the_look_keeps_its_leave(
    world: CkptWorld, before: tuple[str, ...]
) -> None:
    """The other service acts between this one's list of jobs and its command: the job waits for
    nodes again, and slurmctld would fail it with them.
    """
    hung = world.daemon
    daemon_dies(world)
    world.slurm.submit(7, PUB, requeue=False)
    world.advance(world.config.timings.daemon_timeout + 30)
    assert world.job(7).requeue is True
    assert world.service is not None
    failover = world.service.applier._failover
    leave_mark(world.dir, Mark(world.now, 1))
    world.daemon = hung
    now = world.job(7)
    old = replace(now, states=frozenset(before), nodes=())
    failover.protect({7: old})
    assert world.job(7).requeue is True
    assert [job for job, _ in world.ledger.requeues.lifted()] == [7]
    world.slurm.set_job(7, "RUNNING")
    failover.protect(world.slurm.queue())
    assert world.job(7).requeue is False


def test_what_already_runs_or_is_not_ours_is_left_alone(world: CkptWorld) -> None:
    world.runs(7, requeue=False)
    world.slurm.set_node("st1", "ALLOCATED", "POWERING_UP")
    world.slurm.set_job(8, "CONFIGURING", requeue=False, nodes=("st1",))
    daemon_dies(world)
    world.advance(world.config.timings.daemon_timeout + 60)
    assert world.job(7).requeue is False
    assert world.job(8).requeue is False
    assert world.ledger.requeues.lifted() == ()


def test_while_the_daemon_beats_it_does_nothing(world: CkptWorld) -> None:
    world.clouds["pub"].visible_after = 0.0
    world.slurm.submit(7, PUB, requeue=False)
    world.advance(200)
    assert "requeue-lifted" not in world.told(7)


def test_a_slurm_that_refuses_is_asked_again(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon_dies(world)
    world.slurm.submit(7, PUB, requeue=False)

    def refuses(job: int, *, requeue: bool) -> None:
        raise SlurmError(("scontrol", "update"), 1, "Unable to contact slurm controller")

    with monkeypatch.context() as patched:
        patched.setattr(world.slurm, "set_requeue", refuses)
        world.advance(world.config.timings.daemon_timeout + 30)
        assert world.job(7).requeue is False
    world.advance(10)
    assert world.job(7).requeue is True


def test_a_ledger_that_cannot_be_written_stops_nothing_else(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon_dies(world)
    world.slurm.submit(7, PUB, requeue=False)
    world.slurm.submit(8, PUB, requeue=False)
    lift, cleaned = world.ledger.requeues.lift, []

    def full(job: int, restarts: int, now: float) -> None:
        if job == 7:
            raise sqlite3.OperationalError("database or disk is full")
        lift(job, restarts, now)

    assert world.service is not None
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(world.ledger.requeues, "lift", full)
        patched.setattr(
            world.service.applier.saves, "remove_images", lambda *_: cleaned.append(world.now)
        )
        world.advance(world.config.timings.daemon_timeout + 30)
        assert (world.job(7).requeue, world.job(8).requeue) == (False, True)
    assert cleaned[-1] == world.now
    assert caplog.text.count("disk is full") == 1
    world.advance(10)
    assert world.job(7).requeue is True


def test_a_ledger_that_cannot_be_read_stops_nothing_else(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon_dies(world)

    def broken(name: str) -> None:
        raise sqlite3.OperationalError(f"disk I/O error reading {name}")

    cleaned: list[float] = []
    assert world.service is not None
    monkeypatch.setattr(world.ledger.health, "heartbeat", broken)
    monkeypatch.setattr(
        world.service.applier.saves, "remove_images", lambda *_: cleaned.append(world.now)
    )
    with caplog.at_level(logging.WARNING):
        world.advance(world.config.timings.daemon_timeout + 30)
    assert cleaned[-1] == world.now
    assert caplog.text.count("disk I/O error") == 1


def test_without_either_service_slurmctld_fails_it_and_requeues_the_others(
    world: CkptWorld,
) -> None:
    """As docs/outages.md says; no machine is left, and the nodes are put back in the end."""
    daemon_dies(world)
    world.service = None
    world.slurm.submit(7, PUB, requeue=False)
    world.slurm.submit(8, PUB)
    world.advance(world.config.timings.resume_timeout + 60)
    assert 7 not in world.slurm.queue()
    assert world.job(8).restarts == 1
    come_back(world)
    assert "RUNNING" in world.job(8).states
    assert len(world.alive()) == 1
    assert world.spool.count() == 0
