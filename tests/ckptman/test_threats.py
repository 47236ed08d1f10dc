"""Whatever takes a job's place, its work is kept: the causes besides a cloud's notice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.base.processes.periodic import PeriodicTask
from slurm_elastic.ckptman import readers
from slurm_elastic.config.job_checkpoint import asks_for_limit, resolve
from slurm_elastic.config.sections.checkpoint import CheckpointSettings, PoolCheckpoint
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.config.sections.reservations import Reservation as BoughtReservation
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.reserved import ReservationKind
from slurm_elastic.model.slurm import Reservation
from slurm_elastic.policies.checkpoint.threat import LEAD, ThreatCause
from slurm_elastic.policies.repair.requeue import SETTLING
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.state.ckptstate.facts import MigrationStep
from tests.ckptman.world import CkptWorld, told_lines
from tests.controller.world import PUB

MAINT = frozenset({"MAINT"})
DUMP, SLACK = 10.0, 5.0
"""SETTINGS' expected save, and the slack that is the default."""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[CkptWorld]:
    made = CkptWorld(at_time_limit="on_request(times=2)")
    made.patch(monkeypatch)
    yield made
    made.close()


def begins(world: CkptWorld, number: int, limit: int = 120, **fields: Any) -> None:
    """A job with a time limit that has just begun to run."""
    world.slurm.submit(number, PUB, limit=limit, **fields)
    world.until(lambda: "RUNNING" in world.job(number).states)
    world.until(lambda: world.job(number).start > 0)


def lines(world: CkptWorld) -> list[str]:
    return told_lines(world.slurm)


# the time limit


def test_a_job_that_asks_for_it_goes_on_after_its_limit_with_a_full_one(world: CkptWorld) -> None:
    begins(world, 7, comment="ckpt=fake,limit")
    began = world.job(7).start
    world.until(lambda: world.back(7, 1))
    (moved,) = world.migrations()
    assert moved.cause is ThreatCause.LIMIT
    assert moved.threatened == ()
    assert moved.image is not None
    save = began + 120 - DUMP - SLACK - LEAD
    assert save <= moved.began <= save + 2
    assert world.job(7).start > began
    world.until(lambda: moved.run.job in {f["job"] for n, f in world.slurm.updates if n == "tell"})
    first, second = lines(world)
    assert "this job was saved at" in first
    assert "its time limit of 00:02:00 ends (1 of 2 times)" in first
    assert second == (
        f"slurm-elastic: it continues from save {moved.image.number} on {world.job(7).nodes[0]},"
        " with its full time limit"
    )
    assert "ckpt-drained" not in world.kinds(moved.run.nodes[0]), "nothing is wrong with its node"


def test_its_limit_is_renewed_as_often_as_the_site_allows_and_no_more(world: CkptWorld) -> None:
    begins(world, 7, comment="ckpt=fake,limit=9")
    world.until(lambda: world.back(7, 2))
    world.advance(130)
    assert world.job(7).restarts == 2
    assert world.told(7).count("ckpt-limit") == 1
    reasons = [
        str(d.reason) for d in world.ledger.decisions.about("job:7") if d.kind == "ckpt-limit"
    ]
    assert reasons == ["its time limit of 00:02:00 ends, and it was requeued for that 2 times"]


def test_a_renewal_of_long_ago_still_counts(world: CkptWorld) -> None:
    """A fortnight is a usual time limit, and the history of moves has 30 days."""
    begins(world, 7, comment="ckpt=fake,limit=1")
    world.until(lambda: world.migrations() != [] and world.migrations()[0].is_over)
    (moved,) = world.migrations()
    world.state.put(replace(moved, changed=world.now - 40 * 86400.0))
    world.restart_ckptman()
    world.advance(130)
    assert world.job(7).restarts == 1
    assert len(world.migrations()) == 1


def test_moves_for_other_causes_are_no_renewals(world: CkptWorld) -> None:
    begins(world, 7, limit=400, comment="ckpt=fake,limit=1")
    world.advance(60)
    world.interrupt(world.job(7).nodes[0])
    world.until(lambda: world.back(7, 1))
    world.until(lambda: world.back(7, 2))
    assert [m.cause for m in world.migrations()] == [ThreatCause.RECLAIM, ThreatCause.LIMIT]


def test_a_job_that_does_not_ask_ends_at_its_limit(world: CkptWorld) -> None:
    begins(world, 7)
    world.advance(130)
    assert world.migrations() == []


@pytest.mark.parametrize(("comment", "asks"), [("ckpt=fake,limit", True), ("ckpt=fake", False)])
def test_a_job_on_the_sites_own_node_may_ask_too(
    world: CkptWorld, comment: str, asks: bool
) -> None:
    world.slurm.set_node("st1", "ALLOCATED")
    world.slurm.set_job(7, "RUNNING", nodes=("st1",), start=world.now, limit=120, comment=comment)
    assert world.service is not None
    assert ("job:7" in world.service.reader.read().leaving) is asks


def test_a_save_that_fails_leaves_the_job_to_its_end(world: CkptWorld) -> None:
    begins(world, 7, comment="ckpt=fake,limit")
    world.saver.broken = CheckpointError("no")
    world.until(lambda: bool(world.migrations()))
    world.advance(40)
    (moved,) = world.migrations()
    assert (moved.step, moved.image) == (MigrationStep.WAITING, None)
    world.slurm.set_job(7, "TIMEOUT")
    world.until(lambda: world.migrations()[0].step is MigrationStep.ENDED)


def test_a_save_that_comes_after_its_time_serves_before_the_limit_ends_the_run() -> None:
    """The launcher has made an image, though nobody waited for its answer any more."""
    world = CkptWorld(at_time_limit="on_request(times=2)", deadline_margin=20.0)
    try:
        begins(world, 7, limit=180, comment="ckpt=fake,limit")
        until = world.job(7).start + 180
        world.saver.seconds = 100.0
        world.until(lambda: any(m.step is MigrationStep.WAITING for m in world.migrations()))
        assert until - 20 <= world.now < until - 10
        world.saver.seconds = 0.0
        image = world.saver.checkpoint(world.migrations()[0].run, deadline=until, stop=False)
        world.until(lambda: world.job(7).restarts == 1)
        assert world.now < until
        (moved,) = world.migrations()
        assert moved.image == image
    finally:
        world.close()


def test_a_job_that_was_suspended_is_saved_at_its_later_end(world: CkptWorld) -> None:
    """Its limit has 90 s left when it is suspended for 300 s. Slurm does not count these."""
    begins(world, 7, comment="ckpt=fake,limit")
    world.advance(30)
    world.slurm.suspend(7)
    world.advance(300)
    world.slurm.resume(7)
    ends_at = world.now + 90
    world.slurm.set_job(7, limit_ends_at=ends_at)
    world.until(lambda: bool(world.migrations()))
    save = ends_at - DUMP - SLACK - LEAD
    assert save <= world.migrations()[0].began <= save + 2
    world.until(lambda: world.back(7, 1))
    assert world.migrations()[0].image is not None


def test_a_limit_that_was_hit_while_the_job_was_held_costs_nothing(world: CkptWorld) -> None:
    """Slurm killed the run that was saved and stopped: it is requeued all the same."""
    begins(world, 7, comment="ckpt=fake,limit")
    world.die_at = "migration.before-requeue"
    world.until(lambda: world.service is None)
    world.slurm.set_job(7, "TIMEOUT")
    world.start_ckptman()
    world.until(lambda: world.job(7).restarts == 1)


def test_a_slow_image_is_verified_before_the_limit_ends_the_held_run(world: CkptWorld) -> None:
    """The head reads as much as the node has written."""
    world.saver.seconds = 40.0
    begins(world, 7, limit=1800, comment="ckpt=fake,limit")
    until = world.job(7).start + 1800
    world.save_before(7)
    world.until(lambda: bool(world.migrations()), 2000)
    (moved,) = world.migrations()
    save_s = 50.0
    assert 0 <= moved.began - (until - 2 * save_s - SLACK - LEAD) <= 2


def test_a_job_that_its_user_cancels_while_it_is_held_has_its_images_removed(
    world: CkptWorld,
) -> None:
    """Its launcher leaves them, because it does not know whether a requeue follows."""
    begins(world, 7, comment="ckpt=fake,limit")
    world.die_at = "migration.before-requeue"
    world.until(lambda: world.service is None)
    world.slurm.set_job(7, "CANCELLED")
    world.start_ckptman()
    world.until(lambda: ("remove", 7) in world.saver.calls)
    assert [move.step for move in world.migrations()] == [MigrationStep.ENDED]


@pytest.mark.parametrize("epilog_s", [0, 20])
def test_a_limit_that_ends_the_run_while_its_requeue_waits_costs_no_more_than_the_last_save(
    world: CkptWorld, epilog_s: int
) -> None:
    """The end of the run takes its threat away, which is the very end that the move waits for."""
    begins(world, 7, limit=400, comment="ckpt=fake,limit")
    ends_at = world.job(7).start + 400
    world.advance(60)
    world.save_before(7)
    (image,) = world.state.images(7)
    world.saver.broken = CheckpointError("no")
    refusal = SlurmError(("scontrol", "requeue"), 1, "Unable to contact slurm controller")
    requeue = world.slurm.requeue
    world.slurm.requeue = lambda _: (_ for _ in ()).throw(refusal)  # type: ignore[method-assign]
    world.until(lambda: world.now >= ends_at)
    assert [(m.step, m.again) for m in world.migrations()] == [(MigrationStep.WAITING, False)]
    world.slurm.set_job(7, "COMPLETING")
    world.advance(epilog_s, step=1.0)
    world.slurm.requeue = requeue  # type: ignore[method-assign]
    world.slurm.set_job(7, "TIMEOUT")
    world.until(lambda: world.back(7, 1))
    assert world.migrations()[0].image == image
    assert world.state.images(7)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_preempted_job_that_dies_of_our_signal_is_requeued(
    world: CkptWorld, *, is_late: bool
) -> None:
    """Also if it dies only after we gave its save up."""
    world.ckpt.checkpointers["signal"] = world.saver  # type: ignore[index]
    begins(world, 7, limit=90_000, comment="ckpt=signal,saved=file:x")
    world.advance(30)

    def dies(*_: object, **__: object) -> Image:
        if not is_late:
            world.slurm.set_job(7, "FAILED", killed_by=10)
        raise CheckpointError("it has not saved itself")

    world.saver.checkpoint = dies  # type: ignore[method-assign]
    world.slurm.set_job(7, preempted=world.now + 60.0)
    if is_late:
        world.until(
            lambda: any(m.step is MigrationStep.WAITING and not m.again for m in world.migrations())
        )
        world.slurm.set_job(7, "FAILED", killed_by=10, preempted=0.0)
    world.until(lambda: world.job(7).restarts == 1, 120)
    assert world.slurm.calls["requeue"] == 1


def test_a_limit_that_was_raised_meanwhile_lets_the_job_stay(world: CkptWorld) -> None:
    begins(world, 7, comment="ckpt=fake,limit")
    world.saver.broken = CheckpointError("no")
    world.until(
        lambda: any(m.step is MigrationStep.WAITING and not m.again for m in world.migrations())
    )
    world.slurm.set_job(7, limit=90_000)
    world.until(lambda: world.migrations()[0].step is MigrationStep.STAYED)


@pytest.mark.parametrize(
    ("rule", "comment", "times"),
    [
        ("on_request", "ckpt=fake", 0),
        ("on_request", "ckpt=fake,limit", 10),
        ("on_request(times=3)", "ckpt=fake,limit=9", 3),
        ("on_request(times=3)", "ckpt=fake,limit=0", 0),
        ("requeue(times=4)", "", 4),
        ("requeue(times=4)", "ckpt=fake,limit=0", 0),
        ("requeue(times=4)", "ckpt=none,limit", 0),
        ("none", "ckpt=fake,limit=5", 0),
    ],
)
def test_how_often_a_limit_is_renewed(rule: str, comment: str, times: int) -> None:
    site = CheckpointSettings(method="fake")
    assert resolve(comment, "", PoolCheckpoint(at_time_limit=rule), site).renewals == times
    assert asks_for_limit(comment) == ("limit" in comment)


@pytest.mark.parametrize("word", ["limit=", "limit=x", "limit=1000", "limit=-1"])
def test_a_number_of_times_that_is_none_is_refused(word: str) -> None:
    found = resolve(f"ckpt=fake,{word}", "", PoolCheckpoint(), CheckpointSettings())
    assert "limit is" in str(found.refused)
    assert found.method == "none"


# preemption


def preempts(world: CkptWorld, number: int, *, mode: str = "REQUEUE", signal: str = "KILL") -> None:
    """slurmctld has chosen it to make room, and ends it after GraceTime. A batch script that ends
    before that is requeued by Slurm, or is PREEMPTED, as PreemptMode has it; OFF: nothing comes of
    the signal.
    """

    def ends(job: int, name: str) -> None:
        assert name == signal
        if mode == "REQUEUE":
            world.slurm.set_job(
                job, "PENDING", nodes=(), preempted=0.0, reason="BeginTime",
                restarts=world.job(job).restarts + 1, start=world.now + 121,
            )  # fmt: skip
        elif mode == "CANCEL":
            world.slurm.set_job(job, "PREEMPTED", preempted=0.0)

    world.slurm.on_signal = ends
    world.slurm.set_job(number, preempted=world.now + 60.0)


def test_a_preempted_job_is_saved_and_requeued_within_its_grace(world: CkptWorld) -> None:
    begins(world, 7, limit=90_000)
    (node,) = world.job(7).nodes
    preempts(world, 7)
    until = world.job(7).preempted
    world.until(lambda: bool(world.migrations()) and world.migrations()[0].image is not None)
    (moved,) = world.migrations()
    assert (moved.cause, moved.threatened, moved.deadline) == (ThreatCause.PREEMPTION, (), until)
    assert moved.began < until - 50
    world.until(lambda: world.back(7, 1))
    assert world.slurm.calls["requeue"] == 0, "Slurm would begin the finished job once more"
    assert "ckpt-drained" not in world.kinds(node), "nothing is wrong with its node"


def test_a_launcher_ends_by_a_signal_that_it_can_catch(world: CkptWorld) -> None:
    world.ckpt.checkpointers["criu"] = world.saver
    begins(world, 7, comment="ckpt=criu")
    preempts(world, 7, signal="TERM")
    world.until(lambda: world.back(7, 1))
    assert world.slurm.calls["requeue"] == 0


@pytest.mark.parametrize("mode", ["CANCEL", "OFF"])
def test_a_preempted_job_that_slurm_does_not_requeue_is_requeued(
    world: CkptWorld, mode: str
) -> None:
    begins(world, 7, limit=90_000)
    preempts(world, 7, mode=mode)
    world.until(lambda: world.job(7).restarts == 1)
    assert world.slurm.calls["requeue"] == 1
    assert world.migrations()[0].image is not None


def test_a_preempted_job_is_saved_whatever_the_policy_is() -> None:
    world = CkptWorld(policy="none")
    try:
        begins(world, 7)
        preempts(world, 7)
        world.until(lambda: world.job(7).restarts == 1)
        assert world.migrations()[0].image is not None
    finally:
        world.close()


def test_a_run_that_was_preempted_while_it_was_held_is_requeued(world: CkptWorld) -> None:
    """PreemptMode=CANCEL ends the run that was saved and stopped: nothing is lost by it."""
    begins(world, 7)
    world.die_at = "migration.before-requeue"
    preempts(world, 7)
    world.until(lambda: world.service is None)
    world.slurm.set_job(7, "PREEMPTED", preempted=0.0)
    world.start_ckptman()
    world.until(lambda: world.job(7).restarts == 1)


def test_a_preempted_job_without_an_image_ends_as_slurm_wants_it(world: CkptWorld) -> None:
    begins(world, 7)
    world.saver.broken = CheckpointError("no")
    preempts(world, 7)
    world.until(
        lambda: any(m.step is MigrationStep.WAITING and not m.again for m in world.migrations())
    )
    world.slurm.set_job(7, "PREEMPTED", preempted=0.0)
    world.until(lambda: world.migrations()[0].step is MigrationStep.ENDED)
    assert world.job(7).restarts == 0


def test_a_preempted_run_is_saved_though_a_move_of_it_came_to_nothing(world: CkptWorld) -> None:
    begins(world, 7, limit=90_000)
    (node,) = world.job(7).nodes
    world.saver.broken = CheckpointError("no")
    world.order("notice", node=node, deadline=world.now + 100, reason="r")
    world.until(
        lambda: any(m.step is MigrationStep.WAITING and not m.again for m in world.migrations())
    )
    world.order("withdraw", node=node)
    world.until(lambda: world.migrations()[0].step is MigrationStep.STAYED)
    world.saver.broken = None
    preempts(world, 7)
    world.until(lambda: world.job(7).restarts == 1)
    (moved,) = world.migrations()
    assert (moved.cause, moved.image is not None) == (ThreatCause.PREEMPTION, True)


@pytest.mark.parametrize(
    ("comment", "moved"), [("ckpt=fake", True), ("ckpt=none", False), ("", False)]
)
def test_a_preempted_job_on_the_sites_own_node_is_moved_where_it_can_be_saved(
    comment: str, moved: bool
) -> None:
    world = CkptWorld(method="none")
    try:
        world.slurm.set_node("st1", "ALLOCATED")
        world.slurm.set_job(7, "RUNNING", nodes=("st1",), start=world.now, comment=comment)
        preempts(world, 7)
        assert world.service is not None
        assert ("job:7" in world.service.reader.read().leaving) is moved
    finally:
        world.close()


# what is planned for nodes


def test_a_job_is_moved_shortly_before_a_maintenance_that_it_would_run_into(
    world: CkptWorld,
) -> None:
    begins(world, 7, limit=90_000)
    (node,) = world.job(7).nodes
    start = world.now + 300
    world.slurm.reserved.append(
        Reservation(name="m1", start=start, end=start + 60, nodes=(node,),
                    flags=MAINT)
    )  # fmt: skip
    assert world.service is not None
    world.service.plans.read()
    world.until(lambda: bool(world.migrations()))
    (moved,) = world.migrations()
    assert moved.cause is ThreatCause.MAINTENANCE
    assert 0 <= moved.began - (start - DUMP - SLACK - LEAD) <= 2
    world.until(lambda: world.job(7).restarts == 1)
    assert "maintenance m1 begins" in str(world.migrations()[0].reason)
    assert "ckpt-drained" not in world.kinds(node), "Slurm keeps jobs off it by itself"


def test_what_was_taken_back_since_plans_were_read_moves_no_job(world: CkptWorld) -> None:
    begins(world, 7, limit=90_000)
    world.slurm.reserved.append(
        Reservation(name="m1", start=world.now + 300, end=world.now + 360,
                    nodes=world.job(7).nodes, flags=MAINT)
    )  # fmt: skip
    assert world.service is not None
    world.service.plans.read()
    world.slurm.reserved.clear()
    world.advance(300)
    assert world.migrations() == []


def test_a_job_may_get_a_node_again_that_others_drained(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may give it back at any moment, and slurmd fails a job that comes back within the second."""
    begins(world, 7, limit=90_000)
    world.slurm.reserved.append(
        Reservation(name="m1", start=world.now + 60, end=world.now + 120,
                    nodes=world.job(7).nodes, flags=MAINT)
    )  # fmt: skip
    assert world.service is not None
    world.service.plans.read()
    hurried: list[float] = []
    monkeypatch.setattr(world.slurm, "start_now", lambda _: hurried.append(world.now))
    world.until(lambda: bool(hurried))
    (move,) = world.migrations()
    assert hurried[0] - move.reached["requeued"] >= SETTLING


@pytest.mark.parametrize("again", [False, True])
def test_a_maintenance_that_is_put_off_has_a_job_saved_after_all(
    world: CkptWorld, *, again: bool
) -> None:
    """Or is taken back, and planned again: the run was not stopped in vain, it could not be."""
    begins(world, 7, limit=90_000)
    (node,) = world.job(7).nodes
    assert world.service is not None

    def announced(left: float) -> Reservation:
        start = world.now + left
        return Reservation(name="m1", start=start, end=start + 60, nodes=(node,), flags=MAINT)

    def planned(*reservations: Reservation) -> None:
        world.slurm.reserved[:] = reservations
        world.service.plans.read()  # type: ignore[union-attr]

    world.saver.broken = CheckpointError("cannot")
    planned(announced(SLACK + 10))
    world.until(lambda: "ckpt-no-image" in world.told(7))
    world.saver.broken = None
    if again:
        planned()
        world.advance(5)
    planned(announced(400))
    world.until(lambda: world.job(7).restarts == 1)
    (moved,) = world.migrations()
    assert moved.image is not None
    assert ("ckpt-later" in world.told(7)) != again
    assert world.now >= world.slurm.reserved[0].start - DUMP - SLACK - LEAD, "not before its time"


def test_a_drain_by_an_operator_moves_jobs_as_a_reclaim_does_and_bears_its_own_name(
    world: CkptWorld,
) -> None:
    begins(world, 7)
    (node,) = world.job(7).nodes
    world.order("notice", node=node, reason="pool pub is drained by root", departure=True)
    world.until(lambda: world.back(7, 1))
    (move,) = world.migrations()
    assert (move.cause, move.threatened) == (ThreatCause.DEPARTURE, (node,))
    assert move.image is not None
    assert node not in world.job(7).nodes


def test_a_failing_node_is_left_at_once(world: CkptWorld) -> None:
    begins(world, 7)
    (node,) = world.job(7).nodes
    world.slurm.set_node(node, *world.slurm.node(node).states, "FAIL", reason="ECC errors")
    assert world.service is not None
    world.service.plans.read()
    world.until(lambda: world.job(7).restarts == 1)
    assert world.migrations()[0].cause is ThreatCause.HEALTH


def test_a_machine_is_left_before_its_maximum_age_and_powered_down_empty() -> None:
    world = CkptWorld()
    try:
        begins(world, 7, limit=90_000)
        assert world.service is not None
        (node,) = world.job(7).nodes
        (machine,) = (m for m in world.ckpt.ledger.machines.live() if m.instance.node == node)
        ages = {pool.name: world.now - machine.instance.launched + 400 for pool in
                world.config.pools}  # fmt: skip
        object.__setattr__(world.ckpt, "__dict__", {**world.ckpt.__dict__, "max_ages": ages})
        world.until(lambda: world.job(7).restarts == 1)
        assert world.migrations()[0].cause is ThreatCause.PLANNED_END
        world.until(lambda: {"ckpt-drained", "ckpt-powered-down"} <= set(world.kinds(node)))
    finally:
        world.close()


def test_a_long_save_begins_early_enough_before_the_maximum_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = CkptWorld(expected_duration=1500.0)
    try:
        begins(world, 7, limit=90_000)
        world.saver.seconds = 1500.0
        world.save_before(7)
        world.advance(20)
        (node,) = world.job(7).nodes
        (machine,) = (m for m in world.ckpt.ledger.machines.live() if m.instance.node == node)
        ends_at = world.now + 3000
        ages = {pool.name: ends_at - machine.instance.launched for pool in world.config.pools}
        monkeypatch.setitem(world.ckpt.__dict__, "max_ages", ages)
        world.until(lambda: world.job(7).restarts == 1, 3000)
        assert world.now < ends_at
    finally:
        world.close()


@pytest.mark.parametrize("clock_of_cloud", [-7200.0, 0.0, 7200.0])
def test_a_machines_age_is_that_by_the_clock_of_the_head(clock_of_cloud: float) -> None:
    """Else each machine of a cloud whose clock is behind is too old at once, and jobs move on for
    ever.
    """
    world = CkptWorld()
    try:
        begins(world, 7, limit=90_000)
        (node,) = world.job(7).nodes
        (machine,) = (m for m in world.ckpt.ledger.machines.live() if m.instance.node == node)
        with world.ledger.store.transaction("machines") as db:
            sql = "update machines set launched = launched + ? where id = ?"
            db.execute(sql, (clock_of_cloud, machine.instance.id))
        ages = {pool.name: 5000.0 for pool in world.config.pools}
        object.__setattr__(world.ckpt, "__dict__", {**world.ckpt.__dict__, "max_ages": ages})
        world.advance(120)
        assert world.job(7).restarts == 0
        assert not world.migrations()
    finally:
        world.close()


def test_a_save_that_fails_leaves_a_job_on_a_machine_over_its_age() -> None:
    """Nobody ends it: what was done since the last image is not given up for that."""
    world = CkptWorld()
    try:
        begins(world, 7)
        world.save_before(7)
        world.saver.broken = CheckpointError("no")
        ages = {pool.name: 1.0 for pool in world.config.pools}
        object.__setattr__(world.ckpt, "__dict__", {**world.ckpt.__dict__, "max_ages": ages})
        world.until(lambda: bool(world.migrations()))
        world.advance(60)
        assert world.job(7).restarts == 0
        assert world.migrations()[0].step is MigrationStep.WAITING
    finally:
        world.close()


def test_what_is_planned_does_not_move_a_job_that_cannot_be_saved() -> None:
    world = CkptWorld(method="none")
    try:
        begins(world, 7, limit=90_000)
        (node,) = world.job(7).nodes
        flags = MAINT
        start = world.now + 60
        world.slurm.reserved.append(
            Reservation(name="m1", start=start, end=start + 60, nodes=(node,), flags=flags)
        )
        assert world.service is not None
        world.service.plans.read()
        world.advance(120)
        assert world.migrations() == []
    finally:
        world.close()


@pytest.mark.parametrize(("data", "margin_s"), [(Data.SHARED, 0.0), (Data.COPY, 600.0)])
def test_before_the_end_of_a_capacity_block_there_is_time_for_files_to_come_back(
    world: CkptWorld, data: Data, margin_s: float
) -> None:
    """The cloud ends the machine, and with it the files without which the image is of no use."""
    block = BoughtReservation(
        name="block", kind=ReservationKind.BLOCK, id="cr-1", type="small", zone="z", count=1,
        begins_at=world.now - 3600, ends_at=world.now + 36000,
    )  # fmt: skip
    aws = AwsCloud(
        name="aws", location=Location.PUBLIC, region="r", zones=("z",), image="ami-1", data=data,
        reservations=(block,),
    )  # fmt: skip
    config = structs.replace(world.config, clouds=(*world.config.clouds, aws))
    site = dataclasses.replace(world.ckpt, config=config)
    ends_at = block.held("aws").machines_end_at
    assert ends_at is not None
    assert site.reservation_ends == {("aws", "block"): ends_at - margin_s}


def test_the_plans_are_read_soon_after_slurm_is_back(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``status`` and ``doctor`` show the error until the next success."""
    tasks: list[PeriodicTask] = []

    def made(*args: Any, **fields: Any) -> PeriodicTask:
        tasks.append(PeriodicTask(*args, **fields))
        return tasks[0]

    def away() -> None:
        raise SlurmError(("scontrol",), 1, "away")

    monkeypatch.setattr(readers, "PeriodicTask", made)
    plans = world.service.plans  # type: ignore[union-attr]
    monkeypatch.setattr(plans, "read", away)
    readers.plans_reader(world.ckpt, plans)
    pauses = []
    for _ in range(6):
        assert not tasks[0].once()
        pauses.append(tasks[0]._due_at - world.ckpt.monotonic())
    assert pauses[0] <= 10
    assert max(pauses) <= 60
