"""slurm-elastic-ckptman hears a notice and moves jobs by CRIU: real Slurm 24.11, plain ``sbatch``,
containers as separate hosts, the default policy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from .criu_world import UNSAVABLE, gone, needed, started
from .engine import Engine
from .served_world import ServedWorld, swept
from .world import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.release]

NODES = ("n1", "n2", "n3")


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[ServedWorld]:
    with ServedWorld(docker_engine, trixie) as running:
        needed(running)
        running.serve()
        yield running


@pytest.fixture(autouse=True)
def all_nodes(world: ServedWorld) -> None:
    world.calm(*NODES)


def test_a_notice_saves_moves_and_brings_back_twice(world: ServedWorld) -> None:
    """Though the user had named the first node: who insisted would wait for a drained one for ever."""
    job = started(world, "-w", "n1", code=5)
    for times in (1, 2):
        node = world.job(job)["NodeList"]
        world.ckpt("notice", node, "--in", "2m", "--reason", "interruption")
        world.moved(job, times)
        assert world.job(job)["NodeList"] != node
        world.standing(job)
        world.wait_more(job)
    assert world.end(job, "FAILED")["ExitCode"] == "5:0"
    assert world.told(job).count("ckpt-back") == 2, world.told(job)
    gone(world, job)


def test_what_cannot_be_saved_starts_anew_only_when_its_node_is_lost(world: ServedWorld) -> None:
    job = world.sbatch(UNSAVABLE, "-o", "out-%j")
    world.standing(job)
    world.wait_more(job)
    world.ckpt("notice", world.job(job)["NodeList"], "--in", "2m")
    world.wait_for(lambda: "no image" in world.told(job), "it is said aloud")
    world.wait_more(job)
    assert world.job(job)["Restarts"] == "0"
    lost = world.lose(job)
    assert world.moved(job).image is None
    world.wait_for(lambda: world.own_output(job)[:1] == ["start restart=1 args="], "it starts anew")
    world.wait_more(job)
    (world.shared / "jobs" / f"end-{job}").touch()
    assert world.wait_job(job)["Restarts"] == "1"
    steps = world.steps(job)
    assert steps == list(range(len(steps)))
    world.start_node(lost)
    gone(world, job)


GIGABYTE = """\
#!/usr/bin/python3
import hashlib, os, time
print("start restart=0 args=", flush=True)
data = os.urandom(1 << 30)
first = hashlib.sha256(data).hexdigest()
step = 0
while not os.path.exists(f"end-{os.environ['SLURM_JOB_ID']}"):
    print("step", step, flush=True)
    step += 1
    time.sleep(0.2)
same = hashlib.sha256(data).hexdigest() == first
print("finished" if same else "changed")
"""


def test_a_gigabyte_moves_within_the_notice(world: ServedWorld) -> None:
    job = world.sbatch(GIGABYTE, "-o", "out-%j")
    world.standing(job)
    world.wait_more(job)
    node = world.job(job)["NodeList"]
    world.ckpt("notice", node, "--in", "5m")  # a busy machine takes its time
    moved = world.moved(job, patience=2 * PATIENCE)
    assert moved.image is not None
    assert moved.image.size > 1 << 30
    assert moved.deadline is not None
    assert moved.reached["saved"] < moved.deadline
    assert world.job(job)["NodeList"] != node
    assert world.end(job)["Restarts"] == "1"
    gone(world, job)


def test_all_tasks_of_an_array_move_off_two_machines_at_once(world: ServedWorld) -> None:
    """Each is saved and requeued by itself: to scontrol the array's number is all of its tasks."""
    array = world.counter("--array=1-4", "--mem=100")
    tasks = world.wait_for(
        lambda: found if len(found := world.tasks(array)) == 4 else [], "all run"
    )
    for task in tasks:
        world.standing(task)
        world.wait_more(task)
    before = {task: world.job(task)["NodeList"] for task in tasks}
    left = sorted(set(before.values()))
    assert len(left) == 2, before
    for node in left:
        world.ckpt("notice", node, "--in", "2m", "--reason", "two at once")
    world.wait_for(lambda: all(world.saved(task) for task in tasks), "all are saved")
    # The third machine has room for two of them; the others wait, saved, for this one.
    world.ckpt("notice", left[0], "--withdraw")
    for task in tasks:
        move = world.moved(task)
        assert move.image is not None
        assert (move.image.job, move.image.label) == (task, world.name(task))
        assert move.run.label == world.name(task)
        assert move.threatened == (before[task],)
        world.standing(task)
        assert world.job(task)["NodeList"] != left[1]
    for task in tasks:
        assert world.end(task)["Restarts"] == "1"
        gone(world, task)


def test_scancel_of_a_saved_job_leaves_nothing(world: ServedWorld) -> None:
    """One that was saved where it is, and one that was moved."""
    job = started(world)
    world.ckpt("now", str(job))
    world.wait_for(lambda: world.saved(job), "it is saved")
    moved = started(world)
    world.ckpt("notice", world.job(moved)["NodeList"], "--in", "2m")
    world.moved(moved)
    world.standing(moved)
    for one in (job, moved):
        world.slurm("scancel", str(one))
        world.wait_job(one, "CANCELLED")
        gone(world, one)
        world.wait_for(lambda n=one: not world.saved(n), "the service has forgotten its images")
    assert json.loads(world.ckpt("list", "--json"))["saved"] == []


def test_scancel_of_a_saved_job_that_waits_leaves_nothing(world: ServedWorld) -> None:
    """Nobody drives it on any node: its images are given to the sweeper."""
    job = started(world)
    node = world.job(job)["NodeList"]
    for other in set(NODES) - {node}:
        world.slurm("scontrol", "update", f"nodename={other}", "state=drain", "reason=full")
    world.ckpt("notice", node, "--in", "2m")
    world.wait_for(lambda: world.job(job)["Restarts"] == "1", "it is requeued")
    world.wait_job(job, "PENDING")
    assert world.saved(job)
    world.slurm("scancel", str(job))
    world.wait_job(job, "CANCELLED")
    world.wait_for(lambda: not world.saved(job), "the service has given its images up")
    assert [r.step for r in world.migrations(job)] == ["ended"]
    world.wait_for(lambda: "ckpt-removed" in world.told(job), "it is said")
    swept(world, job)


def test_scancel_while_the_service_moves_a_job_leaves_nothing(world: ServedWorld) -> None:
    """Between the save and the requeue, when the job is held: the service dies at that moment."""
    job = started(world)
    world.serve(fault="migration.before-requeue")
    try:
        world.ckpt("notice", world.job(job)["NodeList"], "--in", "2m")
        world.wait_for(lambda: not world.serves(), "the service dies with the job held")
        assert world.state_of(job) == "held"
        assert world.job(job)["JobState"] == "RUNNING"
        world.slurm("scancel", str(job))
        world.wait_job(job, "CANCELLED")
        swept(world, job)
    finally:
        world.serve()
    world.wait_for(lambda: [r.step for r in world.migrations(job)] == ["ended"], "that is noticed")
    world.wait_for(lambda: not world.saved(job), "the service has forgotten its images")
    assert world.job(job)["Restarts"] == "0"
