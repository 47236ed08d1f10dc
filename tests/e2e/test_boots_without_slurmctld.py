"""On real Slurm: slurmctld is stopped while machines boot. Those that come up serve their jobs, the
others are given back in time, and none counts as a boot that failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import pytest

from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.state.ledger import Decision
from tests.e2e.world import AT_ONCE, back_to_zero, ledger, machines

pytestmark = [pytest.mark.e2e, pytest.mark.release]
RESUME = 60.0


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(
        static_nodes=1,
        drop=("onprem",),
        slurm_conf=AT_ONCE,
        resume_timeout=RESUME,
        never_boot="pub1",
        boot_seconds=8.0,
    )


def decisions(site: Sandbox, subject: str, kind: str) -> list[Decision]:
    with closing(ledger(site)) as book:
        return [d for d in book.decisions.about(subject) if d.kind == kind]


def test_no_boot_is_blamed_for_the_time_without_slurmctld(site: Sandbox) -> None:
    jobs = [site.submit("sleep 5", "--partition=aws", "--no-requeue", "-c2") for _ in range(3)]
    site.wait_for(lambda: len(machines(site)) == 3, 30, "all machines are bought")
    launched = min(m.instance.launched for m in machines(site))
    site.slurmctld_stop()
    over = given_up_after(RESUME) + 1
    site.wait_for(lambda: time.time() - launched > over, RESUME, "the time to boot is over")
    site.slurmctld_start()
    ended = [site.wait_job(job, timeout=180) for job in jobs]
    assert [job["JobState"] for job in ended] == ["COMPLETED"] * 3
    assert sorted(job["Restarts"] for job in ended) == ["0", "0", "1"]
    (moved,) = (n for n, job in zip(jobs, ended, strict=True) if job["Restarts"] == "1")
    (requeued,) = decisions(site, f"job:{moved}", "requeued")
    assert "could not register while slurmctld was away" in str(requeued.reason)
    for node in ("pub1", "pub2", "pub3"):
        assert decisions(site, node, "boot-failed") == []
    back_to_zero(site)


def test_a_node_that_was_in_use_has_no_name_to_look_up_for_long(site: Sandbox) -> None:
    """slurmctld gives a node its name for an address when it has powered down."""
    job = site.submit("true", "--partition=aws", "--exclude=pub1")
    site.wait_job(job)
    back_to_zero(site)
    site.wait_for(
        lambda: not any(node.address == node.name for node in site.nodes().values()),
        60,
        "each node has an address",
    )
