"""Real CRIU on real Slurm 24.11: work that is done again, and saves that became impossible, are told in
time in the job's own output.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from .criu_world import COUNTER, gone, needed, started
from .engine import Engine
from .served_world import ServedWorld

pytestmark = pytest.mark.e2e

LATE = COUNTER.replace("CODE", "0").replace(
    "    sleep 0.2",
    """    if [ -e "connect-$SLURM_JOB_ID" ] && [ ! -e /proc/self/fd/3 ]; then
        exec 3<>/dev/tcp/head/6817 || exit 9
    fi
    sleep 0.2""",
)
"""A connection that is opened after the first save."""

MINE = "# Its steps would be started by srun.\necho mine >/tmp/mine-$SLURM_JOB_ID\ntrap"
NEIGHBOUR = COUNTER.replace("CODE", "0").replace("trap", MINE)
"""A file that nobody has open in the node's own /tmp, which a job that starts steps has: whose it is
cannot be told once its user has another job there.
"""

IN_TIME = 300.0
"""Seconds: a look each minute, and two saves that fail."""


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[ServedWorld]:
    with ServedWorld(docker_engine, trixie) as running:
        needed(running)
        running.serve(policy="on_notice", more="probe_after: 5s")
        yield running


def told(world: ServedWorld, job: int, words: str) -> list[str]:
    return [line for line in world.output(job) if words in line]


def test_what_no_longer_can_be_saved_is_told_before_any_notice(world: ServedWorld) -> None:
    late = world.sbatch(LATE, "-o", "out-%j", "-w", "n1")
    shares = world.sbatch(NEIGHBOUR, "-o", "out-%j", "-w", "n2")
    for job in (late, shares):
        world.wait_for(lambda job=job: world.saved(job), f"job {job} is saved", 120.0)
        assert not told(world, job, "cannot be saved")
    (world.shared / "jobs" / f"connect-{late}").touch()
    world.nodes()["n2"].start(["sleep", "900"], "neighbour", user="alice")
    for job, why in ((late, "a network connection open"), (shares, "other processes on the node")):
        world.wait_for(
            lambda job=job: told(world, job, "it would help to"), f"{job} reads it", IN_TIME
        )
        (said,) = told(world, job, "this job cannot be saved")
        assert why in said
        assert why in world.ckpt("list", "--json")
    for job in (late, shares):
        world.wait_more(job)
        world.slurm("scancel", str(job))
        world.wait_for(lambda job=job: world.job(job)["JobState"] == "CANCELLED", "it is over")


@pytest.mark.release
def test_a_job_reads_what_a_lost_node_cost(world: ServedWorld) -> None:
    job = started(world)
    world.wait_for(lambda: world.saved(job), f"job {job} is saved")
    until = time.monotonic() + 75
    world.wait_for(lambda: time.monotonic() > until, "it has work to lose", 120.0)
    lost = world.lose(job)
    world.wait_for(lambda: told(world, job, "must be done again"), "it reads the cost")
    (said,) = told(world, job, "must be done again")
    where = world.job(job)["NodeList"]
    assert f"slurm-elastic: it continues from save 1 on {where}, " in said
    assert "minute" in said
    world.wait_for(lambda: "was lost without a notice" in world.told(job), "so reads explain")
    world.end(job)
    world.start_node(lost)
    gone(world, job)
