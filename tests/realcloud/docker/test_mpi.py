"""MPI jobs of three nodes, of which one is taken away: they save themselves, all ranks or none, and go
on on other nodes with the answer of a run that nobody interrupted. Real Slurm 24.11, OpenMPI, MPICH.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .criu_world import needed
from .engine import Engine, NoEngine
from .mpi_world import COMMENT, HOLD, RANKS, STARTS, STEPS, MpiWorld, image

pytestmark = [pytest.mark.e2e, pytest.mark.release]

NODES = ("n1", "n2", "n3", "n4")


@pytest.fixture(scope="module")
def world(docker_engine: Engine) -> Iterator[MpiWorld]:
    try:
        found = image(docker_engine, "trixie")
    except NoEngine as reason:
        pytest.skip(f"no image with MPI: {reason}")
    with MpiWorld(docker_engine, found) as running:
        assert isinstance(running, MpiWorld)
        needed(running)
        running.serve(policy="on_notice")
        yield running


@pytest.fixture(autouse=True)
def all_nodes(world: MpiWorld) -> None:
    for lost in sorted({*NODES} - world.nodes().keys()):  # a test that failed has left it so
        world.replace_node(lost)
    world.calm(*NODES)


@pytest.fixture(scope="module")
def answers(world: MpiWorld) -> dict[str, str]:
    """The answers of runs that nobody interrupts, by MPI."""
    world.calm(*NODES)
    found = {}
    for name, start in STARTS.items():
        job = world.solver(start, "--comment=ckpt=none", most=STEPS)
        world.wait_job(job)
        assert world.twice(job) == []
        found[name] = world.answer(job)
    return found


@pytest.mark.parametrize("name", STARTS)
def test_one_of_three_nodes_is_taken_twice_and_the_answer_is_the_same(
    world: MpiWorld, answers: dict[str, str], name: str
) -> None:
    """First a node that has a rank alone, then the one that has the batch script, too."""
    job = world.solver(STARTS[name], COMMENT)
    world.wait_held(job)
    world.keep_set(job)
    for moves, batch in ((1, False), (2, True)):
        world.let_go(job, (moves + 1) * HOLD)
        before = world.node_list(job)
        (lost, *_) = [n for n in before if (n == world.batch_host(job)) == batch]
        world.ckpt("notice", lost, "--in", "2m", "--reason", "interruption")
        moved = world.moved(job, moves)
        assert moved.image is not None
        assert moved.threatened == (lost,)
        assert set(moved.run.nodes) == set(before)
        assert set(world.node_list(job)) == set(NODES) - {lost}
        world.nodes()[lost].kill()
        world.wait_begun(job, moves + 1)
        world.replace_node(lost)
    world.let_go(job)
    assert world.wait_job(job)["Restarts"] == "2"
    assert world.answer(job) == answers[name]
    assert world.twice(job) == []
    begun = world.begun(job)
    assert [len(hosts) for _, hosts in begun] == [RANKS] * 3
    assert [step for step, _ in begun] == [0, 2 * HOLD, 3 * HOLD]


@pytest.mark.parametrize(("name", "late"), [("openmpi", True), ("mpich", False)])
def test_a_node_that_is_lost_without_a_word_costs_the_steps_since_the_last_whole_set(
    world: MpiWorld, answers: dict[str, str], name: str, late: bool
) -> None:
    """Slurm knows of it before the other ranks, or long after they have ended with an error."""
    job = world.solver(STARTS[name], COMMENT)
    world.wait_held(job)
    world.keep_set(job)
    world.let_go(job, 2 * HOLD)
    lost = next(n for n in world.node_list(job) if n != world.batch_host(job))
    world.nodes()[lost].kill()
    if late:
        world.wait_for(lambda: world.ends(job), "the other ranks end with an error")
        assert world.job(job)["JobState"] == "RUNNING"
    world.slurm("scontrol", "update", f"nodename={lost}", "state=down", "reason=lost")
    world.hurry(job)
    world.wait_begun(job, 2)
    world.replace_node(lost)
    world.let_go(job)
    assert world.wait_job(job)["Restarts"] == "1"
    assert world.answer(job) == answers[name]
    (_, first), (step, second) = world.begun(job)
    assert lost in first - second
    assert step == HOLD
    assert world.twice(job) == list(range(HOLD, 2 * HOLD))


def test_a_rank_that_cannot_save_keeps_all_at_work_and_the_last_whole_set_counts(
    world: MpiWorld, answers: dict[str, str]
) -> None:
    """At the notice; at the last moment the job is requeued from the set before."""
    job = world.solver(STARTS["openmpi"], COMMENT)
    world.wait_held(job)
    world.keep_set(job)
    before = (world.place(job) / "complete").read_text()
    world.let_go(job, 2 * HOLD)
    batch = world.batch_host(job)
    poor, lost = [n for n in world.node_list(job) if n != batch]
    world.make_read_only(poor, job)
    world.ckpt("notice", lost, "--in", "60s")
    world.wait_for(
        lambda: any(line.startswith("could not save") for line in world.output(job)), "it is tried"
    )
    assert world.job(job)["JobState"] == "RUNNING"
    assert (world.place(job) / "complete").read_text() == before
    assert world.moved(job).image is not None
    assert "showed no change" in world.told(job)
    world.nodes()[poor].run(["umount", "-l", f"/shared/jobs/heat-{job}"])
    world.wait_begun(job, 2)
    assert f"{world.begun(job)[1][0]} {RANKS}" == before.strip()
    world.let_go(job)
    world.wait_job(job)
    assert world.answer(job) == answers["openmpi"]
