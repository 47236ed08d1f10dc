"""Real CRIU on real Slurm 24.11 and 26.05: a step (srun) of a job is in no image, so there is none while
one runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .criu_world import COUNTER, needed
from .engine import Engine
from .served_world import ServedWorld

pytestmark = [pytest.mark.e2e, pytest.mark.release]

STEPS = COUNTER.replace("CODE", "0").replace(
    "for",
    """srun --overlap sh -c 'until [ -e "over-$SLURM_JOB_ID" ]; do sleep 0.2; done' &\nfor""",
    1,
)
"""Counts while a step runs, until the file over-JOB is there."""
SAID = "it runs a step (srun), which criu does not save"


@pytest.fixture(scope="module", params=["trixie", pytest.param("forky", marks=pytest.mark.release)])
def world(docker_engine: Engine, request: pytest.FixtureRequest) -> Iterator[ServedWorld]:
    with ServedWorld(docker_engine, request.getfixturevalue(request.param)) as running:
        needed(running)
        running.serve(policy="on_notice", more="probe_after: 3s")
        yield running


def stepping(world: ServedWorld, *options: str) -> int:
    """A job whose step runs."""
    job = world.sbatch(STEPS, "-o", "out-%j", *options)
    world.standing(job)
    world.wait_for(lambda: steps(world, job) == [f"{job}.0"], f"job {job} has a step")
    return job


def steps(world: ServedWorld, job: int) -> list[str]:
    """The job's steps besides its script."""
    listed = world.slurm("squeue", "-h", "--steps", "-o", "%i", "-j", str(job)).stdout.split()
    return [step for step in listed if not step.endswith((".batch", ".extern"))]


def test_a_job_is_saved_between_its_steps_and_never_during_one(world: ServedWorld) -> None:
    job = stepping(world, "--comment=ckpt=criu,tcp=close")
    for verb in ("go", "stop"):
        for options in ({}, {"tcp": "close"}):
            said = world.ask(job, verb, **options)
            assert said == {"error": f"job {job}: no checkpoint: {SAID}: {job}.0"}
    world.wait_for(lambda: "it would help to" in "".join(world.output(job)), f"job {job} reads why")
    assert any(SAID in line for line in world.output(job))
    (help_,) = (line for line in world.output(job) if "it would help to" in line)
    assert "start the program without srun" in help_
    assert "tcp=close" not in help_
    assert not world.saved(job)
    world.wait_more(job)
    (world.shared / "jobs" / f"over-{job}").touch()
    world.wait_for(lambda: not steps(world, job), f"the step of job {job} is over")
    world.wait_for(lambda: "ok" in world.ask(job, "go"), f"job {job} is saved")
    assert world.ask(job, "stop")["ok"]["number"]
    world.move(job)
    world.standing(job)
    world.wait_more(job)
    world.end(job)


def test_a_wrong_word_is_an_error_that_names_the_right_one(world: ServedWorld) -> None:
    for comment, right in {
        "ckpt=krui": "expected one of none, signal, criu",
        "ckpt=criu,tcp=colse": "tcp=colse: expected one of keep, close",
        "chkpt=criu": "expected ckpt=criu",
    }.items():
        words = ["-p", "static", f"--comment={comment}"]
        for command in (["sbatch", "--wrap", "true"], ["srun", "true"]):
            done = world.slurm(command[0], *words, *command[1:], user="alice", check=False)
            assert done.returncode != 0
            assert f"slurm-elastic: --comment={comment}: {right}" in done.stderr


def test_who_starts_steps_or_asks_for_two_nodes_reads_at_submission_what_is_not_saved(
    world: ServedWorld,
) -> None:
    words = ["sbatch", "--chdir=/shared/jobs", "-o", "/dev/null"]
    asked = ["-N2", "--comment=ckpt=criu", "--wrap", "sleep 600"]
    two = world.slurm(*words, *asked, user="alice")
    assert "criu saves batch jobs of one node. It would help to ask for one node" in two.stderr
    one = world.slurm(*words, "--wrap", "srun sleep 600", user="alice")
    assert "steps (srun) are not saved by criu" in one.stderr
    job = two.stdout.split()[-1]
    world.wait_for(
        lambda: "criu saves batch jobs of one node, and this one has 2" in world.told(int(job)),
        f"the service says why job {job} is not saved",
    )
    world.slurm("scancel", job, one.stdout.split()[-1])


def test_a_step_from_elsewhere_is_one_of_the_job_too(world: ServedWorld) -> None:
    job = world.counter()
    world.standing(job)
    words = ["srun", f"--jobid={job}", "--overlap", "sleep", "600"]
    world.head.start(words, "other.log", user="alice")
    world.wait_for(lambda: steps(world, job), f"job {job} has a step")
    assert SAID in world.ask(job, "go")["error"]
    world.slurm("scancel", f"{job}.0")
    world.wait_for(lambda: "ok" in world.ask(job, "go"), f"job {job} is saved")
    world.end(job)
