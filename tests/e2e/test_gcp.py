"""The emulated Compute Engine as the public cloud of real Slurm: jobs burst to it, and it is empty
afterwards.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from emulated import GceControl, running_gce
from providers.gcp.bed import BULK, ZONES, world, write_key

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.gce.world import PROJECT, REGION
from tests.e2e.ckpt import SITE, UNTIL_ENOUGH, counter, enough, kinds, node_of, settled, wait_steps
from tests.e2e.world import machines, partition_of, submit_many

pytestmark = [pytest.mark.e2e, pytest.mark.release]
POOL = {
    "name": "gc", "cloud": "google", "nodes": "gc[1-4]", "cpus": 2, "memory": 1256,
    "real_memory": 1000, "instance_types": ["small"], "markets": ["spot", "on-demand"],
}  # fmt: skip


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GceControl]:
    with running_gce(tmp_path_factory.mktemp("gce")) as running:
        running.reset(world())
        yield running


@pytest.fixture(scope="module")
def site(google: GceControl, sandbox: Callable[..., Sandbox]) -> Iterator[Sandbox]:
    slurm = pwd.getpwnam("slurm")
    key = Path("/run") / f"slurm-elastic-google-{os.getpid()}.json"
    write_key(key, google.token_url)
    os.chown(key, slurm.pw_uid, slurm.pw_gid)
    cloud = {
        "name": "google", "provider": "gcp", "location": "public", "endpoint": google.url,
        "project": PROJECT, "region": REGION, "zones": list(ZONES), "image": "family/worker",
        "credentials": str(key), "launch_wait": 5.0,
        "types": {"small": {"cpus": 2, "memory": 4096, "price": 0.1, "spot_price": 0.02}},
    }  # fmt: skip
    try:
        yield sandbox(
            static_nodes=1, drop=("onprem", "aws"), resume_timeout=180.0,
            elastic={"clouds": [cloud], "pools": [POOL], "join": {"head": "127.0.0.1"}, **SITE["elastic"]},
            dead_man=60.0, suspend_time=8.0, suspend_timeout=5.0,
        )  # fmt: skip
    finally:
        key.unlink()


def test_jobs_burst_past_a_stock_out_and_leave_nothing(site: Sandbox, google: GceControl) -> None:
    google.fail(Fault(kind=FaultKind.CAPACITY, action=BULK, count=1))
    jobs = submit_many(site, 4, "sleep 5", "--cpus-per-task=2")
    for job in jobs:
        assert site.wait_job(job)["JobState"] == "COMPLETED"
    assert {"google"} in [partition_of(site, job) for job in jobs]
    assert len(google.state().made) >= 2
    site.wait_for(
        lambda: not (google.state().machines or machines(site)), 120, "Google has no machine"
    )
    assert google.state().violations == ()


def test_a_preemption_saves_a_job_before_its_machine_is_taken(
    site: Sandbox, google: GceControl
) -> None:
    """The machine's agent reads it from the metadata server, and reports it to the head."""
    job = counter(site, "--partition=google", steps=UNTIL_ENOUGH)
    wait_steps(site, job, 8)
    (taken,) = [m.instance.id for m in machines(site) if m.instance.node == node_of(site, job)]
    google.preempt(taken, 60.0)
    enough(site, job, runs=2)
    assert site.job(job)["Restarts"] == "1"
    settled(site)
    told = [k for k in kinds(site, f"job:{job}") if k.startswith("ckpt-")]
    assert told[:4] == ["ckpt-planned", "ckpt-saved", "ckpt-requeued", "ckpt-back"]
    site.wait_for(
        lambda: not (google.state().machines or machines(site)), 120, "Google has no machine"
    )
