"""On real Slurm: slurm-elastic-ckptman looks when slurmctld's programs tell it to, though it would
poll but once an hour; each thing that it notes here it can only have seen with such a look.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.ckpt import UNTIL_ENOUGH, announce, counter, enough, kinds, node_of, wait_steps
from tests.e2e.world import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.release]


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A site that has an epilog of its own, so that ours is behind it."""
    return sandbox(
        static_nodes=1,
        slurm_conf=("EpilogSlurmctld=/bin/true",),
        elastic={
            "checkpoint": {
                "policy": "on_notice",
                "expected_duration": "5s",
                "deadline_margin": "1s",
                "poll_interval": "1h",
                "notices": {"poll_interval": 1},
            }
        },
    )


def test_a_jobs_start_is_seen_at_once(site: Sandbox) -> None:
    """A wish that cannot be followed is said when its job is first seen running."""
    job = site.submit("sleep 300", "--partition=aws", "--comment=ckpt=signal,saved=soon")
    site.wait_job(job, "RUNNING")
    told = f"job:{job}"
    site.wait_for(lambda: "ckpt-refused" in kinds(site, told), PATIENCE, "its start is seen")
    site.run(["scancel", str(job)])
    site.wait_job(job, "CANCELLED")


def test_a_jobs_end_is_seen_at_once(site: Sandbox) -> None:
    """The service removes a job's save when it first sees the job ended; a move makes that save."""
    job = counter(site, steps=UNTIL_ENOUGH)
    wait_steps(site, job, 8)
    announce(site, node_of(site, job))
    enough(site, job, runs=2)
    assert site.job(job)["Restarts"] == "1"
    told = f"job:{job}"
    site.wait_for(lambda: "ckpt-removed" in kinds(site, told), PATIENCE, "its end is seen")
