"""From an account of EC2 without a network to a job on a machine in it, and back: ``init --make``, real
Slurm, ``init --unmake``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from slurm_elastic.config import configfile
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import back_to_zero, submit_many

pytestmark = [pytest.mark.e2e, pytest.mark.release]
REGION = "us-east-1"
GOAL_S = 30 * 60
"""From a new account to a job on it."""
MAIN = "import sys; from slurm_elastic.cli.main import main; sys.exit(main())"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A site whose account has no network at all: not even Amazon's default one."""
    made = sandbox(
        static_nodes=1,
        drop=("onprem",),
        elastic={
            "join": {"head": "10.77.0.254"},
            "pools": [{"name": "pub", "nodes": "pub[1-2]", "cloud": "aws"}],
        },
    )
    ec2 = client(made)
    for subnet in ec2.describe_subnets()["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    for vpc in ec2.describe_vpcs()["Vpcs"]:
        ec2.delete_vpc(VpcId=vpc["VpcId"])
    return made


def client(site: Sandbox) -> Any:
    url = f"http://127.0.0.1:{site.layout.read().ports.ec2}"
    return boto3.client("ec2", region_name=REGION, endpoint_url=url)


def init(site: Sandbox, *words: str) -> str:
    command = [sys.executable, "-c", MAIN, "init", "--cloud", "aws", "--yes", *words]
    done = site.run(command, check=False, timeout=120)
    assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def networks(ec2: Any) -> set[str]:
    groups = ec2.describe_security_groups()["SecurityGroups"]
    return {
        *(vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"]),
        *(subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"]),
        *(group["GroupId"] for group in groups),
        *(pair["KeyName"] for pair in ec2.describe_key_pairs()["KeyPairs"]),
    }


def test_from_an_empty_account_to_a_job_and_back(site: Sandbox) -> None:
    started = time.monotonic()
    ec2, text = client(site), site.layout.config.read_text()
    before = networks(ec2)
    init(site, "--make")
    (cloud,) = configfile.load(site.layout.config).clouds
    site.daemon_stop()
    site.daemon_start()
    (job,) = submit_many(site, 1, "hostname; sleep 5", "--partition=aws")
    fields = site.wait_job(job)
    assert fields["JobState"] == "COMPLETED"
    assert time.monotonic() - started < GOAL_S
    ids = [machine.id for machine in site.ec2.state().machines]
    for reservation in ec2.describe_instances(InstanceIds=ids)["Reservations"]:
        for machine in reservation["Instances"]:
            groups = [group["GroupId"] for group in machine["SecurityGroups"]]
            assert (groups, machine["KeyName"]) == (list(cloud.security_groups), cloud.key_name)
            assert machine["SubnetId"] in cloud.subnets.values()
    back_to_zero(site)
    said = init(site, "--unmake")
    assert "leave" not in said, said
    assert networks(ec2) == before
    assert configfile.parse(site.layout.config.read_text(), "x") == configfile.parse(text, "x")
