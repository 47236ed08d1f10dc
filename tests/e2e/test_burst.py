"""The main path on real Slurm: static nodes, then on-premises, then the public cloud, back to zero."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import (
    MULTIFACTOR,
    Until,
    back_to_zero,
    partition_of,
    running_nodes,
    submit_many,
)

pytestmark = pytest.mark.e2e
FULL = "--cpus-per-task=2"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(slurm_conf=MULTIFACTOR)


def test_static_then_on_premises_then_public_and_back_to_zero(site: Sandbox) -> None:
    static_before = site.run(["scontrol", "show", "partition", "batch"]).stdout
    until = Until(site)
    jobs = submit_many(site, 6, until.script, FULL)
    nodes = running_nodes(site, jobs)
    assert [nodes[j] for j in jobs[:2]] == [["st1"], ["st2"]]
    assert [nodes[j] for j in jobs[2:4]] == [["op1"], ["op2"]]
    assert all(n.startswith("pub") for j in jobs[4:] for n in nodes[j])
    markets = {m.market for m in site.ec2.state().machines}
    assert markets == {"spot"}
    until.go()
    for job in jobs:
        site.wait_job(job)
    back_to_zero(site)
    assert site.run(["scontrol", "show", "partition", "batch"]).stdout == static_before
    static = site.slurm.nodes(["st1", "st2"])
    assert all(node.states == {"IDLE"} for node in static.values())


def test_a_multi_node_job_never_spans_clouds(site: Sandbox) -> None:
    until = Until(site)
    filler = submit_many(site, 3, until.script, FULL)
    running_nodes(site, filler)
    pairs = submit_many(site, 2, "srun hostname; sleep 2", FULL, "--nodes=2")
    for job in pairs:
        fields = site.wait_job(job)
        assert fields["Partition"] == "aws"
        assert partition_of(site, job) == {"aws"}
    until.go()
    for job in filler:
        site.wait_job(job)
    back_to_zero(site)


def test_idle_static_nodes_are_used_before_any_cloud(site: Sandbox) -> None:
    job = site.submit("true", "--nodes=2", FULL)
    fields = site.wait_job(job)
    assert fields["Partition"] == "batch"
    assert fields["NodeList"] == "st[1-2]"
