"""A pool's section ``machine`` on real Slurm and the emulated EC2, by each strategy."""

from __future__ import annotations

from collections.abc import Callable

import boto3
import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import live_machines

pytestmark = [pytest.mark.e2e, pytest.mark.release]

MACHINE = {
    "root_disk": {"size": "60G", "type": "gp3", "iops": 4000},
    "disks": [{"size": "10G"}],
    "disk_price": 0.01,
    "placement_group": "cluster",
    "metadata_hops": 2,
}


@pytest.fixture(scope="module", params=["run", "fleet"])
def site(request: pytest.FixtureRequest, sandbox: Callable[..., Sandbox]) -> Sandbox:
    pool = {"name": "pub", "nodes": "pub[1-2]", "markets": ["on-demand"], "machine": MACHINE}
    pool["zones"] = ["us-east-1a"]
    elastic = {"pools": [pool], "clouds": [{"name": "aws", "strategy": request.param}]}
    return sandbox(static_nodes=1, drop=("onprem",), elastic=elastic, suspend_time=3600.0)


def test_a_job_of_two_nodes_runs_on_such_machines(site: Sandbox) -> None:
    fields = site.wait_job(site.submit("srun hostname", "--partition=aws", "--nodes=2"))
    assert fields["JobState"] == "COMPLETED"
    machines = live_machines(site)
    assert [m.zone for m in machines] == ["us-east-1a"] * 2
    ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url=site.ec2.url)
    (group,) = ec2.describe_placement_groups()["PlacementGroups"]
    assert group["GroupName"].startswith("slurm-elastic-")
    for machine in machines:
        filters = [{"Name": "attachment.instance-id", "Values": [machine.id]}]
        volumes = ec2.describe_volumes(Filters=filters)["Volumes"]
        assert sorted(volume["Size"] for volume in volumes) == [10, 60]
