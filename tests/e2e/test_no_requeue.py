"""Jobs with ``--no-requeue`` in a cloud that also has spot machines, on real Slurm: they get machines
on demand, and Slurm never starts them on a spot machine, not even on an idle one.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from slurm_elastic.base.hostlist import expand
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import ELASTIC, PATIENCE, machines, running_nodes

pytestmark = pytest.mark.e2e

WHOLE = "-c2"
"""All CPUs of a node, so that each job has a node of its own."""
ONCE = "--no-requeue"


LAST = ("pub4", "pub5")


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """One own node, which is in use. The last nodes of cloud aws never have spot machines."""
    site = sandbox(
        static_nodes=1, drop=("onprem",), suspend_time=600.0,
        elastic={"pools": [{"name": "pub", "nodes": "pub[1-5]", "on_demand_nodes": len(LAST)}]},
    )  # fmt: skip
    blocker = site.submit("sleep 3600", WHOLE, "--partition=batch", "--time=60", user="root")
    running_nodes(site, [blocker])
    return site


def market_of(site: Sandbox, node: str) -> Market:
    return next(m.instance.market for m in machines(site) if m.instance.node == node)


def node_of(site: Sandbox, job: int) -> str:
    (node,) = running_nodes(site, [job])[job]
    return node


def queue(site: Sandbox) -> list[SlurmJob]:
    return [row for row in site.jobs() if not row.has_ended]


def ended(site: Sandbox, job: int) -> None:
    site.run(["scancel", str(job)])
    site.wait_for(lambda: job not in {row.id for row in queue(site)}, PATIENCE, "it has ended")


def idle(site: Sandbox, node: str) -> bool:
    done = site.run(["sinfo", "-h", "-n", node, "-o", "%T"])
    return done.stdout.split()[:1] == ["idle"]


@pytest.fixture(scope="module")
def idle_spot(site: Sandbox) -> str:
    """A spot machine that is up and waits for a job."""
    job = site.submit("sleep 600", WHOLE)
    node = node_of(site, job)
    assert market_of(site, node) is Market.SPOT
    ended(site, job)
    site.wait_for(lambda: idle(site, node), PATIENCE, f"{node} is idle")
    return node


def test_an_idle_spot_machine_gets_no_job_that_must_not_be_requeued(
    site: Sandbox, idle_spot: str
) -> None:
    job = site.submit("sleep 600", WHOLE, ONCE)
    node = node_of(site, job)
    assert node in LAST
    assert market_of(site, node) is Market.ON_DEMAND
    assert idle(site, idle_spot)
    record = site.job(job)
    assert record["Requeue"] == "0"
    assert expand(record["ExcNodeList"]) == expand("pub[1-3]")

    plain = site.submit("sleep 600", WHOLE)
    assert node_of(site, plain) == idle_spot, "a job that may be requeued takes it"
    for each in (job, plain):
        ended(site, each)


@pytest.mark.release
def test_users_read_the_same_before_and_after_the_submission(site: Sandbox) -> None:
    script = site.work / "once.sh"
    script.write_text("#!/bin/sh\n#SBATCH --time=5 -c2\nsleep 600\n")
    for nodes, is_open in (("-N1", True), ("-N3", False)):
        words = [*ELASTIC, "price", str(script), ONCE, nodes, "--json"]
        rows = json.loads(site.run(words, user="nobody", check=False).stdout)["rows"]
        starting = {
            row["forecast"].get("pool", "") for row in rows if row["forecast"].get("start_s")
        }
        assert ("pub" in starting) is is_open, rows
        job = site.submit("sleep 600", WHOLE, ONCE, nodes, "--hold")
        assert ("aws" in site.job(job)["Partition"].split(",")) is is_open
        told = site.run([*ELASTIC, "explain", str(job)], user="nobody", check=False).stdout
        reason = "all but 2 of its nodes may have spot machines, and the job may not be requeued"
        assert (reason in " ".join(told.split())) is not is_open, told
        ended(site, job)


def test_a_job_on_a_node_of_both_markets_gets_a_machine_on_demand(
    site: Sandbox, idle_spot: str
) -> None:
    """Its user names the node, so the filter excludes none."""
    job = site.submit("sleep 600", WHOLE, ONCE, "-p", "aws", "-w", "pub3")
    assert node_of(site, job) == "pub3"
    assert market_of(site, "pub3") is Market.ON_DEMAND
    refusals = site.run([*ELASTIC, "explain", str(job)], user="nobody").stdout
    reason = "must not be requeued (--no-requeue), so it gets no spot machine"
    assert reason in " ".join(refusals.split()), refusals
    ended(site, job)


@pytest.mark.release
def test_a_job_whose_tool_submits_it_again_gets_a_spot_machine(
    site: Sandbox, idle_spot: str
) -> None:
    job = site.submit("sleep 600", WHOLE, ONCE, "--comment=spot=ok")
    assert node_of(site, job) == idle_spot
    ended(site, job)
