"""On real Slurm: a pool that promises more memory than its machines have buys a few, and then none."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.test_node_health import AS_AT_SITES, FAST, FULL, elastic
from tests.e2e.world import live_ec2, machines

pytestmark = [pytest.mark.e2e, pytest.mark.release]
TOO_MUCH = 900_000
LIMIT = 3


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(
        static_nodes=1,
        drop=("onprem",),
        slurm_conf=AS_AT_SITES,
        suspend_time=600.0,
        elastic={
            "timings": FAST | {"max_boot_failures": LIMIT, "capacity_cooldown": 5.0},
            "clouds": [
                {"name": "aws", "types": {"m5.large": {"cpus": 2, "memory": 2 * TOO_MUCH, "price": 0.096}}}
            ],
            "pools": [
                {"name": "pub", "memory": TOO_MUCH, "real_memory": TOO_MUCH,
                 "instance_types": ["m5.large"]}
            ],
        },
    )  # fmt: skip


def test_a_pool_whose_machines_have_too_little_memory_stops_buying_and_says_what_to_set(
    site: Sandbox,
) -> None:
    jobs = [site.submit("sleep 1", FULL, "--partition=aws,batch") for _ in range(LIMIT + 1)]
    for job in jobs:
        assert site.wait_job(job, timeout=400)["Partition"] == "batch"
    site.submit("sleep 1", FULL, "--partition=aws")
    site.wait_for(lambda: "IS PAUSED" in elastic(site, "status"), 400, "the pool is paused")
    bought = len(machines(site, ended=True))
    status = elastic(site, "status")
    remedy = re.search(r"set `real_memory: (\d+)` in the pool \(slurmd reports (\d+) MiB\)", status)
    assert remedy, status
    value, reported = int(remedy[1]), int(remedy[2])
    assert value <= reported < value + 100 < TOO_MUCH
    doctor = elastic(site, "doctor", "--quick")
    assert f"set `real_memory: {value}`" in doctor
    assert "then slurm-elastic clear pub" in doctor
    assert f"real_memory: {value}" in elastic(site, "explain", "pub")
    site.wait_for(lambda: not live_ec2(site), 120, "no machine is left")
    site.wait_for(lambda: all_off(site), 120, "all nodes of the pool can be used again")
    assert bought <= 2 * LIMIT, "and not one every three minutes"
    assert len(machines(site, ended=True)) == bought


def all_off(site: Sandbox) -> bool:
    """Powered down, and not DOWN for what Slurm had against a machine that is gone."""
    ours = [node for name, node in site.nodes().items() if name.startswith("pub")]
    return all(phase(node) is Phase.POWERED_DOWN and "DOWN" not in node.states for node in ours)
