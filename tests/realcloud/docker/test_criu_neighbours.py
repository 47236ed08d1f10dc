"""Real CRIU on real Slurm 24.11: jobs of one user on one node, with files of the same names in /tmp."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .criu_world import COUNTER, gone, needed
from .engine import Engine
from .served_world import ServedWorld

pytestmark = [pytest.mark.e2e, pytest.mark.release]

NODES = ("n1", "n2", "n3")
FILES = """\
mkdir -m 700 /tmp/own
for place in /tmp/own /var/tmp /dev/shm; do echo "of $SLURM_JOB_ID" >$place/file; done
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("/tmp/own/socket")'
echo temporary $(dirname $(mktemp))
trap"""
SHOWN = "cat /tmp/own/file /var/tmp/file /dev/shm/file\necho finished"
LEAVES = COUNTER.replace("CODE", "0").replace("trap", FILES).replace("echo finished", SHOWN)


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[ServedWorld]:
    with ServedWorld(docker_engine, trixie) as running:
        needed(running)
        running.serve(policy="on_notice")
        yield running


def left_on(world: ServedWorld, node: str) -> list[str]:
    places = ("ls", "-A", "/tmp", "/var/tmp", "/dev/shm")
    names = world.nodes()[node].run(places).stdout.split()
    return [name for name in names if name.startswith("slurm-elastic-") or name in ("own", "file")]


def test_both_are_saved_at_a_notice_and_have_their_own_files(world: ServedWorld) -> None:
    jobs = [world.sbatch(LEAVES, "-o", "out-%j", "-w", "n1", "--mem=100") for _ in range(2)]
    for job in jobs:
        world.standing(job)
        world.wait_more(job)
        assert world.job(job)["NodeList"] == "n1"
        assert "temporary /tmp" in world.output(job)
    world.ckpt("notice", "n1", "--in", "2m")
    images: dict[int, int] = {}
    for job in jobs:
        moved = world.moved(job)
        assert moved.image is not None, world.told(job)
        assert moved.image.attempt == 0
        images[job] = moved.image.number
        world.wait_more(job)
    for job in jobs:
        shown = world.end(job)
        assert shown["Restarts"] == "1"
        assert shown["NodeList"] != "n1"
        assert world.output(job).count(f"of {job}") == 3
        of_the_move = [line for line in world.output(job) if "slurm-elastic:" in line]
        assert len(of_the_move) == 2
        assert "this job was requeued" in of_the_move[0]
        assert f"it continues from save {images[job]} " in of_the_move[1]
        gone(world, job)
    for node in NODES:
        assert left_on(world, node) == []


def test_a_tmpdir_that_a_prolog_made_is_the_nodes_and_travels(world: ServedWorld) -> None:
    world.calm(*NODES)
    for host in world.nodes().values():
        host.run(["install", "-d", "-o", "alice", "/tmp/slurm-alice"])
    world.nodes()["n1"].start(["sleep", "900"], "neighbour", user="alice")
    script = LEAVES.replace("trap", 'echo "kept" >$TMPDIR/mine\ntrap', 1)
    script = script.replace("echo finished", "cat $TMPDIR/mine\necho finished")
    options = ("-w", "n1", "--export=ALL,TMPDIR=/tmp/slurm-alice")
    job = world.sbatch(script, "-o", "out-%j", *options)
    world.standing(job)
    world.wait_more(job)
    assert "temporary /tmp/slurm-alice" in world.output(job)
    there = ("cat", "/tmp/slurm-alice/mine")
    assert world.nodes()["n1"].run(there).stdout == "kept\n"
    world.ckpt("notice", "n1", "--in", "2m")
    assert world.moved(job).image is not None, world.told(job)
    world.wait_more(job)
    assert world.nodes()[world.job(job)["NodeList"]].run(there).stdout == "kept\n"
    world.end(job)
    assert "kept" in world.output(job)
    assert world.output(job).count(f"of {job}") == 3


def test_a_node_that_was_lost_is_rid_of_them_by_the_next_job(world: ServedWorld) -> None:
    """The processes are killed as by the kernel for want of memory: nobody tidies up."""
    world.calm(*NODES)
    job = world.sbatch(LEAVES, "-o", "out-%j", "-w", "n2")
    world.standing(job)
    world.wait_more(job)
    host = world.nodes()["n2"]
    assert len(left_on(world, "n2")) == 3
    host.run(["pkill", "-9", "-f", "[c]kpt-root run criu"])
    world.wait_for(lambda: world.job(job)["JobState"] not in ("RUNNING", "COMPLETING"), "it ended")
    assert left_on(world, "n2")
    after = world.sbatch(LEAVES, "-o", "out-%j", "-w", "n2")
    world.standing(after)
    world.end(after)
    world.wait_for(lambda: left_on(world, "n2") == [], "nothing of either is left")
