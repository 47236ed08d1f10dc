"""The daemon killed while a pool has no offer left, on real Slurm: a restart repairs everything."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from slurm_elastic.base.faults import POINTS
from slurm_elastic.policies.nodes.node_state import is_drained
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from tests.e2e.crash import FULL, arm, assert_one_machine_a_node
from tests.e2e.world import (
    TWO_PUBLIC_CLOUDS,
    back_to_zero,
    forget_cool_downs,
    held,
    live_ec2,
    submit_many,
)

pytestmark = [pytest.mark.e2e, pytest.mark.release]
ADMIN = "fan is broken"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(**TWO_PUBLIC_CLOUDS)


@pytest.mark.parametrize(
    "point",
    [
        "refuse.after-drain",
        pytest.param("refuse.after-force", marks=pytest.mark.release),
        pytest.param("release.after-resume", marks=pytest.mark.release),
    ],
)
def test_a_daemon_killed_in_a_refusal_repairs_it_on_restart(site: Sandbox, point: str) -> None:
    """The job is served elsewhere, nothing is left over, the hold ends, an admin's drain does not.

    After ``refuse.after-force`` nobody knows that the job may be hurried: it waits out Slurm's 121 s,
    by when the hold is over and the pool may be asked, and refuse it, once more.
    """
    assert point in POINTS
    once = arm(site, point)
    site.run(["scontrol", "update", "nodename=pub3", "state=drain", f"reason={ADMIN}"])
    site.ec2.fail(Fault(kind=FaultKind.CAPACITY, action="RunInstances", type="[cm]5.large"))
    (job,) = submit_many(site, 1, "sleep 3", FULL, "--partition=aws,backup")
    site.wait_for(lambda: os.path.exists(once), 180, f"the daemon dies at {point}")
    site.wait_for(lambda: not site.status()["slurm-elasticd"], 60, "the daemon is dead")
    site.daemon_start()
    fields = site.wait_job(job, timeout=300)
    assert fields["Partition"] == "backup"
    if point != "refuse.after-force":
        assert fields["Restarts"] == "1"
    assert_one_machine_a_node(site)
    assert not [n for n in live_ec2(site) if n.startswith("pub")]
    site.ec2.heal()
    site.wait_for(lambda: not held(site), 240, "the hold ends")
    node = site.nodes()["pub3"]
    assert (is_drained(node), node.reason) == (True, ADMIN)
    (again,) = submit_many(site, 1, "true", FULL, "--partition=aws")
    assert site.wait_job(again)["NodeList"] in ("pub1", "pub2")
    site.run(["scontrol", "update", "nodename=pub3", "state=resume"])
    back_to_zero(site)
    forget_cool_downs(site)
    os.unlink(once)
