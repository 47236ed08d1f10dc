"""The same on Slurm 26.05 with CRIU 4.2: a move, a power cut, and connections that are closed by a
move (CRIU 4.1 saves no sockets on new kernels).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .criu_world import CriuWorld, announced, needed, power_cut
from .engine import Engine

SERVER = """
import socket
server, kept = socket.create_server(("", 7000)), []
while True:
    kept.append(server.accept())
"""
CONNECTED = """\
#!/usr/bin/python3
import os, select, socket, time
def connected():
    way = socket.create_connection(("head", 7000), 60)
    look = select.poll()
    look.register(way, select.POLLHUP | select.POLLERR)
    return way, look
way, look = connected()
number = os.environ["SLURM_JOB_ID"]
step = closed = 0
while not os.path.exists(f"end-{number}"):
    if look.poll(0):
        closed += 1
        way, look = connected()
    print("step", step, way.getpeername()[1], closed, flush=True)
    step += 1
    time.sleep(0.2)
print("finished")
"""

pytestmark = [pytest.mark.e2e, pytest.mark.release]


@pytest.fixture(scope="module")
def world(docker_engine: Engine, forky: str) -> Iterator[CriuWorld]:
    with CriuWorld(docker_engine, forky, nodes=2) as running:
        needed(running)
        yield running


def test_an_announced_move_and_then_a_power_cut(world: CriuWorld) -> None:
    assert " 26." in world.slurm("scontrol", "-V").stdout
    assert len(announced(world, moves=1)) == 2
    world.resume("n1", "n2")
    power_cut(world)


def test_connections_stay_in_a_save_and_are_closed_by_a_move_where_that_is_chosen(
    world: CriuWorld,
) -> None:
    world.head.start(["python3", "-c", SERVER], "server.log")
    job = world.sbatch(CONNECTED, "-o", "out-%j")
    world.standing(job)
    world.wait_for(lambda: len(world.steps(job)) >= 3, f"job {job} is connected")
    assert "Connected TCP socket" in world.ask(job, "stop")["error"]
    before = world.ask(job, "go", tcp="close")["ok"]["number"]
    world.wait_more(job)
    assert _closed(world, job) == 0, "it runs on as it was"
    assert world.ask(job, "stop", tcp="close")["ok"]["number"] > before
    world.move(job)
    world.standing(job)
    world.wait_more(job)
    (world.shared / "jobs" / f"end-{job}").touch()
    world.wait_job(job)
    assert _closed(world, job) == 1
    steps = world.steps(job)
    assert steps == list(range(len(steps)))
    said = [line for line in world.launcher_said(job) if line.startswith("its connections are")]
    assert len(said) == 1
    assert said[0].endswith(":7000")


def _closed(world: CriuWorld, job: int) -> int:
    """How often the job has found its connection closed."""
    return int(next(line for line in world.output(job)[::-1] if "step" in line).split()[3])
