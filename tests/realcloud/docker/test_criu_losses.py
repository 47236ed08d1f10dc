"""When something is lost without a word: a machine between two periodic saves, or the right to write
to the shared directory of images. slurm-elastic-ckptman on real Slurm 24.11, CRIU, real mounts.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from .criu_world import COUNTER, PROGRAM, gone, needed, started
from .engine import Engine
from .served_world import ServedWorld, swept
from .world import PATIENCE, Host

pytestmark = [pytest.mark.e2e, pytest.mark.release]

NODES = ("n1", "n2", "n3")
SLACK = 5.0
"""The default of checkpoint.deadline_margin."""
READ_ONLY = (
    "mount --bind /shared/ckpt /shared/ckpt && mount -o remount,ro,bind /shared/ckpt"
    " && ! touch /shared/ckpt/refused 2>/dev/null"
)


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[ServedWorld]:
    with ServedWorld(docker_engine, trixie) as running:
        needed(running)
        running.serve()
        yield running


@pytest.fixture(autouse=True)
def all_nodes(world: ServedWorld) -> None:
    world.calm(*NODES)


@contextlib.contextmanager
def read_only(world: ServedWorld, *hosts: Host) -> Iterator[None]:
    """These hosts have /shared/ckpt mounted read-only meanwhile."""
    for host in hosts:
        host.run(["sh", "-c", READ_ONLY])
    try:
        yield
    finally:
        alive = [world.head, *world.nodes().values()]
        for host in alive:
            host.run(["umount", "-l", "/shared/ckpt"], check=False)


def test_read_only_everywhere_a_job_goes_on_and_starts_anew_only_when_its_node_is_lost(
    world: ServedWorld,
) -> None:
    job = started(world)
    node = world.job(job)["NodeList"]
    with read_only(world, world.head, *world.nodes().values()):
        world.ckpt("notice", node, "--in", "2m")
        world.wait_for(lambda: "no image" in world.told(job), "it is said aloud")
        refused = f"/shared/ckpt/containers/{job}/request: Read-only file system"
        assert refused in world.told(job)
        moves = json.loads(world.ckpt("list", "--json"))["moves"]
        assert [m["note"] for m in moves if m["job"] == job] == [refused]
        world.wait_more(job)
        assert world.job(job)["Restarts"] == "0"
        assert world.migrations(job)[-1].step == "waiting"
        world.lose(job)
        world.wait_for(
            lambda: world.own_output(job)[:1] == ["start restart=1 args="],
            "it starts anew, once it has waited for the directory",
            patience=600.0,
        )
        world.wait_more(job)
        moved = world.moved(job)
        assert moved.image is None
        syslog = world.shared / "log" / f"{world.job(job)['NodeList']}.syslog"
        assert (
            "a job runs without checkpoints: [Errno 30] Read-only file system" in syslog.read_text()
        )
        (world.shared / "jobs" / f"end-{job}").touch()
        assert world.wait_job(job)["ExitCode"] == "0:0"
        steps = world.steps(job)
        assert steps == list(range(len(steps)))
        sweep = next(iter(world.nodes().values())).run([PROGRAM, "sweep"])
        assert f"job {job}: stays: [Errno 30] Read-only file system" in sweep.stdout
    world.start_node(node)
    swept(world, job)


def test_read_only_on_its_node_a_job_goes_on_from_its_last_image_at_the_last_moment(
    world: ServedWorld,
) -> None:
    """Its node cannot even say so: the head hears no answer. A session of a job without a /tmp of its
    own is in the node's mounts, which become read-only here.
    """
    script = COUNTER.replace("CODE", "0").replace(
        "trap", "# It would start steps by srun.\ntrap", 1
    )
    job = world.sbatch(script, "-o", "out-%j")
    world.standing(job)
    world.wait_more(job)
    world.ckpt("now", str(job))
    world.wait_for(lambda: world.saved(job), "it is saved")
    node = world.job(job)["NodeList"]
    with read_only(world, world.nodes()[node]):
        world.ckpt("notice", node, "--in", "40s")
        moved = world.moved(job)
        assert moved.deadline is not None
        assert (
            moved.reached["requeued"] >= moved.deadline - SLACK
        )  # it may end by itself until then
        assert f"no answer to checkpoint in time: its launcher on {node} is" in world.told(job)
        assert moved.image is not None
        assert moved.image.number == 1
        syslog = (world.shared / "log" / f"{node}.syslog").read_text()
        assert f"job {job}: checkpoint: [Errno 30] Read-only file system" in syslog
        world.standing(job)
        world.wait_more(job)
    assert world.end(job)["Restarts"] == "1"
    gone(world, job)


MTTI = 1200.0
LATE = 60.0
"""Seconds that a save may come after its time on a machine that is busy with other tests."""


def daly(costs: Sequence[float]) -> float:
    """Seconds between saves: Daly 2006, equation 37, a quarter more than the longest of the last
    three saves taken for the next one's cost.
    """
    cost = 1.25 * max(costs[-3:])
    ratio = cost / (2 * MTTI)
    return math.sqrt(2 * cost * MTTI) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def gone_on_from(world: ServedWorld, job: int) -> int:
    """The number of the image that the job's run began with, by its launcher's word."""
    log = json.loads((world.directory_of(job) / "status.json").read_text())["log"]
    found = re.search(r"continues from image (\d+) on", " ".join(log))
    return int(found[1]) if found else 0


def test_periodic_saves_come_at_dalys_interval_and_a_power_cut_costs_no_more(
    world: ServedWorld,
) -> None:
    """The default policy where a machine lives for twenty minutes on average."""
    world.serve(policy=f"first_of(on_notice, daly(mtti={MTTI:g}, least=5))")
    job = started(world)
    world.ckpt("now", str(job))  # from then on it is known what a save costs
    world.wait_for(lambda: len(world.saved(job)) >= 3, "two periodic saves", 4 * LATE + PATIENCE)
    saves = sorted(world.saved(job), key=lambda image: image.number)
    assert [image.number for image in saves][:3] == [1, 2, 3]
    for done, (last, following) in enumerate(pairwise(saves), 1):
        interval = daly([image.seconds for image in saves[:done]])
        assert interval > 5
        assert interval <= following.taken - last.taken <= interval + LATE
    why = "s of work since the last checkpoint: save"  # written down after the image
    world.wait_for(lambda: world.told(job).count(why) >= 2, "both are explained")
    assert world.job(job)["Restarts"] == "0"
    newest = world.saved(job)[0].number
    lost = world.lose(job)
    used = world.wait_for(lambda: gone_on_from(world, job), "it goes on from an image")
    assert used >= newest
    world.wait_more(job)
    assert world.end(job)["Restarts"] == "1"  # and each step is there once
    world.start_node(lost)
    gone(world, job)
