"""CRIU on real Slurm 24.11: plain ``sbatch``, containers as separate hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .criu_world import CriuWorld
from .engine import Engine

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[CriuWorld]:
    with CriuWorld(docker_engine, trixie) as running:
        yield running


@pytest.fixture(autouse=True)
def all_nodes(world: CriuWorld) -> None:
    world.resume("n1", "n2", "n3")
    world.wait_for(
        lambda: world.slurm("sinfo", "-h", "-t", "idle,mix", "-o", "%D").stdout.split() == ["3"],
        "all nodes are up",
    )


def gone(world: CriuWorld, job: int) -> None:
    world.wait_for(lambda: not world.left(job), f"nothing is left of job {job}")


def test_an_announced_move_keeps_each_step_once_and_the_exit_code(world: CriuWorld) -> None:
    job = world.counter(code=7, steps=40)
    world.standing(job)
    world.wait_step(job, 2)
    nodes = []
    for again in (8, 16):
        saved = world.ask(job, "stop")
        assert saved["ok"]["size"] > 0, saved
        assert world.job(job)["JobState"] == "RUNNING"  # held: Slurm sees no end
        nodes.append(world.move(job))
        world.standing(job)
        world.wait_step(job, again)
    shown = world.wait_job(job, "FAILED")
    assert shown["ExitCode"] == "7:0"
    assert shown["Restarts"] == "2"
    assert len({*nodes, shown["NodeList"]}) == 3  # three hosts
    assert world.steps(job) == list(range(40))
    assert world.output(job)[0] == "start restart=0 args="
    assert world.output(job)[-1] == "finished"
    gone(world, job)


def test_a_power_cut_costs_what_came_after_the_last_image(world: CriuWorld) -> None:
    job = world.counter(steps=30)
    world.standing(job)
    world.wait_step(job, 3)
    assert world.ask(job, "go")["ok"]["number"] == 1
    world.wait_step(job, 6)
    assert world.ask(job, "go")["ok"]["number"] == 2
    assert [image["number"] for image in world.ask(job, "images")["ok"]] == [2, 1]
    world.wait_step(job, 9)
    lost = world.job(job)["NodeList"]
    world.nodes()[lost].kill()
    world.slurm("scontrol", "update", f"nodename={lost}", "state=down", "reason=lost")
    world.hurry(job)
    world.wait_job(job)
    assert world.steps(job) == list(range(30))
    assert world.output(job)[0] == "start restart=0 args="
    gone(world, job)
    world.start_node(lost)


def test_what_cannot_be_saved_goes_on_unharmed(world: CriuWorld) -> None:
    script = """#!/bin/bash
exec 3<>/dev/tcp/head/6817 || exit 9
for ((step = 0; step < 16; step++)); do echo "step $step"; sleep 0.5; done
"""
    job = world.sbatch(script, "-o", "out-%j")
    world.standing(job)
    world.wait_step(job, 2)
    assert "no checkpoint" in world.ask(job, "stop")["error"]
    assert world.ask(job, "images")["ok"] == []
    world.wait_job(job)
    assert world.steps(job) == list(range(16))
    gone(world, job)


def test_a_held_job_can_go_on_where_it_is(world: CriuWorld) -> None:
    job = world.counter(steps=16)
    world.standing(job)
    world.wait_step(job, 2)
    assert "ok" in world.ask(job, "stop")
    assert world.ask(job, "release") == {"ok": None}
    shown = world.wait_job(job)
    assert shown["Restarts"] == "0"
    assert world.steps(job) == list(range(16))
    gone(world, job)


@pytest.mark.parametrize("held", [True, False])
def test_scancel_leaves_nothing(world: CriuWorld, held: bool) -> None:
    job = world.counter(steps=4000)
    world.standing(job)
    world.wait_step(job, 1)
    assert "ok" in world.ask(job, "stop" if held else "go")
    world.slurm("scancel", str(job))
    world.wait_job(job, "CANCELLED")
    gone(world, job)


def test_signals_reach_the_script_once(world: CriuWorld) -> None:
    job = world.counter(steps=24)
    world.standing(job)
    world.wait_step(job, 1)
    world.slurm("scancel", "--signal=USR1", "--batch", str(job))
    world.wait_for(lambda: "got USR1" in world.output(job), "the signal came")
    world.ask(job, "stop")
    world.move(job)
    world.standing(job)
    world.wait_step(job, 8)
    world.slurm("scancel", "--signal=USR1", "--batch", str(job))
    world.wait_for(lambda: world.output(job).count("got USR1") == 2, "and after the move")
    world.wait_job(job)
    assert world.output(job).count("got USR1") == 2
    gone(world, job)


def test_tasks_of_an_array_are_saved_apart(world: CriuWorld) -> None:
    job = world.counter("--array=1-2", steps=24)

    def tasks() -> list[int]:
        shown = world.slurm("squeue", "-h", "-t", "R", "-o", "%A", "-j", str(job)).stdout.split()
        return sorted(int(one) for one in shown) if len(shown) == 2 else []

    for task in world.wait_for(tasks, "both tasks run"):
        world.standing(task)
        world.wait_step(task, 1)
        assert "ok" in world.ask(task, "stop")
        world.move(task)
        world.wait_job(task)
        assert world.steps(task) == list(range(24))
        gone(world, task)


def test_jobs_without_a_launcher_are_as_they_were(world: CriuWorld) -> None:
    for options in (("--comment=ckpt=none",), ("-N2",)):
        job = world.sbatch('#!/bin/bash\necho "$0"\n', "-o", "out-%j", *options)
        world.wait_job(job)
        assert "slurm_script" in world.output(job)[0]
    interactive = world.slurm("srun", "--chdir=/tmp", "id", "-un", user="alice")
    assert interactive.stdout.strip() == "alice"
