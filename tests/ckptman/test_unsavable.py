"""A job that cannot be saved is told so shortly after its start, not when its machine goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.ckptman import snapshot, verdicts
from slurm_elastic.ckptman.decide import run_of
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.moves import after_requeue
from slurm_elastic.ckptman.origins import LAUNCHER_WAIT_S
from slurm_elastic.config.job_checkpoint import MethodChoice
from slurm_elastic.model.causes.threats import GoesOnDemand
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.cluster import Limits, Market
from slurm_elastic.model.exclusion import NO_SPOT
from slurm_elastic.policies.checkpoint.checkpoint import Never
from slurm_elastic.policies.checkpoint.threat import ThreatCause
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep
from tests.ckptman.world import CkptWorld, told_lines
from tests.controller.world import PUB, make_config

LOCK = CheckpointError("job 7: no checkpoint: criu dump: exit 1: Some file locks are hold")
BUSY = CheckpointError("job 7: no answer to checkpoint in time: its launcher is still at it")


def made(**settings: object) -> CkptWorld:
    return CkptWorld(probe_after=60.0, **settings)


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    one = made()
    yield one
    one.close()


def begins(world: CkptWorld, number: int, **fields: object) -> None:
    world.slurm.submit(number, PUB, **fields)
    world.until(lambda: "RUNNING" in world.job(number).states and world.job(number).start > 0)


def lines(world: CkptWorld) -> list[str]:
    return told_lines(world.slurm)


def comments(world: CkptWorld) -> list[str]:
    return [str(f["text"]) for name, f in world.slurm.updates if name == "set_admin_comment"]


def test_the_first_save_is_made_a_minute_after_the_start(world: CkptWorld) -> None:
    begins(world, 7)
    world.until(lambda: bool(world.state.images(7)))
    took = world.now - world.job(7).start
    assert 60 <= took <= 65
    world.advance(300)
    assert world.saver.calls.count(("checkpoint", 7)) == 1, "one is enough to know"
    assert world.state.unsavable() == {}


def test_a_job_that_is_never_to_be_saved_is_not_probed() -> None:
    world = made(policy="none")
    try:
        begins(world, 7)
        world.advance(200)
        assert world.saver.calls == []
    finally:
        world.close()


def test_a_job_that_cannot_be_saved_is_told_so_within_two_minutes(world: CkptWorld) -> None:
    world.saver.broken = LOCK
    world.slurm.comments[7] = "ticket 7 [slurm-elastic clouds=a,b]"
    begins(world, 7)
    world.until(lambda: bool(world.state.unsavable()))
    assert world.now - world.job(7).start <= 120
    assert world.saver.calls.count(("checkpoint", 7)) == 2, "once may be chance"
    (verdict,) = world.state.unsavable().values()
    assert (verdict.job, str(verdict.cause)) == (7, "it holds a lock on a file")
    first, second = lines(world)
    assert first == (
        "slurm-elastic: this job cannot be saved: it holds a lock on a file; if its machine is"
        " taken away, it starts over"
    )
    assert second.startswith("slurm-elastic: it would help to run it without the lock")
    (comment,) = comments(world)
    assert comment.startswith(
        "ticket 7 [slurm-elastic checkpoint: cannot be saved: it holds a lock"
    )
    assert comment.endswith("] [slurm-elastic clouds=a,b]"), "the parts of others stay"
    assert "ckpt-unsavable" in world.told(7)
    world.advance(1200)
    assert len(lines(world)) == 2, "told once"
    assert world.saver.calls.count(("checkpoint", 7)) <= 5, "it is not stopped again and again"


def test_the_end_of_a_run_does_not_hide_why_it_could_not_be_saved(world: CkptWorld) -> None:
    world.saver.broken = LOCK
    begins(world, 7)
    world.until(lambda: ("checkpoint", 7) in world.saver.calls)
    world.saver.broken = CheckpointError("job 7: this run is not under the launcher")
    world.until(lambda: bool(world.state.unsavable()))
    (verdict,) = world.state.unsavable().values()
    assert str(verdict.cause) == "it holds a lock on a file"


def test_a_failure_that_passes_is_no_verdict(world: CkptWorld) -> None:
    world.saver.broken = BUSY
    begins(world, 7)
    world.advance(200)
    assert world.state.unsavable() == {}
    assert lines(world) == []
    world.saver.broken = None
    world.until(lambda: bool(world.state.images(7)))


def test_a_job_that_can_be_saved_later_is_acquitted(world: CkptWorld) -> None:
    world.saver.broken = LOCK
    world.slurm.comments[7] = "ticket 7"
    begins(world, 7)
    world.until(lambda: bool(world.state.unsavable()))
    world.saver.broken = None
    world.order("save", job=7)
    world.until(lambda: bool(world.state.images(7)))
    assert world.state.unsavable() == {}
    assert comments(world)[-1] == "ticket 7"
    assert "ckpt-savable" in world.told(7)


CONNECTED = "it has a connected TCP socket: to 10.1.2.3:80"


def test_a_job_that_was_saved_once_is_told_when_it_can_be_saved_no_longer(
    world: CkptWorld,
) -> None:
    """No policy saves it before a notice: its launcher looks, and a save says it as the first does."""
    begins(world, 7)
    world.until(lambda: bool(world.state.images(7)))
    saves = world.saver.calls.count(("checkpoint", 7))
    world.saver.broken, world.saver.hindrances[7] = LOCK, CONNECTED
    world.until(lambda: bool(world.state.unsavable()), 200)
    assert world.saver.calls.count(("checkpoint", 7)) == saves + 2
    assert "this job cannot be saved: it holds a lock on a file" in lines(world)[0]
    world.saver.broken = None
    world.saver.hindrances.clear()
    world.until(lambda: not world.state.unsavable(), 900)
    assert "ckpt-savable" in world.told(7)


def test_a_restarted_run_is_not_judged_while_its_launcher_may_wait() -> None:
    """For its user's name: the directory service of a new machine may answer after minutes."""
    world = made(unsavable="on_demand")
    try:
        begins(world, 7)
        world.slurm.requeue(7)
        world.until(lambda: world.job(7).restarts == 1 and "RUNNING" in world.job(7).states)
        world.saver.broken = CheckpointError("job 7: this run is not under the launcher")
        world.advance(LAUNCHER_WAIT_S - 60)
        assert world.saver.calls.count(("checkpoint", 7)) >= 2
        assert (world.state.unsavable(), world.job(7).restarts, lines(world)) == ({}, 1, [])
        world.advance(300)
        assert list(world.state.unsavable()) == [7], "after the wait it has no launcher"
    finally:
        world.close()


def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of each job are on its machine alone, as with ``data: copy``."""
    resolve_for = snapshot.resolve_for
    monkeypatch.setattr(
        snapshot,
        "resolve_for",
        lambda *args: replace(resolve_for(*args), move_only=True, copied=True),
    )


def test_a_job_with_copied_files_is_judged_without_a_save_in_place(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(monkeypatch)
    monkeypatch.setattr(world.saver, "is_at_work", lambda run: True)
    world.saver.hindrances[7] = CONNECTED
    begins(world, 7, requeue=False)
    world.until(lambda: bool(world.state.unsavable()))
    assert "this job cannot be saved: it has a network connection open" in lines(world)[0]
    world.saver.hindrances.clear()
    world.until(lambda: not world.state.unsavable(), 900)
    assert "ckpt-savable" in world.told(7)
    world.advance(1200)
    assert world.saver.calls.count(("checkpoint", 7)) == 0
    assert not world.job(7).requeue, "no image makes a requeue safe"


def test_a_short_hindrance_of_a_job_with_copied_files_is_no_verdict(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(monkeypatch)
    begins(world, 7)
    for _ in range(3):
        world.saver.hindrances[7] = CONNECTED
        world.advance(60)
        world.saver.hindrances.clear()
        world.advance(60)
    assert world.state.unsavable() == {}


@pytest.mark.parametrize("why", ["", "12 GiB are more than is left of 25% of the file system"])
def test_no_job_is_stopped_again_for_what_passes(world: CkptWorld, why: str) -> None:
    begins(world, 7)
    world.until(lambda: bool(world.state.images(7)))
    world.saver.hindrances[7] = why
    world.advance(600)
    assert world.saver.calls.count(("checkpoint", 7)) == 1


def test_the_verdict_goes_with_the_job_and_outlives_the_service(world: CkptWorld) -> None:
    world.saver.broken = LOCK
    begins(world, 7)
    world.until(lambda: bool(world.state.unsavable()))
    world.restart_ckptman()
    assert list(world.state.unsavable()) == [7]
    world.slurm.set_job(7, "COMPLETED")
    world.until(lambda: not world.state.unsavable())


def test_stay_tells_the_administrator_alone() -> None:
    world = made(unsavable="stay")
    try:
        world.saver.broken = LOCK
        begins(world, 7)
        world.until(lambda: bool(world.state.unsavable()))
        world.advance(60)
        assert lines(world) == comments(world) == []
    finally:
        world.close()


@pytest.mark.parametrize("requeue", [True, False])
def test_on_demand_requeues_it_at_once_unless_its_user_forbids_that(requeue: bool) -> None:
    world = made(unsavable="on_demand")
    try:
        world.saver.broken = LOCK
        begins(world, 7)
        # With --no-requeue from the start it would get no spot machine.
        world.slurm.set_job(7, requeue=requeue)
        spot = {m.instance.node: m for m in world.ckpt.ledger.machines.live()}[
            world.job(7).nodes[0]
        ]
        assert spot.instance.market is Market.SPOT
        world.until(lambda: bool(world.state.unsavable()))
        world.advance(30)
        rules = [e for e in world.ledger.exclusions.all() if e.kind == NO_SPOT]
        if not requeue:
            assert (world.job(7).restarts, rules) == (0, [])
            assert "starts over" in lines(world)[0]
            return
        assert [e.scope for e in rules] == ["job:7"]
        assert world.job(7).restarts == 1
        assert spot.instance.node in world.job(7).excluded
        (moved,) = world.migrations()
        assert (moved.cause, moved.image) == (ThreatCause.UNSAVABLE, None)
        world.until(lambda: world.migrations()[0].step is MigrationStep.BACK)
        assert "it starts over on" in lines(world)[-1]
        world.advance(200)
        assert world.job(7).restarts == 1, "once is enough"
        world.slurm.set_job(7, "COMPLETED")
        world.until(lambda: not [e for e in world.ledger.exclusions.all() if e.kind == NO_SPOT])
    finally:
        world.close()


@pytest.mark.parametrize(
    ("others", "moves"), [((), False), (("static",), True), (("rack",), True)], ids=str
)
def test_a_job_that_can_get_spot_machines_alone_stays_where_it_is(
    others: tuple[str, ...], moves: bool
) -> None:
    """It runs well. After a requeue it would wait for a machine that nobody sells."""
    rack, burst = make_config(Path("/nowhere")).pools[:2]
    pools = (rack, replace(burst, markets=(Market.SPOT,)))
    world = made(unsavable="on_demand", site={"pools": pools})
    try:
        world.saver.broken = LOCK
        begins(world, 7)
        world.slurm.set_job(7, partitions=("burst", *others))
        world.slurm.set_node("own1", "IDLE", partitions=("static",))
        for pool in pools:
            for node in expand(pool.nodes):
                world.slurm.set_node(node, partitions=(pool.name,))
        world.until(lambda: bool(world.state.unsavable()))
        world.advance(30)
        assert (world.job(7).restarts > 0) is moves
        if not moves:
            assert "if its machine is taken away, it starts over" in lines(world)[0]
    finally:
        world.close()


def test_it_avoids_the_nodes_with_spot_machines_of_the_moment_and_its_users_own(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose spot machine has ended may get another one for the job."""
    begins(world, 7)
    run = run_of(world.job(7), MethodChoice(method="fake", policy=Never()))
    move = Migration(
        run=run, method="fake", threatened=(), reason=GoesOnDemand(), step=MigrationStep.REQUEUED, began=world.now,
        changed=world.now, cause=ThreatCause.UNSAVABLE, saves=False,
    )  # fmt: skip
    world.slurm.set_job(7, "PENDING", nodes=(), restarts=1, excluded=("st1",), required=("pub1",))
    for spot in (["pub1", "pub2"], ["pub2"]):
        monkeypatch.setattr(after_requeue, "spot_nodes", lambda _, spot=spot: spot)
        for _ in range(3):
            move = after_requeue.check_job(world.ckpt, move, world.job(7))
        assert world.job(7).excluded == tuple(sorted(["st1", *spot]))
        assert world.job(7).required == ()
    assert [name for name, _ in world.slurm.updates].count("exclude_nodes") == 2


def runs_again(world: CkptWorld, attempt: int) -> None:
    """It is requeued by somebody else."""
    world.slurm.requeue(7)
    world.until(lambda: world.back(7, attempt))


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Iterator[CkptWorld]:
    """Job 7, whose user excludes st1, runs on demand since pub1 and pub2 had spot machines."""
    world = made(unsavable="on_demand")
    world.saver.broken = LOCK
    has_spot(monkeypatch, "pub1", "pub2")
    begins(world, 7, excluded=("st1",))
    world.until(lambda: [m.step for m in world.migrations()] == [MigrationStep.BACK])
    assert world.job(7).excluded == ("pub1", "pub2", "st1")
    yield world
    world.close()


def has_spot(monkeypatch: pytest.MonkeyPatch, *nodes: str) -> None:
    monkeypatch.setattr(after_requeue, "spot_nodes", lambda _: list(nodes))


def test_a_later_start_avoids_the_spot_machines_of_that_time(
    moved: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it might wait for ever: the other nodes have machines on demand by then."""
    moved.restart_ckptman()
    has_spot(monkeypatch, "pub3")
    runs_again(moved, 2)
    assert moved.job(7).excluded == ("pub3", "st1")
    has_spot(monkeypatch)
    runs_again(moved, 3)
    assert moved.job(7).excluded == ("st1",)


def test_a_job_that_may_use_spot_machines_again_excludes_its_users_nodes_alone(
    moved: CkptWorld,
) -> None:
    verdicts.forget(moved.ckpt, 7)
    assert moved.job(7).excluded == ("pub1", "pub2", "st1"), "Slurm refuses it while it runs"
    runs_again(moved, 2)
    assert moved.job(7).excluded == ("st1",)
    asked = [name for name, _ in moved.slurm.updates].count("exclude_nodes")
    runs_again(moved, 3)
    assert [name for name, _ in moved.slurm.updates].count("exclude_nodes") == asked, "once"


def test_a_list_that_the_user_has_set_since_stays(moved: CkptWorld) -> None:
    verdicts.forget(moved.ckpt, 7)
    moved.slurm.set_job(7, excluded=("st2",))
    runs_again(moved, 2)
    assert moved.job(7).excluded == ("st2",)
    assert moved.state.jobs_with_exclusions() == frozenset()


def test_a_move_for_another_cause_renews_the_list_before_the_job_starts(
    moved: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_spot(monkeypatch, "pub3")
    moved.order("notice", node=moved.job(7).nodes[0], deadline=moved.now + 60.0)
    moved.saver.broken = None
    moved.until(lambda: moved.back(7, 2))
    assert moved.job(7).excluded == ("pub3", "st1")
    names = [name for name, _ in moved.slurm.updates]
    last = len(names) - 1 - names[::-1].index("exclude_nodes")
    assert "start_now" in names[last:]


def test_a_list_that_slurm_refuses_is_set_at_the_next_look(moved: CkptWorld) -> None:
    verdicts.forget(moved.ckpt, 7)
    moved.slurm.requeue(7)
    (pending,) = (job for job in moved.slurm.jobs() if job.id == 7)
    refused = SlurmError(("scontrol",), 1, "Invalid node name specified")
    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        patch.setattr(moved.slurm, "exclude_nodes", Mock(side_effect=refused))
        after_requeue.renew_exclusions(moved.ckpt, {7: pending}, (), KeyedExecutor(0))
    assert moved.state.jobs_with_exclusions() == {7}
    moved.now += 2.0
    after_requeue.renew_exclusions(moved.ckpt, {7: pending}, (), KeyedExecutor(0))
    assert moved.job(7).excluded == ("st1",)


REFUSED = SlurmError(("scontrol",), 1, "Invalid node name specified")
"""A node of the user's list has left slurm.conf."""


def lines_about(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def test_a_list_that_slurm_refuses_for_good_is_tried_more_and_more_rarely(
    moved: CkptWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_spot(monkeypatch, "pub3")
    refusing = Mock(side_effect=REFUSED)
    monkeypatch.setattr(moved.slurm, "exclude_nodes", refusing)
    writes = Mock(wraps=moved.state.put)
    monkeypatch.setattr(moved.state, "put", writes)
    monkeypatch.setattr(moved.slurm, "step", lambda: None)  # it cannot start
    moved.slurm.requeue(7)
    moved.advance(3600, step=1.0)
    assert 10 <= refusing.call_count <= 25
    assert lines_about(caplog, "the excluded nodes of a job cannot be changed") == 1
    assert writes.call_count == 0
    monkeypatch.setattr(moved.slurm, "exclude_nodes", Mock())
    moved.advance(300, step=1.0)
    assert not moved.ckpt.refused_exclusions._changes.snapshot()


def test_a_move_whose_list_slurm_refuses_for_good_is_tried_more_and_more_rarely(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = made(unsavable="on_demand")
    try:
        world.saver.broken = LOCK
        has_spot(monkeypatch, "pub1", "pub2")
        begins(world, 7)
        refusing = Mock(side_effect=REFUSED)
        monkeypatch.setattr(world.slurm, "exclude_nodes", refusing)
        monkeypatch.setattr(world.slurm, "step", lambda: None)
        world.until(lambda: refusing.called)
        writes = Mock(wraps=world.state.put)
        monkeypatch.setattr(world.state, "put", writes)
        world.advance(3600, step=1.0)
        assert 10 <= refusing.call_count <= 25
        assert lines_about(caplog, "a requeued job cannot be changed") == 1
        assert writes.call_count == 0
        world.slurm.set_job(8, "RUNNING")
        world.slurm.remove_job(7)
        world.advance(10)
        assert not world.ckpt.refused_starts._changes.snapshot()
    finally:
        world.close()


def test_a_second_move_on_demand_knows_the_users_list(
    moved: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was saved since, and cannot be saved any longer."""
    verdicts.forget(moved.ckpt, 7)
    has_spot(monkeypatch, "pub3")
    (first,) = moved.migrations()
    run = replace(first.run, attempt=1, nodes=moved.job(7).nodes)
    moved.state.put(
        replace(first, run=run, step=MigrationStep.REQUEUEING, avoids=None, excluded=())
    )
    moved.until(lambda: moved.back(7, 2))
    assert moved.job(7).excluded == ("pub3", "st1")
    assert [move.avoids for move in moved.state.migrations_of(7)] == [None, ("st1",)]


def test_a_save_that_comes_late_counts_and_the_next_one_is_waited_for(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a job of many GiB would stand still for one save after the other, and none would count."""
    deadlines = []

    def slow(run: JobRun, *, deadline: float, stop: bool) -> Image:
        began = world.now
        deadlines.append(deadline - began)
        world.saver.calls.append(("checkpoint", run.job))
        world.pause(320.0)
        image = world.saver._add_image(run, began, stop=stop)
        if world.now > deadline:
            raise BUSY
        return image

    monkeypatch.setattr(world.saver, "checkpoint", slow)
    begins(world, 7)
    world.until(lambda: bool(world.state.images(7)), 900.0)
    (image,) = world.state.images(7)
    assert (image.number, image.seconds) == (1, 320.0)
    assert world.state.unsavable() == {}
    assert deadlines == [60.0], "it is not made once more"
    world.order("save", job=7)
    world.until(lambda: len(world.state.images(7)) == 2, 900.0)
    assert deadlines == [60.0, 3 * 1.25 * 320.0]


def test_a_late_save_that_is_not_whole_does_not_count(world: CkptWorld) -> None:
    begins(world, 7)
    world.saver.spoilt.add((7, 1))
    world.until(lambda: ("verify", 7) in world.saver.calls)
    assert world.state.images(7) == ()
    world.until(lambda: bool(world.state.images(7)), 300.0)
    assert [image.number for image in world.state.images(7)] == [2]


def test_a_job_stays_on_spot_while_all_nodes_of_its_partition_have_spot_machines() -> None:
    """Slurm would give it none of them, and it would wait behind all younger jobs."""
    clouds = [
        replace(cloud, limits=Limits(dollars_per_hour=10.0))
        for cloud in make_config(Path("/nowhere")).clouds
    ]
    world = made(
        unsavable="on_demand",
        site={"clouds": tuple(clouds), "limits": Limits(nodes=10, dollars_per_hour=10.0)},
    )
    try:
        world.saver.broken = None
        for node in PUB:
            world.slurm.set_node(node, partitions=("burst",))
        for number in range(5, 5 + len(PUB)):
            world.slurm.submit(number, PUB, partitions=("burst",))
        world.until(lambda: all("RUNNING" in world.job(n).states for n in range(5, 5 + len(PUB))))
        world.saver.broken = LOCK
        world.advance(900)
        assert [world.job(n).restarts for n in range(5, 5 + len(PUB))] == [0] * len(PUB)
    finally:
        world.close()
