"""On real Slurm: what is planned for nodes moves jobs in time, each step of their work once."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from slurm_elastic.policies.checkpoint.threat import ThreatCause
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.state.ckptstate.facts import Migration
from tests.e2e.ckpt import UNTIL_ENOUGH, counter, early, enough, migrations, node_of, wait_steps
from tests.e2e.world import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.release]


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(**early("40s"))


def moved_for(site: Sandbox, job: int, cause: ThreatCause) -> Migration:
    def over() -> bool:
        found = [move for move in migrations(site) if move.run.job == job]
        return bool(found) and found[-1].is_over

    site.wait_for(over, PATIENCE, f"job {job} is moved for {cause}")
    (move,) = (move for move in migrations(site) if move.run.job == job)
    assert (move.cause, move.step) == (cause, "back")
    assert move.image is not None
    return move


def test_a_job_leaves_a_node_that_is_failing(site: Sandbox) -> None:
    job = counter(site, steps=UNTIL_ENOUGH)
    wait_steps(site, job, 4)
    node = node_of(site, job)
    site.run(["scontrol", "update", f"nodename={node}", "state=fail", "reason=ECC errors"])
    moved_for(site, job, ThreatCause.HEALTH)
    assert node_of(site, job) != node
    enough(site, job, runs=2)


def test_a_job_leaves_before_a_maintenance_of_its_node(site: Sandbox) -> None:
    job = counter(site, "--time=30", steps=UNTIL_ENOUGH)
    wait_steps(site, job, 4)
    node, start = node_of(site, job), time.time() + 100
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(start))
    site.run([
        "scontrol", "create", "reservation=new-disks", f"starttime={when}", "duration=60",
        f"nodes={node}", "flags=maint,ignore_jobs", "users=root",
    ])  # fmt: skip
    assert moved_for(site, job, ThreatCause.MAINTENANCE).reached["requeued"] < start
    assert node_of(site, job) != node
    enough(site, job, runs=2)
