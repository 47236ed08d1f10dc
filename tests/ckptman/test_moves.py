"""The fate of a job whose machine is taken away: over fakes, on a clock that tests move."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import Mock

import pytest
from msgspec.structs import asdict, replace
from patience import patience

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.ckptman import service
from slurm_elastic.ckptman.decide import NO_DEADLINE
from slurm_elastic.ckptman.executor import KeyedExecutor, Urgency, WorkKind
from slurm_elastic.ckptman.first_image import VERIFICATION_S
from slurm_elastic.ckptman.moves import migration
from slurm_elastic.ckptman.moves.after_requeue import MAX_HOLD_RELEASES
from slurm_elastic.ckptman.moves.requeueing import REQUEUE_TIMEOUT_S
from slurm_elastic.ckptman.nodes import MARK, apply_threats
from slurm_elastic.ckptman.origins import ORIGIN_TIMEOUT_S
from slurm_elastic.ckptman.recorder import lost_node_seconds
from slurm_elastic.ckptman.site import JOBS_TTL_S, JobList
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.moves import StoppedInVain
from slurm_elastic.model.checkpoint import Image, Origin
from slurm_elastic.model.journal_owner import Host, JournalOwner
from slurm_elastic.model.slurm import NOWHERE, SlurmJob
from slurm_elastic.policies.checkpoint.threat import Response, Threat, ThreatCause, by_subject
from slurm_elastic.policies.repair.requeue import SETTLING
from slurm_elastic.slurm.client.commands import requeue_setting
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep
from tests.ckptman.world import CkptWorld, told_lines
from tests.controller.world import PUB


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld()
    yield made
    made.close()


def test_an_announced_interruption_saves_requeues_and_resumes_elsewhere(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.interrupt(node)
    world.until(lambda: world.back(7, 1))
    world.tick()
    (moved,) = world.migrations()
    assert moved.step is MigrationStep.BACK
    assert moved.image is not None
    assert moved.image.attempt == 0
    assert world.job(7).nodes[0] != node
    kinds = [k for k in world.told(7) if k.startswith("ckpt-")]
    assert kinds == ["ckpt-planned", "ckpt-saved", "ckpt-requeued", "ckpt-back"]
    assert world.now < moved.deadline
    assert "ckpt-drained" in world.kinds(node)


def test_what_saves_and_moves_come_to_is_counted_and_outlives_the_service(
    world: CkptWorld,
) -> None:
    world.interrupt(world.runs(7).nodes[0])
    world.until(lambda: world.back(7, 1))
    world.tick()
    (saved,) = world.migrations()
    world.saver.broken = CheckpointError("cannot")
    world.advance(100)
    world.interrupt(world.job(7).nodes[0])
    world.until(lambda: world.back(7, 2))
    world.tick()
    second = next(m for m in world.migrations() if m.run.attempt == 1)
    assert lost_node_seconds(saved) == 0, "a run that is saved stops there"
    again = second.reached["requeued"] - second.run.started
    assert lost_node_seconds(second) == pytest.approx(again), "its image is of the run before"
    world.ckpt.recorder.flush(last=True)
    world.restart_ckptman()
    counts = world.state.counters()
    assert counts['checkpoint_seconds_bucket{le="2",method="fake"}'] == 1
    assert counts['migration_seconds_bucket{cause="reclaim",le="+Inf"}'] == 2
    assert counts['lost_node_seconds_total{cause="reclaim"}'] == pytest.approx(again)


@pytest.mark.parametrize(
    ("steps", "kept"), [((730 * 86400.0,), {"pub/small/zone-1/spot": 1}), ((3600.0,) * 12, {})],
    ids=["the clock is set far ahead", "time passes"],
)  # fmt: skip
def test_only_time_that_passed_deletes_moves_and_interruptions(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, steps: Sequence[float], kept: dict[str, int]
) -> None:
    monkeypatch.setattr(service, "HISTORY_S", 8 * 3600.0)
    world.interrupt(world.runs(7).nodes[0])
    world.until(lambda: world.back(7, 1))
    world.slurm.finish(7)
    world.runs(8)
    world.state.forget_images_of(7)
    for step in steps:
        world.now += step
        world.advance(120, step=60)
    assert world.state.interruptions(0.0) == kept
    assert len([move for move in world.migrations() if move.run.job == 7]) == len(kept)


def test_a_look_that_is_older_than_the_work_does_nothing(world: CkptWorld) -> None:
    """A save of a tenth of a second ends while the look that will hand it out is still on."""
    world.interrupt(world.runs(7).nodes[0])
    world.until(lambda: world.back(7, 1))
    (moved,) = world.migrations()
    calls, told = list(world.saver.calls), world.told(7)
    assert world.service is not None
    older = replace(moved, step=MigrationStep.SAVING, changed=moved.began)
    world.service.applier.advance_migrations([older], world.service.reader.read())
    assert (list(world.saver.calls), world.told(7)) == (calls, told)
    assert world.migrations() == [moved]


@pytest.fixture
def launched(world: CkptWorld) -> CkptWorld:
    """Job 7 is saved by a method whose launcher tells where a run began; its node is taken."""
    world.ckpt.checkpointers["criu"] = world.saver
    world.interrupt(world.runs(7, comment="ckpt=criu").nodes[0])
    return world


def anew(world: CkptWorld) -> bool:
    job = world.job(7)
    return job.restarts == 1 and "RUNNING" in job.states and "CONFIGURING" not in job.states


def test_a_job_is_back_once_its_launcher_has_told_what_it_goes_on_from(
    launched: CkptWorld,
) -> None:
    launched.saver.origins[7] = None  # it waits for the lock, or reads its image
    launched.until(lambda: anew(launched))
    launched.advance(60)
    (moved,) = launched.migrations()
    assert moved.step is MigrationStep.REQUEUED
    assert moved.image is not None
    launched.saver.origins[7] = Origin(image=moved.image.number)
    launched.until(lambda: launched.migrations()[0].is_over)
    assert str(launched.migrations()[0].note).endswith(f"from save {moved.image.number}")


def test_a_job_whose_image_could_not_be_used_is_never_said_to_go_on_from_it(
    launched: CkptWorld,
) -> None:
    launched.saver.origins[7] = Origin(image=0, why="image 1 is not used: criu restore: exit 1")
    launched.until(lambda: bool(launched.migrations()) and launched.migrations()[0].is_over)
    (moved,) = launched.migrations()
    assert (moved.step, moved.image) == (MigrationStep.BACK, None)
    why = "2 minutes of its work must be done again: image 1 is not used: criu restore: exit 1"
    assert str(moved.note).endswith(f"from its start, {why}")
    assert lost_node_seconds(moved) > 0
    told = told_lines(launched.slurm)
    where = launched.job(7).nodes[0]
    assert told[-1] == f"slurm-elastic: it starts over on {where}, {why}"


def test_a_job_that_went_on_from_an_older_image_says_so(launched: CkptWorld) -> None:
    launched.until(lambda: "ckpt-saved" in launched.told(7))
    (planned,) = (m.image for m in launched.migrations())
    assert planned is not None
    older = replace(planned, number=81, taken=planned.taken - 300)
    launched.state.add_image(older)
    launched.saver.origins[7] = Origin(image=81, why="image 1 is not used: changed")
    launched.until(lambda: launched.migrations()[0].is_over)
    (moved,) = launched.migrations()
    assert moved.image == older
    why = "5 minutes of its work must be done again: image 1 is not used: changed"
    assert str(moved.note).endswith(f"from save 81, {why}")
    told = told_lines(launched.slurm)
    where = launched.job(7).nodes[0]
    assert told[0].startswith("slurm-elastic: this job was requeued at ")
    assert told[1:] == [f"slurm-elastic: it continues from save 81 on {where}, {why}"]


@pytest.mark.parametrize("told", [None, Origin()])
def test_a_launcher_that_tells_nothing_is_not_waited_for_for_ever(
    launched: CkptWorld, told: Origin | None
) -> None:
    launched.saver.origins[7] = told
    launched.until(
        lambda: launched.migrations()[0].is_over if launched.migrations() else False, 900
    )
    (moved,) = launched.migrations()
    assert moved.step is MigrationStep.BACK
    assert moved.image is not None
    assert str(moved.note).endswith("its launcher has not confirmed it, so look at its output")
    took = moved.reached["back"] - moved.reached["requeued"]
    assert (took > ORIGIN_TIMEOUT_S) is (told is None)


def test_the_offer_cools_down_and_the_empty_node_is_powered_down(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    machine = world.interrupt(node)
    world.advance(10)
    (cooling,) = world.ledger.exclusions.cool_downs(world.now)
    assert cooling.code == "interruption"
    world.until(lambda: machine not in [i.id for i in world.alive()])
    assert world.now < world.migrations()[0].deadline, "its lease ends before it would be taken"
    world.until(lambda: not world.state.notices())


def test_many_nodes_are_drained_by_one_command(world: CkptWorld) -> None:
    world.slurm.submit(7, ("pub1", "pub2"), 2)
    world.until(lambda: "RUNNING" in world.job(7).states)
    world.slurm.updates.clear()
    world.interrupt("pub1")
    world.interrupt("pub2")
    world.until(lambda: world.job(7).restarts == 1)
    drains = [
        u for name, u in world.slurm.updates if name == "update_nodes" and u["state"] == "DRAIN"
    ]
    assert [sorted(u["names"]) for u in drains] == [["pub1", "pub2"]]


def test_an_admins_own_drain_stays(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.slurm.set_node(node, *world.slurm.node(node).states, "DRAIN", reason="disk")
    world.interrupt(node)
    world.until(lambda: world.back(7, 1))
    world.advance(30)
    assert world.slurm.node(node).reason == "disk"
    assert "DRAIN" in world.slurm.node(node).states


def test_two_jobs_on_a_node_and_a_job_on_two_nodes(world: CkptWorld) -> None:
    world.slurm.submit(8, ("pub1", "pub2"), 2)
    world.until(lambda: "RUNNING" in world.job(8).states)
    world.advance(60)
    world.slurm.set_job(9, "RUNNING", nodes=("pub1",), start=world.now - 50)
    world.interrupt("pub1")
    world.advance(10)
    assert world.saver.calls.count(("checkpoint", 8)) == 1
    assert world.saver.calls.count(("checkpoint", 9)) == 1
    assert world.job(8).restarts == world.job(9).restarts == 1


def test_a_save_that_fails_is_tried_again_then_the_older_image_serves(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.save_before(7)
    world.saver.broken = CheckpointError("cannot")
    world.interrupt(node)
    world.until(lambda: world.back(7, 1))
    world.tick()
    (moved,) = world.migrations()
    assert moved.image is not None
    assert moved.image.number == 1
    kinds = world.told(7)
    assert kinds.count("ckpt-failed") == 3
    assert "ckpt-older-image" in kinds


STEP_RUNS = "job 7: no checkpoint: it runs a step (srun), which criu does not save: 7.0"


@pytest.mark.parametrize("left", [3600.0, None])
def test_a_save_that_fails_long_before_the_end_of_a_node_is_made_later(
    world: CkptWorld, left: float | None
) -> None:
    """The obstacle, such as a step, is gone by then. Without that save hours of work are lost."""
    node = world.runs(7).nodes[0]
    if left is not None:
        world.save_before(7)
    world.saver.fail_next.extend([CheckpointError(STEP_RUNS)] * 4)
    deadline = None if left is None else world.now + left
    world.order("notice", node=node, reason="its host is replaced", deadline=deadline)
    world.until(lambda: world.told(7).count("ckpt-failed") == 2)
    assert not world.migrations()[0].is_hopeless
    world.until(lambda: world.told(7).count("ckpt-failed") == 3)
    assert world.migrations()[0].is_hopeless is (left is None), "an order to leave starts it over"
    world.until(lambda: world.back(7, 1), 1500)
    world.tick()
    (moved,) = world.migrations()
    assert moved.image is not None
    assert moved.image.taken > world.now - 60
    assert world.told(7).count("ckpt-failed") == 4


def test_the_last_save_of_a_run_that_failed_to_be_saved_begins_in_time(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.saver.broken = CheckpointError(STEP_RUNS)
    deadline = world.now + 900
    world.order("notice", node=node, reason="its host is replaced", deadline=deadline)
    world.until(lambda: world.told(7).count("ckpt-failed") == 4, 700)
    world.saver.broken = None
    world.until(lambda: world.back(7, 1), 300)
    assert world.migrations()[0].image is not None
    assert world.now < deadline


@pytest.mark.parametrize("left", [3600.0, None])
def test_a_policy_that_saves_at_intervals_does_so_before_the_move(left: float | None) -> None:
    world = CkptWorld(policy="daly(mtti=18000)")  # every ten minutes
    try:
        node = world.runs(7).nodes[0]
        deadline = None if left is None else world.now + left
        world.order("notice", node=node, reason="its host is replaced", deadline=deadline)
        world.until(lambda: world.back(7, 1), 1200)
        assert world.migrations()[0].image is not None
    finally:
        world.close()


def test_an_order_to_leave_does_not_wait_for_a_policy() -> None:
    world = CkptWorld(policy="daly(mtti=18000)")
    try:
        node = world.runs(7).nodes[0]
        world.order("notice", node=node, reason="its host is replaced", deadline=world.now + 7200)
        world.advance(20)
        assert not world.migrations()
        world.order("notice", node=node, reason="drain", departure=True)
        world.until(lambda: bool(world.migrations()), 30)
        assert world.migrations()[0].is_hopeless, "slurm-elasticd starts it over"
    finally:
        world.close()


def test_a_clock_that_was_ahead_keeps_no_job_from_being_saved() -> None:
    """As after the boot of a head whose own clock runs in local time."""
    world = CkptWorld(policy="daly(mtti=18000)")  # every ten minutes
    try:
        world.runs(7)
        world.now += 7200
        world.until(lambda: len(world.state.images(7)) == 1, 60)
        world.now -= 7200
        world.until(lambda: len(world.state.images(7)) == 2, 1200)
    finally:
        world.close()


def set_clock(world: CkptWorld, seconds: float) -> None:
    """Set the head's clock; monotonic time goes on."""
    earlier, at = world.ckpt.monotonic(), world.now + seconds
    world.now = at
    object.__setattr__(world.ckpt, "monotonic", lambda: earlier + world.now - at)


def test_what_failed_while_the_clock_was_ahead_is_tried_again_soon() -> None:
    world = CkptWorld(policy="daly(mtti=18000)")
    try:
        world.runs(7)
        set_clock(world, 7200)
        world.saver.fail_next.append(CheckpointError("the directory cannot be read now"))
        world.until(lambda: ("checkpoint", 7) in world.saver.calls, 60)
        set_clock(world, -7200)
        world.until(lambda: len(world.state.images(7)) == 1, 1200)
    finally:
        world.close()


def test_a_stopped_job_is_requeued_soon_after_the_clock_was_set_back(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.saver.hold_s = 1e9  # only ckptman continues its program
    node, requeue = world.runs(7).nodes[0], world.slurm.requeue
    refused: list[int] = []

    def refuse_once(job: int) -> None:
        if not refused:
            refused.append(job)
            raise SlurmError(("scontrol", "requeue"), 1, "Unable to contact slurm controller")
        requeue(job)

    monkeypatch.setattr(world.slurm, "requeue", refuse_once)
    set_clock(world, 7200)
    world.order("notice", node=node, reason="its host is replaced")
    world.until(lambda: bool(refused), 120)
    set_clock(world, -7200)
    world.until(lambda: world.job(7).restarts == 1, 120)


def test_a_job_that_began_before_the_clock_was_set_back_is_saved(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.slurm.set_job(7, start=world.now + 7200)
    world.interrupt(node)
    world.until(lambda: world.back(7, 1))
    assert world.migrations()[0].image is not None


def test_a_second_node_that_goes_sooner_hurries_the_job(world: CkptWorld) -> None:
    world.slurm.submit(8, ("pub1", "pub2"), 2, required=("pub2",))
    world.until(lambda: "RUNNING" in world.job(8).states)
    world.advance(60)
    world.saver.fail_next.extend([CheckpointError(STEP_RUNS)] * 3)
    world.order("notice", node="pub1", reason="its host is replaced", deadline=world.now + 3600)
    world.until(lambda: world.told(8).count("ckpt-failed") == 3)
    deadline = world.now + 120
    world.interrupt("pub2", 120)
    world.until(lambda: world.job(8).restarts == 1, 120)
    world.advance(5)
    (moved,) = world.migrations()
    assert moved.image is not None
    assert world.now < deadline
    assert set(moved.threatened) == {"pub1", "pub2"}
    assert not world.job(8).required, "it may start on nodes that stay"


def test_a_slow_save_without_a_deadline_has_the_time_that_it_needs() -> None:
    world = CkptWorld(expected_duration=700.0)
    try:
        world.saver.seconds = 700.0
        node = world.runs(7).nodes[0]
        world.order("notice", node=node, reason="drain", departure=True)
        world.until(lambda: world.back(7, 1), 2000)
        assert world.saver.calls.count(("checkpoint", 7)) == 1
    finally:
        world.close()


def test_a_save_that_comes_after_its_time_out_is_not_made_again(world: CkptWorld) -> None:
    """The launcher has completed the image, though nobody waited for its answer any more."""
    world.saver.seconds = 700.0
    node = world.runs(7).nodes[0]
    world.order("notice", node=node, reason="drain", departure=True)
    world.until(lambda: "ckpt-failed" in world.told(7), 1000)
    world.saver.seconds = 0.0
    (move,) = world.migrations()
    image = world.saver.checkpoint(move.run, deadline=world.now, stop=False)
    calls = len(world.saver.calls)
    world.until(lambda: world.back(7, 1))
    assert ("checkpoint", 7) not in world.saver.calls[calls:]
    assert world.migrations()[0].image == image


def test_a_late_image_is_not_used_after_the_run_has_worked_for_long(world: CkptWorld) -> None:
    world.saver.seconds = 700.0
    node = world.runs(7).nodes[0]
    world.order("notice", node=node, reason="drain", departure=True)
    world.until(lambda: "ckpt-failed" in world.told(7), 1000)
    world.saver.seconds = 0.0
    (move,) = world.migrations()
    world.saver.checkpoint(move.run, deadline=world.now, stop=False)
    world.stop_ckptman()
    world.advance(3600, step=60.0)
    world.start_ckptman()
    calls = len(world.saver.calls)
    world.until(lambda: world.back(7, 1))
    assert ("checkpoint", 7) in world.saver.calls[calls:]


def test_a_run_that_has_just_begun_is_tried_until_it_is_under_its_launcher(
    world: CkptWorld,
) -> None:
    """Nobody knows how long a first save takes: the guess is longer than the time that is left."""
    world.slurm.submit(7, PUB)
    world.until(lambda: "RUNNING" in world.job(7).states)
    world.saver.broken = CheckpointError("job 7: this run is not under the launcher")
    world.interrupt(world.job(7).nodes[0], notice=50)
    world.until(lambda: world.told(7).count("ckpt-failed") == 5)
    world.saver.broken = None
    world.until(lambda: world.back(7, 1))
    world.tick()
    assert world.migrations()[0].image is not None


def test_a_job_that_died_meanwhile_is_not_said_to_go_on(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object, **__: object) -> None:
        world.slurm.set_job(7, "FAILED")
        raise CheckpointError("job 7: there is no such process")

    node = world.runs(7).nodes[0]
    monkeypatch.setattr(world.saver, "checkpoint", dies)
    world.interrupt(node)
    world.until(lambda: "ckpt-no-image" in world.told(7))
    (said,) = [
        str(d.reason) for d in world.ledger.decisions.about("job:7") if d.kind == "ckpt-no-image"
    ]
    assert said == "job 7: there is no such process; there is no image: its run is over"


def test_a_spoilt_image_is_never_used(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.save_before(7)
    world.advance(5)
    world.save_before(7)
    world.saver.spoilt.add((7, 2))
    world.saver.broken = CheckpointError("cannot")
    world.interrupt(node)
    world.until(lambda: world.back(7, 1))
    world.tick()
    assert "ckpt-bad-image" in world.told(7)
    image = world.migrations()[0].image
    assert image is not None
    assert image.number == 1


def test_without_any_image_it_goes_on_until_its_node_is_lost(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.saver.broken = CheckpointError("cannot be dumped")
    world.interrupt(node)
    world.advance(115)
    assert "RUNNING" in world.job(7).states
    assert world.job(7).restarts == 0
    world.advance(5)
    world.take(node)
    world.until(lambda: world.back(7, 1))
    world.tick()
    (moved,) = world.migrations()
    assert moved.step is MigrationStep.BACK
    assert moved.image is None
    assert "ckpt-no-image" in world.told(7)


@pytest.mark.parametrize(
    ("settings", "comment", "notice", "why"),
    [
        ({"method": "none"}, "", 120, "neither its comment nor the configuration names a method"),
        ({"method": "none"}, "", 15, "neither its comment nor the configuration names a method"),
        ({}, "ckpt=none", 120, "its comment says ckpt=none"),
        ({}, "ckpt=crui", 120, "ckpt=crui: expected one of "),
        ({"policy": "none"}, "", 120, "its checkpoint policy is none, and wants no save now"),
    ],
)
def test_a_job_that_is_not_even_tried_to_be_saved_says_for_which_reason(
    settings: dict[str, str], comment: str, notice: float, why: str
) -> None:
    """Its user is to know what to write into the next job."""
    world = CkptWorld(**settings)
    try:
        world.interrupt(world.runs(7, comment=comment).nodes[0], notice)
        world.until(lambda: "ckpt-no-image" in world.told(7))
        (move,) = world.migrations()
        assert move.is_hopeless
        assert str(move.note).startswith(why)
        assert ("checkpoint", 7) not in world.saver.calls
    finally:
        world.close()


@pytest.mark.parametrize("reused", [True, False])
def test_a_lost_node_keeps_its_address_unless_another_machine_has_it(
    world: CkptWorld, reused: bool
) -> None:
    """It may still run its job, and has to hear the kill; another machine must not. A site's own
    node keeps it in any case: nobody would give it back.
    """
    node, other = world.runs(7).nodes[0], world.runs(8).nodes[0]
    machines = {m.instance.node: m for m in world.ckpt.ledger.machines.live()}
    address = (machines[other].instance.address or "") if reused else "10.99.99.9"
    assert address
    states = world.slurm.node(node).states | {"NOT_RESPONDING"}
    for name in (node, "st1"):
        world.slurm.set_node(name, *states, reason=f"{MARK}taken", address=address)
    assert world.service is not None
    found = {
        name: Threat(target=name, cause=ThreatCause.RECLAIM, answer=Response.MOVE, reason=Quoted(text="taken"),
                     since=world.now - 9, until=world.now - 1)
        for name in (node, "st1")
    }  # fmt: skip
    seen = replace(
        world.service.reader.read(), threats=by_subject(found.values()), nodes=world.slurm.nodes()
    )
    apply_threats(world.ckpt, seen, frozenset(found))
    for name, wanted in ((node, NOWHERE if reused else address), ("st1", address)):
        assert "DOWN" in world.slurm.node(name).states
        assert world.slurm.node(name).address == wanted


def test_a_node_that_came_up_since_the_look_is_not_given_up(world: CkptWorld) -> None:
    """With a slow slurmctld a look takes long, and the new machine's job would end."""
    node = world.runs(7).nodes[0]
    states = world.slurm.node(node).states
    world.slurm.set_node(node, *states, "NOT_RESPONDING", reason=f"{MARK}taken")
    assert world.service is not None
    gone = Threat(target=node, cause=ThreatCause.RECLAIM, answer=Response.MOVE, reason=Quoted(text="taken"),
                  since=world.now - 9, until=world.now - 1)  # fmt: skip
    look = world.service.reader.read()
    seen = replace(look, threats=by_subject([gone]), nodes=world.slurm.nodes())
    world.slurm.set_node(node, *states, reason=f"{MARK}taken")
    apply_threats(world.ckpt, seen, frozenset([node]))
    assert "DOWN" not in world.slurm.node(node).states


def test_a_save_that_does_not_fit_is_not_begun(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.save_before(7)
    world.saver.calls.clear()
    world.interrupt(node, notice=5.0)
    world.until(lambda: world.back(7, 1))
    assert ("checkpoint", 7) not in world.saver.calls


def test_a_no_requeue_job_with_an_image_goes_on_and_one_without_ends(world: CkptWorld) -> None:
    node = world.runs(7, requeue=False).nodes[0]
    world.interrupt(node)
    world.until(lambda: world.back(7, 1))
    assert "ckpt-requeue-lifted" in world.told(7)
    other = world.runs(8, requeue=False)
    world.saver.broken = CheckpointError("cannot")
    world.interrupt(other.nodes[0])
    world.advance(100)
    assert world.job(8).restarts == other.restarts
    assert "RUNNING" in world.job(8).states


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("is_whole", [True, False])
def test_no_requeue_is_lifted_before_a_long_verification(
    world: CkptWorld, *, moves: bool, is_whole: bool
) -> None:
    """If the node is lost in that time, the job continues from its image, and has not ended."""
    node = world.runs(7, requeue=False).nodes[0]
    seen: list[tuple[bool, bool]] = []

    def verify(_: Image) -> None:
        rows = dict(world.ledger.requeues.lifted())
        seen.append((world.job(7).requeue, 7 in rows))
        # slurm-elasticd would put back an older lift of a job that runs.
        assert world.ledger.requeues.lifted(world.now + VERIFICATION_S - 1) == ()
        if not is_whole:
            raise CheckpointError("it is not whole")

    world.saver.verify = verify  # type: ignore[method-assign]
    if moves:
        world.interrupt(node)
    else:
        world.order("save", job=7)
    world.until(lambda: seen)
    assert seen[0] == (True, True), "a crash now leaves the row, by which it is put back"
    world.until(lambda: world.ledger.requeues.lifted() == ())
    assert world.job(7).requeue == is_whole
    assert ("ckpt-requeue-lifted" in world.told(7)) == is_whole


def test_a_job_that_ends_by_itself_is_left_alone(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.saver.broken = CheckpointError("cannot")
    world.interrupt(node)
    world.advance(10)
    world.slurm.set_job(7, "COMPLETED")
    world.advance(10)
    (moved,) = world.migrations()
    assert moved.step is MigrationStep.ENDED
    assert world.job(7).restarts == 0


def test_a_job_that_named_its_node_may_start_elsewhere(world: CkptWorld) -> None:
    world.slurm.submit(7, ("pub1", "pub2"), required=("pub1",))
    world.until(lambda: "RUNNING" in world.job(7).states)
    world.advance(60)
    world.interrupt(world.job(7).nodes[0])
    world.until(lambda: world.job(7).restarts == 1 and not world.job(7).required)
    assert "ckpt-any-nodes" in world.told(7)


def requeued(world: CkptWorld) -> None:
    """Job 7 was moved off its node, and there is no other for it."""
    node = world.runs(7).nodes[0]
    for other in {"pub1", "pub2", "pub3"} - {node}:
        world.slurm.set_node(other, "DOWN", "CLOUD", reason="broken")
    world.interrupt(node, notice=100_000.0)
    world.until(lambda: "PENDING" in world.job(7).states and not world.job(7).start)


LAUNCH_FAILED = "launch failed requeued held"


@pytest.mark.parametrize(
    ("reason", "description"),
    [
        ("BadConstraints", ""),
        ("JobHeldUser", LAUNCH_FAILED),
        (LAUNCH_FAILED.replace(" ", "_"), ""),
    ],
)
def test_a_requeued_job_that_slurm_holds_is_freed(
    world: CkptWorld, reason: str, description: str
) -> None:
    """22.05: a failed launch has the reason of a user's hold, and its own words beside it."""
    requeued(world)
    world.slurm.set_job(7, reason=reason, description=description, start=0.0)
    world.until(lambda: "ckpt-freed" in world.told(7))
    assert world.slurm.calls["release"] == 1


def test_a_requeued_job_that_slurm_holds_for_its_exit_is_freed(world: CkptWorld) -> None:
    """``--requeue=expedite`` of 25.11 and later: requeued and held where no epilog failed."""
    requeued(world)
    held = "job requeued in held state"
    world.slurm.set_job(
        7, "PENDING", "REQUEUE_HOLD", reason="JobHeldUser", description=held, start=0.0
    )
    world.until(lambda: "ckpt-freed" in world.told(7))
    assert world.slurm.calls["release"] == 1


@pytest.mark.parametrize(
    ("reason", "description", "told"),
    [
        ("JobHeldUser", "job requeued in held state", 0),  # by scontrol requeuehold
        ("JobHeldAdmin", "", 1),
        ("JobHeldAdmin", LAUNCH_FAILED, 1),
        ("JobHoldMaxRequeue", "", 1),
        ("JobHeldUser", "", 0),
    ],
)
def test_a_hold_of_a_person_stays_and_is_told_once(
    world: CkptWorld, reason: str, description: str, told: int
) -> None:
    """An administrator's hold of a job whose launch failed keeps Slurm's words (measured)."""
    requeued(world)
    hurried = world.slurm.calls["start_now"]
    estimate = world.now + 5000
    world.slurm.set_job(7, reason=reason, description=description, start=estimate)
    world.advance(60)
    assert world.job(7).reason == reason
    assert world.slurm.calls["release"] == 0
    assert world.slurm.calls["start_now"] == hurried, "a held job is not hurried either"
    assert world.told(7).count("ckpt-pending") == told


def test_a_hold_that_comes_back_is_not_taken_off_for_ever(world: CkptWorld) -> None:
    requeued(world)
    for _ in range(40):
        world.slurm.set_job(7, reason="BadConstraints", start=0.0)
        world.advance(2, step=1.0)
    assert 1 <= world.slurm.calls["release"] <= MAX_HOLD_RELEASES
    assert world.told(7).count("ckpt-pending") == 1


def test_a_job_that_waits_for_resources_is_not_hurried_for_its_estimated_start(
    world: CkptWorld,
) -> None:
    """Backfill gives the job that comes first a start time, which is no hold."""
    requeued(world)
    hurried = world.slurm.calls["start_now"]
    assert hurried == 1
    for wait in (5000.0, 100.0):
        fields = {"reason": "Resources", "start": world.now + wait, "eligible": world.now - 9}
        world.slurm.set_job(7, **fields)
        world.advance(30, step=1.0)
    world.slurm.set_job(7, reason="Nodes_required_for_job_are_DOWN", start=world.now + 5000)
    world.advance(30, step=1.0)
    assert world.slurm.calls["start_now"] == hurried
    assert world.told(7).count("ckpt-pending") == 1


def test_a_job_that_somebody_put_off_is_not_hurried(world: CkptWorld) -> None:
    requeued(world)
    hurried = world.slurm.calls["start_now"]
    world.slurm.change_pending([7], begin_in=7200.0)
    world.advance(30, step=1.0)
    assert world.slurm.calls["start_now"] == hurried
    assert world.told(7).count("ckpt-pending") == 1
    assert str(world.migrations()[0].note) == f"it waits: {world.job(7).reason}", "without seconds"


def test_a_pending_job_that_slurm_still_shows_as_stopped_is_hurried(world: CkptWorld) -> None:
    """22.05, when the requeue overtakes the word that the job is stopped."""
    node = world.runs(7).nodes[0]
    world.slurm.set_node("pub2", "DOWN", "CLOUD", reason="broken")
    world.slurm.set_node("pub3", "DOWN", "CLOUD", reason="broken")
    world.interrupt(node)
    world.until(lambda: "PENDING" in world.job(7).states)
    world.slurm.set_job(7, "STOPPED", nodes=(), reason="BeginTime", start=world.now + 121)
    world.advance(2, step=1.0)
    assert world.job(7).start == 0.0


@pytest.mark.parametrize(("nodes", "least"), [(1, 0.0), (2, SETTLING)])
def test_a_job_that_may_get_a_node_again_is_not_hurried_within_the_second(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, nodes: int, least: float
) -> None:
    """slurmd takes it for killed and lets it fail; where all its nodes are drained it cannot."""
    world.slurm.submit(7, ("pub1", "pub2"), nodes)
    world.until(lambda: "RUNNING" in world.job(7).states)
    (first, *_) = world.job(7).nodes
    for node in {"pub1", "pub2"} - set(world.job(7).nodes):
        world.slurm.set_node(node, "DOWN", "CLOUD", reason="broken")
    hurried: list[float] = []
    start_now = world.slurm.start_now
    monkeypatch.setattr(
        world.slurm, "start_now", lambda job: (hurried.append(world.now), start_now(job))
    )
    world.interrupt(first)
    world.until(lambda: bool(hurried))
    (move,) = world.migrations()
    assert hurried[0] - move.reached["requeued"] >= least


def test_slurm_that_does_not_answer_keeps_nothing_from_being_saved(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.interrupt(node)
    world.slurm.broken = SlurmError(("squeue",), None, "hangs")
    world.advance(10)
    assert ("checkpoint", 7) in world.saver.calls
    assert world.job(7).restarts == 0
    world.slurm.broken = None
    world.until(lambda: world.back(7, 1))
    assert world.saver.calls.count(("checkpoint", 7)) == 1


def started_by_slurm(world: CkptWorld, job: int) -> None:
    """Slurm has requeued it by itself, and it runs elsewhere already."""
    world.slurm.requeue(job)
    world.slurm.start_now(job)
    world.slurm.set_job(job, states=frozenset({"RUNNING"}), nodes=("pub2",))


def saved_move(world: CkptWorld) -> Migration:
    """Its run is saved and stopped; the next step is the requeue. Lists serve for a moment."""

    def unanswered(job: int) -> None:
        raise SlurmError(("scontrol", "requeue"), None, "hangs")

    node = world.runs(7, requeue=False).nodes[0]
    world.slurm.requeue = unanswered  # type: ignore[method-assign]
    world.interrupt(node, notice=10_000.0)
    world.until(lambda: any(m.step is MigrationStep.SAVED for m in world.migrations()))
    del world.slurm.requeue  # type: ignore[method-assign]
    world.ckpt.jobs.fresh, world.ckpt.jobs.clock = JOBS_TTL_S, lambda: world.now
    world.advance(1, step=1.0)
    (move,) = world.migrations()
    return move


def test_a_run_that_slurm_began_since_the_last_list_is_not_requeued(world: CkptWorld) -> None:
    move = saved_move(world)
    world.slurm.set_job(7, requeue=True)
    world.ckpt.jobs.read()
    started_by_slurm(world, 7)
    world.now += JOBS_TTL_S / 2
    after = migration.continue_migration(world.ckpt, move)
    assert world.job(7).restarts == 1
    assert after.step is MigrationStep.REQUEUED
    world.until(lambda: world.migrations()[0].is_over)
    assert world.migrations()[0].step is MigrationStep.BACK


@pytest.mark.parametrize("restarted", [False, True])
def test_a_leave_that_ends_after_the_first_image_is_given_for_good(
    world: CkptWorld, restarted: bool
) -> None:
    """slurm-elasticd had lifted it until the job runs, and puts it back after the first save."""
    world.runs(7, requeue=False)
    world.ledger.requeues.lift(7, 0, world.now)
    world.slurm.set_requeue(7, requeue=True)
    world.save_before(7)
    assert "ckpt-requeue-lifted" not in world.told(7)
    if restarted:
        world.advance(10)  # the order is acknowledged
        world.restart_ckptman()
        world.advance(1, step=1.0)
    requeue_setting.put_back(world.slurm, world.ledger, 7, world.job(7))
    assert world.job(7).requeue is False
    world.advance(10)
    assert world.job(7).requeue is True
    assert world.told(7).count("ckpt-requeue-lifted") == 1
    assert world.told(7).count("ckpt-saved") == 1
    assert world.ledger.requeues.lifted() == ()


@pytest.mark.parametrize("restarted", [False, True])
def test_no_requeue_that_slurm_refuses_to_lift_is_lifted_without_another_save(
    world: CkptWorld, restarted: bool
) -> None:
    """No other save may come before its node is lost, and the job would end with that."""
    world.runs(7, requeue=False)
    refusal = SlurmError(("scontrol", "update"), 1, "Unable to contact slurm controller")
    world.slurm.set_requeue = Mock(side_effect=refusal)  # type: ignore[method-assign]
    world.save_before(7)
    world.advance(20)
    assert world.told(7).count("ckpt-no-requeue") == 1
    if restarted:
        world.restart_ckptman()
    del world.slurm.set_requeue  # type: ignore[method-assign]
    world.until(lambda: world.job(7).requeue, 60)
    assert world.told(7).count("ckpt-saved") == 1


def test_a_run_that_slurm_began_while_no_requeue_was_lifted_is_not_requeued(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = saved_move(world)
    world.slurm.set_job(7, requeue=False)
    world.now += 1  # the last look's list is from before
    real = world.slurm.set_requeue

    def slow(job: int, *, requeue: bool) -> None:
        real(job, requeue=requeue)
        started_by_slurm(world, job)
        world.now += 1

    monkeypatch.setattr(world.slurm, "set_requeue", slow)
    assert migration.continue_migration(world.ckpt, move).step is MigrationStep.REQUEUED
    assert world.job(7).restarts == 1


def test_a_requeue_that_is_accepted_without_effect_does_not_leave_the_run_stopped(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_move(world)
    world.slurm.set_job(7, requeue=True)
    monkeypatch.setattr(world.slurm, "requeue", lambda job: None)
    world.advance(100)
    (move,) = world.migrations()
    assert not move.is_over
    world.until(lambda: world.migrations()[0].is_over, most=1200.0)
    assert world.migrations()[0].step is MigrationStep.STAYED
    assert ("release", 7) in world.saver.calls
    texts = [str(decision.reason) for decision in world.ledger.decisions.about("job:7")]
    assert any("Slurm accepted it each time, without effect" in text for text in texts)


@pytest.mark.parametrize("answers_again", [True, False])
def test_a_stopped_run_whose_no_requeue_cannot_be_lifted_is_not_left_stopped(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, *, answers_again: bool
) -> None:
    """It is tried again, and at last the run continues in place."""
    world.saver.hold_s = 2 * REQUEUE_TIMEOUT_S
    saved_move(world)
    world.slurm.set_job(7, requeue=False)

    def unanswered(job: int, *, requeue: bool) -> None:
        raise SlurmError(("scontrol", "update"), None, f"hangs {job} {requeue}")

    with monkeypatch.context() as patched:
        patched.setattr(world.slurm, "set_requeue", unanswered)
        world.advance(30)
        (move,) = world.migrations()
        assert move.step is MigrationStep.SAVED
        if not answers_again:
            world.until(lambda: world.migrations()[0].is_over, most=1200.0)
    if answers_again:
        world.until(lambda: world.back(7, 1))
    else:
        assert world.migrations()[0].step is MigrationStep.STAYED
        assert ("release", 7) in world.saver.calls


def test_ten_moves_that_ask_at_once_cost_two_lists() -> None:
    asked, answered = threading.Semaphore(0), threading.Event()
    lists: list[None] = []

    class Slow(FakeSlurm):
        def jobs(self, *, ended: bool = False) -> Sequence[SlurmJob]:
            lists.append(None)
            assert answered.wait(patience(30))
            return super().jobs(ended=ended)

    ticks = itertools.count(1)

    def clock() -> float:
        asked.release()
        return float(next(ticks))

    jobs = JobList(Slow(), clock)
    threads = [threading.Thread(target=jobs.read_new, args=(7,)) for _ in range(10)]
    for one in threads:
        one.start()
    for _ in range(11):  # each its question, the first also when its list began
        assert asked.acquire(timeout=patience(30))
    answered.set()
    for one in threads:
        one.join(patience(30))
    assert len(lists) == 2


def test_a_stopped_run_whose_requeue_never_comes_goes_on(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    refuse = SlurmError(("scontrol", "requeue"), 1, "denied")

    def refused(job: int) -> None:
        raise refuse

    world.slurm.requeue = refused  # type: ignore[method-assign]
    world.interrupt(node, notice=10_000.0)
    world.advance(30)
    assert (7, 0) in world.saver.held
    world.advance(700)
    assert (7, 0) not in world.saver.held
    assert "ckpt-stayed" in world.told(7)
    world.advance(60)
    assert world.saver.calls.count(("checkpoint", 7)) == 1
    assert world.migrations()[-1].note == StoppedInVain()


def test_a_rebalance_recommendation_saves_and_moves_nothing(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.order("notice", node=node, rebalance=True)
    world.advance(20)
    assert ("checkpoint", 7) in world.saver.calls
    assert world.job(7).restarts == 0
    assert "DRAIN" not in world.slurm.node(node).states
    assert not world.migrations()


def test_an_operators_notice_moves_jobs_and_can_be_taken_back(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.saver.broken = CheckpointError("cannot")
    world.order("notice", node=node, reason="new kernel")
    world.advance(20)
    assert world.slurm.node(node).reason == "slurm-elastic:notice:new kernel"
    world.order("withdraw", node=node)
    world.advance(10)
    assert "DRAIN" not in world.slurm.node(node).states
    assert not world.state.notices()
    assert world.migrations()[0].step is MigrationStep.STAYED


def test_an_operator_has_a_job_saved_now(world: CkptWorld) -> None:
    world.runs(7)
    world.order("save", job=7)
    world.advance(5)
    assert [i.job for i in world.state.images()] == [7]
    world.order("save", job=99)
    world.advance(5)
    assert world.told(99) == ["ckpt-refused"]


def test_images_go_when_the_job_has_ended(world: CkptWorld) -> None:
    world.runs(7)
    world.save_before(7)
    world.slurm.set_job(7, "COMPLETED")
    world.advance(5)
    assert ("remove", 7) in world.saver.calls
    assert world.state.images() == ()


def test_images_that_cannot_be_removed_yet_are_told_once_and_go_later(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def cannot(_job: int) -> None:
        raise CheckpointError("/shared/ckpt/7/request: Read-only file system")

    world.runs(7)
    world.save_before(7)
    with monkeypatch.context() as shared, caplog.at_level("WARNING"):
        shared.setattr(world.saver, "remove", cannot)
        world.slurm.set_job(7, "COMPLETED")
        world.advance(60)
        assert [i.job for i in world.state.images()] == [7]
        assert caplog.text.count("images of a job cannot be removed, it is retried job=7") == 1
    world.until(lambda: world.state.images() == ())


def test_a_copy_of_a_head_removes_no_images(world: CkptWorld) -> None:
    """They may be those of jobs that only the other head's Slurm has."""
    world.runs(7)
    world.save_before(7)
    world.ledger.owner.record_other_head(Quoted(text="another head works"), ["i-9"], world.now)
    world.slurm.set_job(7, "COMPLETED")
    world.advance(600)
    assert [i.job for i in world.state.images()] == [7]
    world.ledger.owner.clear_other_head()
    world.until(lambda: world.state.images() == ())


def test_a_copy_on_which_slurm_elasticd_has_not_run_removes_no_images(world: CkptWorld) -> None:
    """Nobody there has found yet that the journal is another host's."""
    world.runs(7)
    world.save_before(7)
    world.ledger.owner.record(JournalOwner(knows_since=0.0, host=Host(machine="original")))
    world.host = Host(machine="copy")
    world.restart_ckptman()
    world.slurm.set_job(7, "COMPLETED")
    world.advance(600)
    assert [i.job for i in world.state.images()] == [7]
    world.host = Host(machine="original")
    world.restart_ckptman()
    world.until(lambda: world.state.images() == ())


def test_images_of_a_method_that_cannot_be_used_now_stay(
    world: CkptWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.runs(7)
    world.save_before(7)
    method = world.ckpt.checkpointers.pop("fake")  # type: ignore[attr-defined]
    with caplog.at_level("WARNING"):
        world.slurm.set_job(7, "COMPLETED")
        world.advance(60)
    assert [i.job for i in world.state.images()] == [7]
    assert "checkpoint method 'fake' cannot be used now" in caplog.text
    world.ckpt.checkpointers["fake"] = method  # type: ignore[index]
    world.until(lambda: world.state.images() == ())


def test_images_that_cannot_be_removed_are_tried_ever_less_often(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """blcr asks nodes over SSH, which are mostly gone."""
    tried: list[float] = []

    def cannot(_job: int) -> None:
        tried.append(world.now)
        raise CheckpointError("no node is up")

    world.runs(7)
    world.save_before(7)
    monkeypatch.setattr(world.saver, "remove", cannot)
    world.slurm.set_job(7, "COMPLETED")
    world.advance(600, step=5.0)
    pauses = [later - before for before, later in itertools.pairwise(tried)]
    assert pauses == sorted(pauses)
    assert 3 <= len(tried) <= 6


def test_the_loop_does_not_wait_for_the_removal_of_images(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.runs(7)
    world.save_before(7)
    assert world.service is not None
    crew = world.service.applier.crew = KeyedExecutor(2)
    loop, gone = threading.get_ident(), threading.Event()
    by: list[int] = []

    def remove(_job: int) -> None:
        by.append(threading.get_ident())
        gone.set()

    monkeypatch.setattr(world.saver, "remove", remove)
    world.slurm.set_job(7, "COMPLETED")
    world.tick()
    assert gone.wait(patience(60))
    crew.close()
    assert by != [loop]
    assert world.state.images() == ()


@pytest.mark.parametrize("begun", [True, False])
def test_no_move_waits_for_periodic_saves(world: CkptWorld, *, begun: bool) -> None:
    """One that waits for its turn is forgotten. One that runs ends first, on a node on which
    nothing else begins any more.
    """
    node = world.runs(7).nodes[0]
    assert world.service is not None
    crew = world.service.applier.crew = KeyedExecutor(2)
    runs, go, periodic = threading.Event(), threading.Event(), threading.Event()

    def lasts() -> None:
        runs.set()
        go.wait(patience(60))

    crew.submit(7 if begun else 99, (NO_DEADLINE, 0.0), lasts, kind=WorkKind.PERIODIC)
    if not begun:
        crew.submit(7, (NO_DEADLINE, 0.0), periodic.set, kind=WorkKind.PERIODIC)
    assert runs.wait(patience(60))
    world.interrupt(node)
    for one in world.pollers:
        one.poll()
    world.service.guarded_tick()
    assert world.state.open_migration(7, 0) is not None
    assert "DRAIN" in world.slurm.nodes()[node].states
    assert crew.is_busy(7) or not begun
    until = time.monotonic() + patience(60)
    while not begun and ("checkpoint", 7) not in world.saver.calls and time.monotonic() < until:
        time.sleep(0.01)
    assert (("checkpoint", 7) in world.saver.calls) is not begun
    go.set()
    crew.close()
    assert not periodic.is_set()


def test_images_of_a_job_that_was_requeued_before_their_turn_came_stay(world: CkptWorld) -> None:
    """By its user, or an administrator: it goes on from them."""

    class Later(KeyedExecutor):
        def submit(
            self,
            job: int,
            order: Urgency,
            work: Callable[[], object],
            *,
            kind: WorkKind = WorkKind.URGENT,
            on_cancelled: Callable[[], object] = lambda: None,
        ) -> bool:
            if kind is WorkKind.REMOVAL:
                world.slurm.set_job(7, "PENDING", nodes=(), restarts=1)
            return super().submit(job, order, work, kind=kind, on_cancelled=on_cancelled)

    world.runs(7)
    world.save_before(7)
    assert world.service is not None
    world.service.applier.crew = Later(0)
    world.slurm.set_job(7, "COMPLETED")
    world.tick()
    assert world.job(7).restarts == 1
    assert ("remove", 7) not in world.saver.calls
    assert len(world.state.images()) == 1


def test_a_job_that_is_missing_for_a_moment_keeps_its_images(world: CkptWorld) -> None:
    world.runs(7)
    world.save_before(7)
    job = world.job(7)
    world.slurm.remove_job(7)
    world.slurm.set_job(8, "PENDING")
    world.advance(60)
    world.slurm.set_job(7, **asdict(job))
    world.advance(600)
    assert ("remove", 7) not in world.saver.calls


def test_a_wrong_word_in_the_comment_is_said_and_never_guessed(world: CkptWorld) -> None:
    node = world.runs(7, comment="ckpt=crui").nodes[0]
    assert "ckpt-refused" in world.told(7)
    world.interrupt(node)
    world.advance(20)
    assert ("checkpoint", 7) not in world.saver.calls


def test_a_shared_directory_that_cannot_be_written_leaves_the_older_image(
    world: CkptWorld,
) -> None:
    """Whatever a method raises: the next best is done, and the others go on."""
    node = world.runs(7).nodes[0]
    world.save_before(7)
    world.saver.broken = OSError(30, "Read-only file system", "/shared/ckpt")
    world.interrupt(node)
    world.until(lambda: world.back(7, 1))
    world.until(lambda: not world.state.migrations())
    image = world.migrations()[0].image
    assert image is not None
    assert image.number == 1
    assert "ckpt-failed" in world.told(7)


def test_a_shared_directory_that_cannot_even_be_read_loses_no_job(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    broken = OSError(5, "Input/output error", "/shared/ckpt")
    world.saver.broken = broken

    def cannot(_run: object) -> None:
        raise broken

    world.saver.images = cannot  # type: ignore[method-assign, assignment]
    world.interrupt(node)
    world.advance(110)
    assert "ckpt-no-view" in world.told(7)
    assert "RUNNING" in world.job(7).states
    world.advance(15)
    world.take(node)
    world.until(lambda: world.back(7, 1))


def test_a_periodic_save_in_between_does_not_stand_for_the_last_one(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.interrupt(node)
    world.save_before(7)
    world.until(lambda: world.back(7, 1))
    world.until(lambda: not world.state.migrations())
    image = world.migrations()[0].image
    assert image is not None
    assert image.number == len([c for c in world.saver.calls if c[0] == "checkpoint"])


def test_the_machine_goes_before_its_deadline_while_a_job_waits_for_it(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.save_before(7)
    world.saver.broken = CheckpointError("cannot")
    world.interrupt(node)
    world.advance(10)
    assert world.state.migrations()[0].step is MigrationStep.WAITING
    world.take(node)
    world.until(lambda: world.back(7, 1))
    world.until(lambda: not world.state.migrations())
    assert world.job(7).restarts == 1


def test_a_broken_ledger_stops_no_migration(world: CkptWorld) -> None:
    node = world.runs(7).nodes[0]
    world.interrupt(node)
    for one in world.pollers:
        one.poll()
    world.daemon = None
    world.ledger.close()
    world.advance(20)
    assert world.job(7).restarts == 1
    world.start()
    world.restart_ckptman()
    world.until(lambda: world.back(7, 1))
