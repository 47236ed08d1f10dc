"""The daemon killed between an order and its answer, at a cloud that takes no token and whose lists
lack the machine, on real Slurm: the next daemon does not order it again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.one_world import Host, Pace
from tests.e2e.crash import FULL, arm
from tests.e2e.policy_site import told
from tests.e2e.world import back_to_zero, submit_many

pytestmark = pytest.mark.e2e
pytest.importorskip("pyone", reason="pyone is not installed")
FOR_EVER = 1e6
CLOUD = {
    "name": "nebula", "provider": "opennebula", "location": "on-premises", "listing_lag": 300,
    "types": {"small": {"cpus": 2, "memory": 2048, "template": 3}}, "pending_limit": 500,
}  # fmt: skip
POOL = {
    "name": "neb", "cloud": "nebula", "nodes": "neb[1-2]", "cpus": 2, "memory": 1256,
    "real_memory": 1000, "instance_types": ["small"],
}  # fmt: skip


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    aws = {"name": "aws", "provider": "aws"}
    return sandbox(
        static_nodes=1, drop=("onprem",), resume_timeout=600.0,
        elastic={"clouds": [aws, CLOUD], "pools": [POOL]},
    )  # fmt: skip


def test_an_order_is_not_repeated_while_lists_may_lack_its_machine(site: Sandbox) -> None:
    site.one.hosts([])  # it must not be up before it is looked for
    site.one.pace(Pace(visible_after=FOR_EVER))
    once = arm(site, "launch.after-call")
    (job,) = submit_many(site, 1, "sleep 3", FULL, "--partition=nebula")
    site.wait_for(lambda: os.path.exists(once), 90, "the daemon dies after the order")
    site.wait_for(lambda: not site.status()["slurm-elasticd"], 10, "the daemon is dead")
    assert len(site.one.state().machines) == 1
    site.daemon_start()
    why = "lists may lack them yet"
    site.wait_for(lambda: why in told(site, "explain", str(job)), 120, "a round that waits")
    assert why in told(site, "explain", "neb1")
    assert len(site.one.state().machines) == 1
    site.one.pace(Pace())
    site.one.hosts([Host(id=0, name="big", cpu=10**4, memory=10**8)])
    assert site.wait_job(job)["Restarts"] == "0"
    back_to_zero(site)
    (machine,) = site.one.state().machines
    assert machine.state == 6, "the only machine that there ever was has ended"
