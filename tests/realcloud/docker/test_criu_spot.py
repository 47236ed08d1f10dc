"""EC2 announces to take a spot machine: its job, submitted by plain ``sbatch``, is saved by CRIU
and goes on on another machine of slurm-elasticd's, of another cloud even. Real Slurm 24.11,
machines as containers; EC2 is the sandbox's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_elastic.model.cluster import Market

from .criu_world import needed, started
from .engine import Engine
from .spot_world import SpotWorld

pytestmark = pytest.mark.e2e

HOG = "while [ ! -e go-$SLURM_JOB_ID ]; do sleep 0.2; done"


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[SpotWorld]:
    with SpotWorld(docker_engine, trixie) as running:
        needed(running)
        yield running


def hog(world: SpotWorld) -> int:
    """A job that has the on-premises machine to itself."""
    job = world.sbatch(HOG, "-c2", "--comment=ckpt=none", "-o", "out-%j")
    assert world.wait_job(job, "RUNNING")["NodeList"] == "bx1"
    return job


def let_go(world: SpotWorld, job: int) -> None:
    (world.shared / "jobs" / f"go-{job}").touch()
    world.wait_job(job)


def interrupted(world: SpotWorld, job: int, source: str) -> str:
    """EC2 takes the job's machine in two minutes; the node on which it goes on."""
    before = world.job(job)
    node, moves = before["NodeList"], len(world.migrations(job))
    machine = world.machine(node)
    assert machine.instance.cloud == "aws"
    world.ec2.interrupt([machine.instance.id], notice=120.0)
    (deadline,) = [
        m.interruption.deadline
        for m in world.ec2.state().machines
        if m.id == machine.instance.id and m.interruption is not None
    ]
    world.wait_for(lambda: len(world.migrations(job)) > moves, f"{source} are heard")
    (heard,) = [w for w in world.warned() if w.notice.instance == machine.instance.id]
    assert heard.source == source
    assert heard.notice.node in ("", node)
    world.wait_for(lambda: world.migrations(job)[-1].is_over, "the move is over")
    moved = world.migrations(job)[-1]
    assert moved.step == "back"
    assert moved.image is not None
    assert moved.threatened == (node,)
    assert moved.deadline is not None
    assert abs(moved.deadline - deadline) <= 1.0
    assert moved.reached["saved"] < deadline
    after = world.job(job)
    assert after["JobState"] == "RUNNING"
    assert int(after["Restarts"]) == int(before["Restarts"]) + 1
    world.standing(job)
    world.wait_more(job)
    return after["NodeList"]


def test_a_job_goes_on_on_another_spot_machine_and_then_on_the_sites_own_cloud(
    world: SpotWorld,
) -> None:
    """Two interruptions of one job, told by the queue."""
    world.listen(queue_url=world.queue, poll_clouds=False, poll_interval=1)
    other = hog(world)
    job = started(world, "-c2")
    first = world.machine(world.job(job)["NodeList"]).instance
    second = world.machine(interrupted(world, job, "notices in SQS")).instance
    assert second.id != first.id, (
        "another machine; of the same name, where it took until that one was gone"
    )
    assert {(i.cloud, i.market) for i in (first, second)} == {("aws", Market.SPOT)}
    let_go(world, other)
    assert interrupted(world, job, "notices in SQS") == "bx1"
    assert world.machine("bx1").instance.cloud == "boxes"
    assert world.end(job)["ExitCode"] == "0:0"
    world.wait_for(lambda: not world.images(job), "its images are removed")


def test_the_machines_own_agent_tells_of_it(world: SpotWorld) -> None:
    """Without a queue: from EC2's instance metadata to the node's comment."""
    world.listen(poll_clouds=False, poll_interval=1)
    other = hog(world)
    job = started(world, "-c2", code=7)
    assert interrupted(world, job, "notices on Slurm's nodes").startswith("pub")
    let_go(world, other)
    assert world.end(job, "FAILED")["ExitCode"] == "7:0"
    world.wait_for(lambda: not world.images(job), "its images are removed")
