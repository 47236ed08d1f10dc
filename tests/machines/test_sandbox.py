"""A plain job bursts to a virtual machine that boots, joins and is announced to be taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.hypervisor import MachineNetwork, settings
from tests.e2e.world import live_ec2

pytestmark = [pytest.mark.machines, pytest.mark.e2e]

BOOT = 1700.0
PATIENCE = 240.0


def test_a_job_bursts_to_a_machine_that_boots_joins_and_is_taken(
    sandbox: Callable[..., Sandbox], own_image: Path
) -> None:
    site = sandbox(static_nodes=1, drop=("onprem",), suspend_time=60.0, **settings(own_image))
    job = site.submit("hostname; sleep 3600", "--partition=aws", "--output=/dev/null")
    (node,) = site.wait_for(lambda: live_ec2(site), PATIENCE, "EC2 has a machine")
    site.wait_for(lambda: site.job(job)["JobState"] == "RUNNING", BOOT, "the job runs on it")
    (machine,) = (m for m in site.ec2.state().machines if m.node == node)
    assert site.nodes()[node].address == machine.address
    known = (site.layout.dir / "state" / "known_hosts").read_text()
    assert machine.id in known

    site.ec2.interrupt([machine.id], notice=900)
    leaving = "interruption notice"
    site.wait_for(lambda: leaving in site.nodes()[node].reason, PATIENCE, "it takes no more jobs")

    site.run(["scancel", str(job)])
    site.wait_for(lambda: live_ec2(site) == [], 2 * PATIENCE, "the machine is given back")
    network = MachineNetwork(site.layout.dir)
    site.down()
    assert not Path("/sys/class/net", network.name).exists()
    assert not Path("/run/netns", network.name).exists()
