"""What a program keeps where it goes on, what it does not keep, and what is refused for that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .criu_world import CriuWorld, gone, needed
from .engine import Engine

pytestmark = pytest.mark.e2e

PINNED = """\
#!/usr/bin/python3
import os, threading, time
number, cpus = os.environ["SLURM_JOB_ID"], sorted(os.sched_getaffinity(0))

def work():
    os.sched_setaffinity(0, {cpus[0]})
    while True:
        time.sleep(0.1)
        if os.sched_getaffinity(0) != {cpus[0]}:
            print("the thread has", os.sched_getaffinity(0), flush=True)

threading.Thread(target=work, daemon=True).start()
os.sched_setaffinity(0, {cpus[1]})
step = 0
while not os.path.exists(f"end-{number}"):
    time.sleep(0.2)
    if os.sched_getaffinity(0) != {cpus[1]}:
        print("it has", os.sched_getaffinity(0), flush=True)
    print("step", step, flush=True)
    step += 1
print("finished")
"""


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[CriuWorld]:
    with CriuWorld(docker_engine, trixie) as running:
        needed(running)
        yield running


@pytest.fixture(autouse=True)
def all_nodes(world: CriuWorld) -> None:
    world.resume("n1", "n2", "n3")
    world.wait_for(
        lambda: world.slurm("sinfo", "-h", "-t", "idle,mix", "-o", "%D").stdout.split() == ["3"],
        "all nodes are up",
    )


def moved(world: CriuWorld, script: str) -> list[str]:
    """What the program says besides its steps that is moved once, and comes to its end."""
    job = world.sbatch(script, "-o", "out-%j")
    world.standing(job)
    world.wait_more(job)
    assert "ok" in (saved := world.ask(job, "stop")), saved
    world.move(job)
    world.standing(job)
    world.wait_more(job)
    (world.shared / "jobs" / f"end-{job}").touch()
    shown = world.wait_job(job, "COMPLETED")
    assert shown["Restarts"] == "1"
    assert world.steps(job) == list(range(len(world.steps(job))))
    said = [line for line in world.output(job) if not line.startswith("step ")]
    gone(world, job)
    return said


def test_threads_stay_bound_to_the_cpus_that_the_program_chose(world: CriuWorld) -> None:
    said = moved(world, PINNED)
    assert said[-1:] == ["finished"]
    assert len(said) <= 3, f"no longer than until they were bound again: {said}"
