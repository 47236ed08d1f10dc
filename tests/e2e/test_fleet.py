"""CreateFleet on real Slurm: one call for several types and zones, each machine the right node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import Until, cleared, ledger, machines, submit_many

pytestmark = [pytest.mark.e2e, pytest.mark.release]
FULL = "--cpus-per-task=2"
OFFERS = [f"{kind}/us-east-1{z}/spot" for kind in ("c5.large", "m5.large") for z in "abc"]


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(
        static_nodes=1,
        drop=("onprem",),
        elastic={
            "clouds": [{"name": "aws", "strategy": "fleet"}],
            "pools": [{"name": "pub", "nodes": "pub[1-6]", "cloud": "aws"}],
        },
    )


@pytest.fixture(autouse=True)
def emptied(site: Sandbox) -> Iterator[None]:
    yield
    for offer in OFFERS:
        site.ec2.stock(offer, None)
    cleared(site)


def test_jobs_run_on_machines_that_one_call_found_in_several_places(site: Sandbox) -> None:
    """Each type has one spot machine in each zone: no offer alone could serve the job."""
    for offer in OFFERS:
        site.ec2.stock(offer, 1)
    before = site.ec2.state().calls
    (job,) = submit_many(site, 1, "srun -l hostname; sleep 5", FULL, "--partition=aws", "-N3")
    fields = site.wait_job(job)
    assert fields["JobState"] == "COMPLETED"
    assert fields["Restarts"] == "0"
    calls = site.ec2.state().calls
    assert 1 <= calls.get("CreateFleet", 0) - before.get("CreateFleet", 0) <= 3
    assert calls.get("RunInstances", 0) == 0
    bought = [m.instance for m in machines(site, ended=True)]
    assert len({i.offer_key for i in bought}) == len({i.node for i in bought}) == 3
    with closing(ledger(site)) as book:
        said = [str(d.reason) for d in book.decisions.about(f"job:{job}") if d.kind == "launched"]
    assert any("chosen by the cloud among" in reason for reason in said)


def test_a_machine_that_the_cloud_takes_costs_one_restart(site: Sandbox) -> None:
    until = Until(site)
    (job,) = submit_many(site, 1, until.script, FULL, "--partition=aws", "--requeue")
    site.wait_for(lambda: "RUNNING" in site.job(job)["JobState"], 120, "the job runs")
    taken = {m.id for m in site.ec2.state().machines if m.state == "running"}
    site.ec2.interrupt(taken, notice=0)
    site.wait_for(lambda: site.job(job)["Restarts"] != "0", 120, "the job is requeued")
    until.go()
    fields = site.wait_job(job)
    assert fields["JobState"] == "COMPLETED"
