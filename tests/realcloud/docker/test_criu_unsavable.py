"""Real CRIU on real Slurm 24.11: what cannot be saved is known shortly after its start, and a job goes
on after its own time limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_elastic.policies.checkpoint.threat import ThreatCause

from .criu_world import UNSAVABLE, needed, started
from .engine import Engine
from .served_world import ServedWorld

pytestmark = [pytest.mark.e2e, pytest.mark.release]


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[ServedWorld]:
    with ServedWorld(docker_engine, trixie) as running:
        needed(running)
        running.serve(policy="on_notice", more="probe_after: 5s, at_time_limit: on_request")
        yield running


def test_a_job_that_cannot_be_saved_knows_it_before_it_matters(world: ServedWorld) -> None:
    job = world.sbatch(UNSAVABLE, "-o", "out-%j")
    world.standing(job)
    world.wait_for(
        lambda: any("it would help to" in line for line in world.output(job)),
        f"job {job} reads why in its output",
    )
    (said,) = (line for line in world.output(job) if "this job cannot be saved" in line)
    assert "network connection" in said
    comment = world.slurm("scontrol", "-o", "show", "job", str(job)).stdout
    assert "cannot be saved: it has a network connection open" in comment
    listed = " ".join(world.ckpt("list").split())
    assert "Jobs that cannot be saved" in listed
    world.wait_more(job)
    world.end(job)
    world.wait_for(lambda: "Jobs that cannot be saved" not in world.ckpt("list"), "it is over")


def test_a_job_that_can_be_saved_is_once_though_nothing_threatens_it(world: ServedWorld) -> None:
    job = started(world)
    world.wait_for(lambda: world.saved(job), f"job {job} is saved")
    world.wait_more(job)
    world.end(job)


def test_each_step_is_done_once_beyond_the_time_limit(world: ServedWorld) -> None:
    job = started(world, "--time=1", "--comment=ckpt=criu,limit=3")
    move = world.moved(job, patience=300.0)
    assert move.cause is ThreatCause.LIMIT
    assert move.image is not None
    world.standing(job)
    world.wait_more(job)
    world.wait_for(
        lambda: any("with its full time limit" in line for line in world.output(job)),
        f"job {job} reads what happened",
    )
    shown = world.end(job)
    assert int(shown["Restarts"]) >= 1
    assert shown["TimeLimit"] == "00:01:00"
