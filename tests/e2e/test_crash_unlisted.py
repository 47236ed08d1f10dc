"""A cloud whose lists lack what is there, on real Slurm: a daemon killed between an order and its
answer is followed by one that does not order it again, and no job that runs pays for a wrong list.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from needs import not_installed

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.nebula.world import OneHost, OnePace
from slurm_elastic.sandbox.processes import SlurmdMachines
from tests.e2e.crash import FULL, arm
from tests.e2e.policy_site import told
from tests.e2e.world import back_to_zero, queued, running_nodes, submit_many

pytestmark = [pytest.mark.e2e, pytest.mark.release]
pytest.importorskip("pyone", reason=not_installed("pyone"))
FOR_EVER = 1e6
DOUBT = "slurmctld hears the nodes"
GONE = "the cloud did not list it"
CLOUD = {
    "name": "nebula", "provider": "opennebula", "location": "on-premises", "listing_lag": 300,
    "types": {"small": {"cpus": 2, "memory": 2048, "template": 3}}, "pending_timeout": 500,
}  # fmt: skip
POOL = {
    "name": "neb", "cloud": "nebula", "nodes": "neb[1-2]", "cpus": 2, "memory": 1256,
    "real_memory": 1000, "instance_types": ["small"],
}  # fmt: skip


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    aws = {"name": "aws", "provider": "aws"}
    return sandbox(
        static_nodes=1, drop=("onprem",), resume_timeout=600.0, slurm_conf=("SlurmdTimeout=60",),
        elastic={"clouds": [aws, CLOUD], "pools": [POOL]},
    )  # fmt: skip


def test_an_order_is_not_repeated_while_lists_may_lack_its_machine(site: Sandbox) -> None:
    site.opennebula.hosts([])  # it must not be up before it is looked for
    site.opennebula.pace(OnePace(visible_after=FOR_EVER))
    once = arm(site, "launch.after-call")
    (job,) = submit_many(site, 1, "sleep 3", FULL, "--partition=nebula")
    site.wait_for(lambda: os.path.exists(once), 90, "the daemon dies after the order")
    site.wait_for(lambda: not site.status()["slurm-elasticd"], 10, "the daemon is dead")
    assert len(site.opennebula.state().machines) == 1
    site.daemon_start()
    why = "lists may lack them yet"
    site.wait_for(lambda: why in told(site, "explain", str(job)), 120, "a round that waits")
    assert why in told(site, "explain", "neb1")
    assert len(site.opennebula.state().machines) == 1
    site.opennebula.pace(OnePace())
    site.opennebula.hosts([OneHost(id=0, name="big", cpu=10**4, memory=10**8)])
    assert site.wait_job(job)["Restarts"] == "0"
    back_to_zero(site)
    (machine,) = site.opennebula.state().machines
    assert machine.state == 6, "the only machine that there ever was has ended"


def test_only_a_machine_that_slurmctld_does_not_hear_either_counts_as_gone(site: Sandbox) -> None:
    """NOT_RESPONDING is slurmctld's word for it; its nodes here have one address and a port
    each.
    """
    jobs = submit_many(site, 2, "sleep 900", FULL, "--partition=nebula")
    nodes = running_nodes(site, jobs)
    ((lost,), (kept,)) = (nodes[job] for job in jobs)
    try:
        site.opennebula.pace(OnePace(visible_after=FOR_EVER))
        site.wait_for(lambda: DOUBT in told(site, "status"), 240, "status tells of the list")
        assert [job.restarts for job in site.jobs() if job.id in jobs] == [0, 0]
        die(site, lost)
        site.wait_for(lambda: restarts(site, jobs[0]) > 0, 240, "the dead machine's job is back")
        site.wait_for(lambda: GONE in told(site, "explain", lost), 240, "its row has ended")
        assert restarts(site, jobs[1]) == 0
        assert GONE not in told(site, "explain", kept)
    finally:
        site.opennebula.pace(OnePace())
    site.wait_for(lambda: DOUBT not in told(site, "status"), 120, "the list is right again")
    assert restarts(site, jobs[1]) == 0
    for job in jobs:
        site.run(["scancel", str(job)])
    back_to_zero(site)


def restarts(site: Sandbox, number: int) -> int:
    job = queued(site, number)
    return job.restarts if job else -1


def die(site: Sandbox, node: str) -> None:
    """As in a power cut; what is left of its job is of no account. The cloud has ended it: a machine
    that its id still names is not gone.
    """
    site.opennebula.end([vm.id for vm in site.opennebula.state().machines if vm.node == node])
    machines = SlurmdMachines(site.layout.machines)
    started = [found for name in machines.ids() if (found := machines.get(name))]
    (process,) = [s.process for s in started if s.machine.node == node and s.process]
    os.kill(process.pid, signal.SIGKILL)
