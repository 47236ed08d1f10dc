"""A save and a move that the program does not notice: its clocks, its children and its signals, on
nodes of which some have run for longer than others.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .criu_world import CriuWorld, gone, needed
from .engine import Engine

pytestmark = [pytest.mark.e2e, pytest.mark.release]

WAITS = """\
#!/usr/bin/python3
import asyncio, os, queue, threading, time
number = os.environ["SLURM_JOB_ID"]
event, empty, until = threading.Event(), queue.Queue(), time.monotonic() + 3600
boottime, last = time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic()
step = 0
while not os.path.exists(f"end-{number}"):
    asyncio.run(asyncio.sleep(0.2))
    event.wait(0.2)
    try:
        empty.get(timeout=0.2)
    except queue.Empty:
        pass
    now = time.monotonic()
    if not last <= now < until:
        print("another clock", flush=True)
    if not boottime < time.clock_gettime(time.CLOCK_BOOTTIME) < boottime + 3600:
        print("another time since the boot", flush=True)
    print("step", step, flush=True)
    last, step = now, step + 1
print("finished")
"""

ZOMBIE = """\
#!/usr/bin/python3
import os, time
number = os.environ["SLURM_JOB_ID"]
child = os.fork()
if child == 0:
    os._exit(7)
step = 0
while not os.path.exists(f"end-{number}"):
    print("step", step, flush=True)
    step += 1
    time.sleep(0.2)
print("it ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("finished")
"""

SIGNALS = """\
#!/bin/bash
trap 'echo CONT' CONT
bash -c 'trap "echo the child has CONT" CONT; while :; do read -t 1; done </dev/zero' &
child=$!
sleep 1
kill -STOP $child
until [ "$(sed 's/.*) //; s/ .*//' /proc/$child/stat)" = T ]; do sleep 0.1; done
for ((step = 0; ; step++)); do
    [ ! -e "end-$SLURM_JOB_ID" ] || break
    state=$(sed 's/.*) //; s/ .*//' /proc/$child/stat)
    [ "$state" = T ] || echo "the child is $state"
    echo "step $step"
    sleep 0.2
done
disown $child; kill -KILL $child
echo finished
"""


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[CriuWorld]:
    with CriuWorld(docker_engine, trixie) as running:
        needed(running)
        yield running


@pytest.fixture(autouse=True)
def all_nodes(world: CriuWorld) -> None:
    world.all_up()


def moved(world: CriuWorld, script: str, moves: int) -> list[str]:
    """The words of a program that is saved beside its work, and then moved so often."""
    job = world.sbatch(script, "-o", "out-%j")
    world.standing(job)
    world.wait_more(job)
    assert "ok" in (saved := world.ask(job, "go")), saved
    world.wait_more(job)
    nodes = [world.job(job)["NodeList"]]
    for _ in range(moves):
        world.resume("n1", "n2", "n3")
        saved = world.ask(job, "stop")
        assert "ok" in saved, saved
        world.move(job)
        world.standing(job)
        world.wait_more(job)
        nodes.append(world.job(job)["NodeList"])
    (world.shared / "jobs" / f"end-{job}").touch()
    shown = world.wait_job(job, "COMPLETED")
    assert shown["Restarts"] == str(moves)
    steps = world.steps(job)
    assert steps == list(range(len(steps)))
    assert len(set(nodes)) > 1
    said = [line for line in world.output(job) if not line.startswith("step ")]
    gone(world, job)
    return said


def test_what_waits_by_the_clock_waits_as_long_as_on_one_machine(world: CriuWorld) -> None:
    uptimes = {
        name: float(
            host.run([*world.clocks(name).split(), "cat", "/proc/uptime"]).stdout.split()[0]
        )
        for name, host in world.nodes().items()
    }
    assert max(uptimes.values()) - min(uptimes.values()) > 400_000
    assert moved(world, WAITS, 3) == ["finished"]


def test_a_child_that_has_ended_is_told_of_after_two_moves(world: CriuWorld) -> None:
    assert moved(world, ZOMBIE, 2) == ["it ended with 7", "finished"]


def test_a_stopped_child_stays_stopped_and_nobody_gets_a_signal(world: CriuWorld) -> None:
    assert moved(world, SIGNALS, 2) == ["finished"]
