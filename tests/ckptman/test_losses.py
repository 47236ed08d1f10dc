"""Work that a job does again is told: to its user in its output, to others in the journal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from patience import patience

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.ckptman.decide import run_of
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.losses import notify_user
from slurm_elastic.ckptman.origins import ORIGIN_TIMEOUT_S, READ_BYTES_PER_S, read_started_run
from slurm_elastic.ckptman.snapshot import choose_method
from slurm_elastic.ckptman.unannounced_ends import unannounced_ends
from slurm_elastic.ckptman.unfit_nodes import AVOID_FOR_S, LOOK_FOR_S, MAX_REQUEUES, UnfitNodes
from slurm_elastic.features.news.notify_occasions import of_moves
from slurm_elastic.model.checkpoint import JobRun, Origin
from slurm_elastic.slurm.hooks.launcher import UNFIT_S
from slurm_elastic.state.ckptstate.facts import AvoidedNodes, Migration, MigrationStep
from slurm_elastic.watch.view.checkpoints import CheckpointFacts, checkpoints_view
from tests.ckptman.world import CkptWorld, told_lines
from tests.controller.world import PUB


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    """Job 7 has a save of half a minute after its start, and works for five minutes more."""
    made = CkptWorld()
    made.ckpt.checkpointers["criu"] = made.saver
    made.runs(7, comment="ckpt=criu")
    made.save_before(7)
    made.advance(300)
    yield made
    made.close()


def lines(world: CkptWorld) -> list[str]:
    return told_lines(world.slurm)


def lost(world: CkptWorld, *, told: bool = True) -> str:
    """The job's node goes without a notice; the node where the job runs again."""
    world.take(world.job(7).nodes[0])
    world.until(lambda: again(world))
    world.until(lambda: bool(lines(world))) if told else world.advance(60)
    return world.job(7).nodes[0]


def again(world: CkptWorld) -> bool:
    states: Any = world.job(7).states
    return world.back(7, 1) and "CONFIGURING" not in states


def test_a_node_that_was_lost_between_two_saves_costs_what_was_done_since(world: CkptWorld) -> None:
    where = lost(world)
    assert not world.migrations(), "a stored one would change from where the job continues"
    first, second = lines(world)
    assert first.startswith("slurm-elastic: this job was requeued at ")
    assert first.endswith(": the machine of pub1 was lost without a notice")
    save, _, cost = second.partition(", ")
    assert save == f"slurm-elastic: it continues from save 1 on {where}"
    minutes = int(cost.split()[0])
    assert 5 <= minutes <= 8
    assert cost == f"{minutes} minutes of its work must be done again"
    assert "ckpt-back" in world.told(7)
    world.advance(120)
    assert len(lines(world)) == 2, "told once"


def ends(world: CkptWorld, since: float = 0.0) -> tuple[Migration, ...]:
    return unannounced_ends(world.ledger, since, world.migrations())


def test_ckpt_list_and_mail_know_a_machine_that_was_lost_without_a_notice(
    world: CkptWorld,
) -> None:
    where = lost(world)
    world.advance(60)
    (end,) = ends(world)
    assert (end.run.job, end.step, end.threatened) == (7, MigrationStep.BACK, ("pub1",))
    assert end.image is not None
    assert end.image.number == 1
    facts = CheckpointFacts(migrations=ends(world), images=world.state.images())
    (view,) = checkpoints_view(facts, [], world.now, 60.0).moves
    assert (view.over, view.started_over, view.image) == (True, False, 1)
    assert view.work_lost is not None
    assert 240 < view.work_lost < 540
    assert where in view.note
    assert list(of_moves([end])) == [], "its work continues from a save"
    world.restart_ckptman()
    world.advance(120)
    assert ends(world) == (end,), "reported once"
    assert ends(world, since=world.now) == ()
    assert not world.migrations(), "the next restore does not read it"


def test_a_second_loss_continues_from_the_newest_save_of_all(world: CkptWorld) -> None:
    lost(world)
    world.save_before(7)
    newest = max(image.number for image in world.state.images(7))
    world.advance(60)
    first = len(lines(world))
    world.take(world.job(7).nodes[0])
    world.until(lambda: len(lines(world)) > first)
    assert f"it continues from save {newest} on" in lines(world)[-1]


def test_nothing_is_told_before_its_launcher_has_told_what_it_goes_on_from(
    world: CkptWorld,
) -> None:
    world.saver.origins[7] = None
    lost(world, told=False)
    assert lines(world) == []
    world.saver.origins[7] = Origin(image=0, why="image 1 is not used: changed")
    world.until(lambda: bool(lines(world)))
    assert lines(world)[1].startswith(f"slurm-elastic: it starts over on {world.job(7).nodes[0]}, ")
    assert lines(world)[1].endswith("be done again: image 1 is not used: changed")


def test_a_save_of_just_before_is_no_loss(world: CkptWorld) -> None:
    world.save_before(7)
    node = world.job(7).nodes[0]
    world.slurm.requeue(7)
    world.until(lambda: again(world))
    world.advance(60)
    assert world.job(7).nodes[0] == node
    assert lines(world) == []
    assert "ckpt-back" in world.told(7)


def test_an_older_save_that_a_notice_leaves_it_says_what_that_costs(world: CkptWorld) -> None:
    world.saver.broken = CheckpointError("cannot")
    world.interrupt(world.job(7).nodes[0])
    world.until(lambda: again(world))
    world.until(lambda: bool(lines(world)))
    where = world.job(7).nodes[0]
    _, second = lines(world)
    assert second.startswith(
        f"slurm-elastic: it continues from save 1 on {where}, 7 minutes of its"
    )


def test_a_move_that_saves_costs_nothing_and_is_told(world: CkptWorld) -> None:
    world.interrupt(world.job(7).nodes[0])
    world.until(lambda: bool(world.migrations()) and world.migrations()[0].is_over)
    first, second = lines(world)
    assert ": interruption notice, " in first
    assert second == f"slurm-elastic: it continues from save 2 on {world.job(7).nodes[0]}"


@pytest.fixture
def unsaved() -> Iterator[CkptWorld]:
    """Job 7 has no checkpoint method, and works for five minutes."""
    made = CkptWorld()
    made.runs(7, comment="ckpt=none")
    made.advance(300)
    yield made
    made.close()


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_job_without_a_method_is_told_that_it_starts_over(
    unsaved: CkptWorld, *, is_announced: bool
) -> None:
    node = unsaved.job(7).nodes[0]
    if is_announced:
        unsaved.interrupt(node)
        unsaved.advance(60)
    where = lost(unsaved)
    first, second = lines(unsaved)
    cause = "interruption notice" if is_announced else f"the machine of {node} was lost without"
    assert cause in first
    unsaved.advance(60)
    losses = [*of_moves([*unsaved.migrations(), *ends(unsaved)])]
    assert [loss.key for loss in losses] == ["lost/7/0"], "once, whoever knew it"
    assert second.startswith(f"slurm-elastic: it starts over on {where}: nothing had been saved, ")
    assert second.endswith(" minutes of its work must be done again")


def test_a_job_that_a_person_requeues_reads_nothing_of_us(unsaved: CkptWorld) -> None:
    unsaved.slurm.requeue(7)
    unsaved.until(lambda: again(unsaved))
    unsaved.advance(60)
    assert lines(unsaved) == []


def test_the_lines_of_a_move_are_one_message(unsaved: CkptWorld) -> None:
    """slurmctld sends two messages in threads of their own, so they often change places."""
    unsaved.take(unsaved.job(7).nodes[0])
    unsaved.until(lambda: len(told_lines(unsaved.slurm)) == 2)
    assert [name for name, _ in unsaved.slurm.updates].count("tell") == 1


def test_an_output_that_cannot_be_written_is_named_in_explain(
    unsaved: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SlurmError(("scontrol", "notify"), 1, "job notify failure")

    monkeypatch.setattr(unsaved.slurm, "tell", refuse)
    unsaved.take(unsaved.job(7).nodes[0])
    unsaved.until(lambda: "ckpt-not-told" in unsaved.told(7))


def test_a_line_that_hangs_holds_nobody_up(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new job may have no step for seconds that could write the line."""
    world.interrupt(world.job(7).nodes[0])
    world.until(lambda: bool(world.migrations()) and world.migrations()[0].is_over)
    (move,), begun, go_on = world.migrations(), threading.Event(), threading.Event()
    run = read_started_run(world.ckpt, move, world.job(7))
    assert run is not None

    def hang(*_: object) -> None:
        begun.set()
        assert go_on.wait(patience(60))

    monkeypatch.setattr(world.slurm, "tell", hang)
    writers = KeyedExecutor(1)
    notify_user(replace(world.ckpt, output_writers=writers), move, "n1", run)
    assert begun.wait(patience(60))
    go_on.set()
    writers.close()


def test_a_job_whose_node_cannot_use_its_image_is_requeued_to_another_node(
    world: CkptWorld,
) -> None:
    """Its launcher holds it and says so. Without a requeue it would start over there."""
    world.saver.origins[7] = Origin(image=0, why="no avx512f", is_unfit=True)
    world.take(world.job(7).nodes[0])
    world.until(lambda: world.job(7).restarts == 1 and bool(world.job(7).nodes))
    (unfit,) = world.job(7).nodes
    world.until(lambda: world.job(7).restarts == 2)
    world.until(lambda: f"{unfit} cannot continue it, other nodes may: no avx512f" in causes(world))
    world.saver.origins[7] = Origin(image=1)
    world.until(lambda: unfit in world.slurm.excluded_nodes(7))
    world.until(lambda: "RUNNING" in world.job(7).states)
    world.advance(300)
    assert world.job(7).restarts == 2


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "STOPPED"])
def test_a_job_is_requeued_from_a_node_that_cannot_use_its_image_in_each_state_with_processes(
    world: CkptWorld, state: str
) -> None:
    job = world.job(7)
    world.saver.origins[7] = Origin(image=0, why="no avx512f", is_unfit=True)
    world.slurm.set_job(7, state)
    run = run_of(job, choose_method(world.ckpt, job))
    UnfitNodes(world.ckpt)._requeue_if_unfit(run, "criu", {})
    assert world.job(7).restarts == 1


def silence(world: CkptWorld) -> str:
    """Job 7 runs again on a node whose root part reports nothing; the node."""
    world.saver.origins[7] = None
    world.saver.silent.add(7)
    world.take(world.job(7).nodes[0])
    world.until(lambda: world.job(7).restarts == 1 and bool(world.job(7).nodes))
    return world.job(7).nodes[0]


def test_a_job_whose_node_reports_no_run_of_it_is_requeued_to_another_node(
    world: CkptWorld,
) -> None:
    """As one without the root part: its script starts over there, although its image is good."""
    where = silence(world)
    world.until(lambda: world.job(7).restarts == 2, most=900)
    assert (
        f"{where} cannot continue it, other nodes may: its launcher has not reported"
        in " ".join(causes(world))
    )
    world.until(lambda: where in world.slurm.excluded_nodes(7))
    world.saver.origins[7] = Origin(image=1)
    world.saver.silent.clear()
    world.until(lambda: "RUNNING" in world.job(7).states)
    world.advance(ORIGIN_TIMEOUT_S + 300, step=10)
    assert world.job(7).restarts == 2


def test_a_job_with_a_large_image_leaves_a_node_that_reports_nothing(world: CkptWorld) -> None:
    """Its launcher waits there as long as we look: afterwards its script would start over."""
    size = 100 << 30
    large = [structs.replace(image, size=size) for image in world.saver._images[7]]
    world.saver._images[7] = large
    where = silence(world)
    most = ORIGIN_TIMEOUT_S + size / READ_BYTES_PER_S + 300
    world.advance(most, step=30)
    assert world.job(7).restarts == 2
    assert where in world.state.avoided_nodes()[7].nodes
    assert most < UNFIT_S == LOOK_FOR_S


def test_a_job_that_no_node_reports_is_requeued_three_times(world: CkptWorld) -> None:
    silence(world)
    world.advance(6 * ORIGIN_TIMEOUT_S, step=10)
    assert world.job(7).restarts == 1 + MAX_REQUEUES


def test_a_job_that_has_saved_since_is_requeued_three_times_again(world: CkptWorld) -> None:
    """A job that runs for weeks may get more than three unfit nodes, and continues between them."""
    unfit_nodes = UnfitNodes(world.ckpt)

    def restarts_on_unfit_nodes() -> int:
        before = world.job(7).restarts
        for _ in range(MAX_REQUEUES + 2):
            run = run_of(world.job(7), choose_method(world.ckpt, world.job(7)))
            # It continues for some seconds, and dies there.
            for origin in (Origin(image=1), Origin(image=0, why="no avx512f", is_unfit=True)):
                world.saver.origins[7] = origin
                world.slurm.set_job(7, "RUNNING")
                unfit_nodes._requeue_if_unfit(run, "criu", {})
        return world.job(7).restarts - before

    assert restarts_on_unfit_nodes() == MAX_REQUEUES
    newest = world.saver._images[7][0]
    world.saver._images[7].insert(0, structs.replace(newest, number=newest.number + 1))
    assert restarts_on_unfit_nodes() == MAX_REQUEUES


@pytest.mark.parametrize("why", ["its directory cannot be read", "it has no image", "it restores"])
def test_a_job_that_may_continue_where_it_is_stays_there(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "it restores":
        large = [structs.replace(image, size=1 << 40) for image in world.saver._images[7]]
        monkeypatch.setitem(world.saver._images, 7, large)
    if why == "it has no image":
        monkeypatch.setattr(world.saver, "images", lambda _: ())
    if why == "its directory cannot be read":

        def fail(_: JobRun) -> bool:
            raise CheckpointError("/shared cannot be read now")

        monkeypatch.setattr(world.saver, "is_silent", fail)
    silence(world)
    world.advance(2 * ORIGIN_TIMEOUT_S, step=10)
    assert world.job(7).restarts == 1


def avoids(world: CkptWorld) -> str:
    """Job 7 waits, and avoids the node that it had; the node."""
    world.saver.origins[7] = Origin(image=0, why="no avx512f", is_unfit=True)
    world.take(world.job(7).nodes[0])
    world.until(lambda: world.job(7).restarts == 1 and bool(world.job(7).nodes))
    (unfit,) = world.job(7).nodes
    world.slurm._wishes[7] = ((), 1)  # the other nodes have jobs
    world.until(lambda: unfit in world.slurm.excluded_nodes(7))
    world.saver.origins[7] = Origin(image=1)
    return unfit


def test_a_job_avoids_a_node_only_while_it_has_the_machine_that_could_not(
    world: CkptWorld,
) -> None:
    unfit = avoids(world)
    assert unfit in world.state.avoided_nodes()[7].nodes
    world.slurm.exclude_nodes(7, (unfit, "st9"))  # its user excludes another node
    world.stop_ckptman()
    world.start_ckptman()
    world.advance(60, step=5)
    assert world.slurm.excluded_nodes(7) == (unfit, "st9"), "also after a restart"
    world.until(lambda: world.slurm.excluded_nodes(7) == ("st9",))
    assert not [m for m in world.ledger.machines.live() if m.instance.node == unfit]
    assert not world.state.avoided_nodes()


def test_a_job_avoids_a_node_without_a_machine_for_an_hour(world: CkptWorld) -> None:
    unfit = avoids(world)
    world.state.put_avoided(AvoidedNodes(job=7, nodes={"st1": ""}))
    world.slurm.exclude_nodes(7, ("st1",))
    world.advance(AVOID_FOR_S / 2, step=30)
    assert world.slurm.excluded_nodes(7) == ("st1",)
    world.advance(AVOID_FOR_S, step=30)
    assert world.slurm.excluded_nodes(7) == ()
    assert unfit


def test_a_job_that_no_node_can_continue_is_left_a_node(world: CkptWorld) -> None:
    """It starts over after three tries. Without a node it would wait for ever."""
    for node in PUB:
        world.slurm.set_node(node, partitions=("pub",))
    unfit = world.job(7).nodes[0]
    others = tuple(node for node in PUB if node != unfit)
    world.state.put_avoided(AvoidedNodes(job=7, nodes=dict.fromkeys(others, "")))
    world.slurm.set_job(7, "PENDING", nodes=(), excluded=(*others, "st9"), partitions=("pub",))
    UnfitNodes(world.ckpt)._avoid(world.job(7), {unfit: ""})
    assert world.slurm.excluded_nodes(7) == ("st9",)
    assert not world.state.avoided_nodes()


def test_the_record_of_a_job_that_is_over_goes(world: CkptWorld) -> None:
    world.state.put_avoided(AvoidedNodes(job=99, nodes={"pub1": ""}))
    world.advance(10)
    assert not world.state.avoided_nodes()


@pytest.mark.parametrize(
    ("state", "more_restarts"), [("COMPLETED", 0), ("COMPLETING", 0), ("RUNNING", 1)]
)
def test_a_job_that_changed_during_the_look_at_its_image_is_not_requeued(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, state: str, more_restarts: int
) -> None:
    """It would run once more, or its next run would end."""
    requeues: list[int] = []

    def look(run: JobRun) -> Origin:
        if not requeues:
            requeues.append(world.slurm.calls["requeue"])
            world.slurm.set_job(7, state, restarts=run.attempt + more_restarts)
        return Origin(image=1, is_unfit=len(requeues) == 1 and run.attempt == 1)

    world.take(world.job(7).nodes[0])
    world.until(lambda: world.job(7).restarts == 1)
    monkeypatch.setattr(world.saver, "origin", look)
    world.until(lambda: bool(requeues))
    world.advance(10)
    assert world.slurm.calls["requeue"] == requeues[0]


def causes(world: CkptWorld) -> list[str]:
    return [str(decision.cause) for decision in world.ledger.decisions.about("job:7")]
