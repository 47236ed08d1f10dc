"""The head is gone, in whole or in part: machines end themselves, jobs do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import slurm_elastic
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.daemons import SLURMCTLD
from tests.e2e.crash import FULL
from tests.e2e.world import back_to_zero, live_ec2, running_nodes, submit_many

pytestmark = pytest.mark.e2e

PATIENCE = 240.0
AGENT = Path(slurm_elastic.__file__).parent / "programs" / "agent.py"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """Idle machines stay for long, so that only the switch ends them."""
    return sandbox(static_nodes=1, drop=("onprem",), dead_man=15.0, suspend_time=3600.0)


def idle_machines(site: Sandbox, count: int) -> list[str]:
    jobs = submit_many(site, count, "sleep 2", FULL, "--partition=aws")
    for job in jobs:
        site.wait_job(job)
    return live_ec2(site)


def test_all_of_the_head_is_gone_and_comes_back(site: Sandbox) -> None:
    (job,) = submit_many(site, 1, "sleep 60", FULL, "--partition=aws")
    (working,) = running_nodes(site, [job])[job]
    assert set(idle_machines(site, 1)) > {working}

    site.daemon_kill()
    site.processes.kill(SLURMCTLD)
    site.wait_for(lambda: live_ec2(site) == [working], PATIENCE, "only the working machine is left")

    site.slurmctld_start()
    # slurmstepd has waited to tell the job's end, and has kept its machine by that.
    assert site.wait_job(job, timeout=PATIENCE)["Restarts"] == "0"
    assert live_ec2(site) == [working], "slurmctld has its node up: it is needed"

    site.slurmctld_stop()
    site.wait_for(lambda: live_ec2(site) == [], PATIENCE, "nothing is left in the cloud")

    site.slurmctld_start()
    site.daemon_start()
    back_to_zero(site)


def test_slurm_elasticd_alone_is_gone(site: Sandbox) -> None:
    """slurmctld powers the node down as ever, and nobody else ends its machine."""
    nodes = idle_machines(site, 1)
    assert len(nodes) == 1
    site.daemon_kill()
    command = ["scontrol", "update", f"nodename={nodes[0]}", "state=power_down"]
    site.run(command)
    site.wait_for(lambda: live_ec2(site) == [], PATIENCE, "nothing is left in the cloud")
    site.daemon_start()
    back_to_zero(site)


def test_a_restart_of_slurmctld_ends_nothing(site: Sandbox) -> None:
    nodes = idle_machines(site, 1)
    before = sorted(m.id for m in site.ec2.state().machines if m.node in nodes)
    for _ in range(3):
        site.slurmctld_stop()
        site.slurmctld_start()
    jobs = submit_many(site, 1, "sleep 30", FULL, "--partition=aws")
    assert site.wait_job(jobs[0])["Restarts"] == "0"
    assert sorted(m.id for m in site.ec2.state().machines if m.node in nodes) == before
    site.run(["scontrol", "update", f"nodename={nodes[0]}", "state=power_down"])
    back_to_zero(site)
