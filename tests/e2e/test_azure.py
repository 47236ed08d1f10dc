"""The emulated Azure as the public cloud of real Slurm: jobs burst to it, and it is empty afterwards."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from providers.azure.bed import KEY, SIZE, SUBNET

from slurm_elastic.sandbox.azure import serve, world
from slurm_elastic.sandbox.azure.serve import EmulatedAzure
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from tests.e2e.ckpt import SITE, UNTIL_ENOUGH, counter, enough, kinds, node_of, settled, wait_steps
from tests.e2e.world import machines, partition_of, submit_many

pytestmark = [pytest.mark.e2e, pytest.mark.release]
CHECKPOINT = SITE["elastic"]
POOL = {
    "name": "az", "cloud": "azure", "nodes": "az[1-4]", "cpus": 2, "memory": 1256,
    "real_memory": 1000, "instance_types": [SIZE], "markets": ["spot", "on-demand"],
}  # fmt: skip


@pytest.fixture(scope="module")
def azure() -> Iterator[EmulatedAzure]:
    with EmulatedAzure().serving() as running:
        yield running


@pytest.fixture(scope="module")
def site(azure: EmulatedAzure, sandbox: Callable[..., Sandbox]) -> Iterator[Sandbox]:
    slurm = pwd.getpwnam("slurm")
    place = Path("/run") / f"slurm-elastic-azure-{os.getpid()}.yaml"
    place.touch(mode=0o600)
    login = {"tenant": serve.TENANT, "client_id": serve.CLIENT, "client_secret": serve.SECRET}
    place.write_text(yaml.safe_dump(login))
    os.chown(place, slurm.pw_uid, slurm.pw_gid)
    cloud = {
        "name": "azure", "provider": "azure", "location": "public", "endpoint": azure.url,
        "login_endpoint": azure.url, "price_endpoint": azure.url, "subscription": serve.SUBSCRIPTION,
        "resource_group": serve.GROUP, "region": "westeurope", "zones": ["1", "2"],
        "image": "debian:debian-12:12-gen2:latest", "subnet": SUBNET, "ssh_public_key": KEY,
        "credentials": str(place), "launch_wait": 1.0,
        "types": {SIZE: {"cpus": 2, "memory": 4096, "price": 0.1, "spot_price": 0.02}},
    }  # fmt: skip
    try:
        yield sandbox(
            static_nodes=1, drop=("onprem", "aws"), resume_timeout=180.0,
            elastic={"clouds": [cloud], "pools": [POOL], "join": {"head": "127.0.0.1"}, **CHECKPOINT},
            dead_man=60.0, suspend_time=8.0, suspend_timeout=5.0,
        )  # fmt: skip
    finally:
        place.unlink()


def test_jobs_burst_past_a_refusal_and_leave_nothing(site: Sandbox, azure: EmulatedAzure) -> None:
    azure.faults.add(Fault(kind=FaultKind.CAPACITY, action="create", count=1))
    jobs = submit_many(site, 4, "sleep 5", "--cpus-per-task=2")
    for job in jobs:
        assert site.wait_job(job)["JobState"] == "COMPLETED"
    assert {"azure"} in [partition_of(site, job) for job in jobs]
    assert azure.world.made >= 2
    site.wait_for(lambda: not (azure.world.vms or machines(site)), 120, "Azure has no machine")
    assert azure.world.cards == azure.world.disks == {}
    assert azure.world.refused_by_schema == []


def test_a_scheduled_event_saves_a_job_before_its_machine_is_taken(
    site: Sandbox, azure: EmulatedAzure
) -> None:
    """The machine's agent reads the event, and reports it to the head."""
    job = counter(site, "--partition=azure", steps=UNTIL_ENOUGH)
    wait_steps(site, job, 8)
    (taken,) = [m.instance.id for m in machines(site) if m.instance.node == node_of(site, job)]
    with azure.lock:
        world.evict(azure.world, taken, 60.0)
    enough(site, job, runs=2)
    assert site.job(job)["Restarts"] == "1"
    settled(site)
    told = [k for k in kinds(site, f"job:{job}") if k.startswith("ckpt-")]
    assert told[:4] == ["ckpt-planned", "ckpt-saved", "ckpt-requeued", "ckpt-back"]
    site.wait_for(lambda: not (azure.world.vms or machines(site)), 120, "Azure has no machine")
    assert azure.world.cards == azure.world.disks == {}
