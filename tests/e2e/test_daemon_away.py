"""slurm-elasticd is away for longer than ResumeTimeout, on real Slurm: which jobs survive that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.crash import FULL
from tests.e2e.world import back_to_zero, ledger, queued

pytestmark = pytest.mark.e2e
PATIENCE = 240.0
"""Seconds; ResumeTimeout is 60 s."""


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(
        static_nodes=1,
        drop=("onprem",),
        suspend_time=5.0,
        suspend_timeout=5.0,
        resume_timeout=60.0,
        elastic={"timings": {"daemon_timeout": 6.0}},
    )


def told(site: Sandbox, job: int) -> list[str]:
    book = ledger(site)
    try:
        return [d.kind for d in book.decisions.about(f"job:{job}")]
    finally:
        book.close()


def restarted(site: Sandbox, job: int) -> bool:
    found = queued(site, job)
    return found is not None and found.restarts >= 1


@pytest.mark.release
def test_ckptman_stands_in_for_jobs_that_may_not_be_requeued(site: Sandbox) -> None:
    site.daemon_kill()
    job = site.submit("sleep 2", FULL, "--no-requeue", "--partition=aws")
    site.wait_for(lambda: restarted(site, job), PATIENCE, "slurmctld requeues it")
    assert "requeue-lifted" in told(site, job)
    site.daemon_start()
    fields = site.wait_job(job, timeout=300)
    assert fields["Requeue"] == "0", "its user's own word"
    back_to_zero(site)


@pytest.mark.release
def test_without_both_services_a_job_that_may_not_be_requeued_fails(site: Sandbox) -> None:
    """The other ones wait; a partition that is down loses none."""
    site.daemon_kill()
    site.ckptman_kill()
    lost = site.submit("sleep 2", FULL, "--no-requeue", "--partition=aws")
    kept = site.submit("sleep 2", FULL, "--requeue", "--partition=aws")
    site.wait_job(lost, "NODE_FAIL", timeout=PATIENCE)
    site.wait_for(lambda: restarted(site, kept), PATIENCE, "slurmctld requeues the other one")
    site.run(["scontrol", "update", "partitionname=aws", "state=down"])
    safe = site.submit("sleep 2", FULL, "--no-requeue", "--partition=aws")
    site.ckptman_start()
    site.daemon_start()
    job = queued(site, safe)
    assert job is not None
    assert (job.restarts, "PENDING" in job.states) == (0, True)
    site.run(["scontrol", "update", "partitionname=aws", "state=up"])
    site.wait_job(kept, timeout=300)
    assert site.wait_job(safe, timeout=300)["Restarts"] == "0"
    back_to_zero(site)
