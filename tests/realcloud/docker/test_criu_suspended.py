"""Real CRIU on real Slurm 24.11: a job that an operator has suspended is saved as it is, moved by a
notice, and suspended where it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from .criu_world import gone, needed, started
from .engine import Engine
from .served_world import ServedWorld

pytestmark = [pytest.mark.e2e, pytest.mark.release]

NODES = ("n1", "n2", "n3")
STOPPED = 5.0
"""Seconds from the command until all processes of a job are stopped: slurmstepd takes two."""


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[ServedWorld]:
    with ServedWorld(docker_engine, trixie) as running:
        needed(running)
        yield running


@pytest.fixture(autouse=True)
def all_nodes(world: ServedWorld) -> None:
    world.serve(policy="on_notice")
    world.calm(*NODES)


def suspended(world: ServedWorld) -> tuple[int, int]:
    """A job that was suspended some time ago, and the steps that it has done."""
    job = started(world)
    world.slurm("scontrol", "suspend", str(job))
    time.sleep(STOPPED)
    return job, stands(world, job)


def stands(world: ServedWorld, job: int) -> int:
    """Its steps, of which it does no more: it is suspended, its processes on the node, too."""
    world.wait_job(job, "SUSPENDED")
    time.sleep(STOPPED)
    done = len(world.steps(job))
    time.sleep(1.0)
    assert len(world.steps(job)) == done
    assert world.job(job)["JobState"] == "SUSPENDED"
    return done


def goes_on(world: ServedWorld, job: int) -> None:
    """Whoever resumes it finds it at work, and it comes to its end with all its work."""
    world.slurm("scontrol", "resume", str(job))
    world.wait_more(job)


def test_at_a_notice_it_is_saved_and_suspended_where_it_goes_on(world: ServedWorld) -> None:
    job, done = suspended(world)
    node = world.job(job)["NodeList"]
    world.ckpt("notice", node, "--in", "2m")
    moved = world.moved(job)
    assert moved.image is not None
    assert moved.image.attempt == 0
    now = stands(world, job)
    assert done <= now <= done + 60, "it worked for moments alone"
    shown = world.job(job)
    assert shown["Restarts"] == "1"
    assert shown["NodeList"] != node
    told = world.told(job)
    assert "it is suspended, and is resumed for the time of its save" in told
    assert "it is suspended again" in told
    goes_on(world, job)
    assert world.end(job)["Restarts"] == "1"
    gone(world, job)


def test_a_sudo_that_has_stopped_itself_at_a_resume_is_woken(world: ServedWorld) -> None:
    """It does so in one of twelve resumes, and the job would never come to its end."""
    job = started(world)
    node = world.nodes()[world.job(job)["NodeList"]]
    node.run(["pkill", "-STOP", "-x", "sudo"])
    world.wait_more(job)
    world.wait_for(
        lambda: "T" not in node.run(["ps", "-C", "sudo", "-o", "stat="]).stdout, "sudo goes on"
    )
    world.end(job)


def test_a_service_that_is_killed_on_the_way_leaves_none_at_work(world: ServedWorld) -> None:
    for point in ("suspended.resumed", "migration.requeued"):
        world.serve(policy="on_notice", fault=point)
        job, _ = suspended(world)
        node = world.job(job)["NodeList"]
        world.ckpt("notice", node, "--in", "2m")
        world.wait_for(lambda: not world.serves(), f"it was killed at {point}")
        world.serve(policy="on_notice")
        world.moved(job)
        stands(world, job)
        goes_on(world, job)
        assert world.end(job)["Restarts"] == "1"
        world.calm(*NODES)


def test_it_is_saved_where_it_stays(world: ServedWorld) -> None:
    """As an operator asks for it, and once by a policy of periodic saves."""
    job, _ = suspended(world)
    world.ckpt("now", str(job))
    world.wait_for(lambda: world.saved(job), "it is saved")
    stands(world, job)
    goes_on(world, job)
    time.sleep(65)
    world.slurm("scontrol", "suspend", str(job))
    world.serve(policy="first_of(on_notice, daly(mtti=100, least=5))")
    world.wait_for(lambda: len(world.saved(job)) >= 2, "it is saved once more")
    stands(world, job)
    before = len(world.saved(job))
    time.sleep(60)
    assert len(world.saved(job)) == before, "there is no work that another save would keep"
    goes_on(world, job)
    assert world.end(job)["Restarts"] == "0"
    gone(world, job)
