"""Three clouds at once on real Slurm: OpenNebula full by quota, OpenStack without a valid host, EC2
without spot. Plain jobs all run in the end, on demand, and each hop has its reason.
"""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from providers.nova_stand_in import StandIn
from providers.stack_bed import StackBed

from slurm_elastic.cli.main import main
from slurm_elastic.ledger import Decision
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2_faults import Fault, FaultKind
from slurm_elastic.sandbox.one_control import Quota
from slurm_elastic.story import tell_job
from tests.e2e.conftest import why_not
from tests.e2e.world import back_to_zero, ledger, live_ec2, machines, submit_many

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]
for sdk in ("pyone", "openstack"):
    pytest.importorskip(sdk, reason=f"{sdk} is not installed")

FULL = "--cpus-per-task=2"
USERS = 1
JOBS = 20
REASONS = (
    "limit of 0 reached for VMS quota",
    "No valid host was found",
    "InsufficientInstanceCapacity",
)
SIZE = {"cpus": 2, "memory": 1256, "real_memory": 1000, "instance_types": ["small"]}
NEBULA = {
    "name": "nebula", "provider": "opennebula", "location": "on-premises", "pending_limit": 10,
    "types": {"small": {"cpus": 2, "memory": 2048, "template": 3}},
}  # fmt: skip
STACK = {
    "name": "stack", "provider": "openstack", "location": "on-premises", "cloud": "hpc",
    "image": "worker", "types": {"small": {"cpus": 2, "memory": 4096}},
}  # fmt: skip
POOLS = [
    {"name": "neb", "cloud": "nebula", "nodes": "neb[1-2]", **SIZE},
    {"name": "os", "cloud": "stack", "nodes": "os[1-2]", **SIZE},
]


@pytest.fixture(scope="module")
def nova() -> Iterator[StandIn]:
    with StandIn().serving() as stand_in:
        yield stand_in


@pytest.fixture(scope="module")
def clouds_file(nova: StandIn) -> Iterator[Path]:
    """The daemon is user slurm and reads a clouds.yaml that is its own."""
    if reason := why_not():
        pytest.skip(reason)
    directory = Path(tempfile.mkdtemp(prefix="se-three-", dir="/tmp"))
    directory.chmod(0o755)
    bed = StackBed(nova, directory)
    slurm = pwd.getpwnam("slurm")
    os.chown(bed.file, slurm.pw_uid, slurm.pw_gid)
    yield bed.file
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox], clouds_file: Path) -> Sandbox:
    """One static node and three clouds; the sandbox's own, EC2, is the last of the list."""
    return sandbox(
        static_nodes=1,
        drop=("onprem",),
        elastic={
            "clouds": [NEBULA, STACK | {"clouds_file": str(clouds_file)}],
            "pools": POOLS,
            "timings": {"capacity_cooldown": 120, "quota_cooldown": 120},
        },
    )


@pytest.fixture(autouse=True)
def nothing_to_be_had(site: Sandbox, nova: StandIn) -> Iterator[None]:
    """But for on-demand machines of EC2. And in the end nothing is left anywhere."""
    site.one.quota(Quota(group=USERS, vm={"VMS": 0}))
    nova.world.capacity = 0
    site.ec2.fail(Fault(kind=FaultKind.CAPACITY, market="spot"))
    yield
    for job in site.jobs():
        site.run(["scancel", str(job.id)])
    back_to_zero(site)
    assert live_ec2(site) == []
    assert [m for m in site.one.state().machines if m.state != 6] == []
    with nova.lock:
        assert nova.world.servers == {}


def test_twenty_plain_jobs_run_where_there_is_a_machine_and_say_why(site: Sandbox) -> None:
    jobs = submit_many(site, JOBS, "sleep 2", FULL)
    fields = {job: site.wait_job(job, timeout=600) for job in jobs}
    used = {f["Partition"] for f in fields.values()}
    assert used <= {"batch", "aws"}
    assert "aws" in used, "the static node alone did not do it all"
    assert {str(m.instance.market) for m in machines(site, ended=True)} == {"on-demand"}
    chains = {job: chain(site, job) for job in jobs}
    told = " ".join(d.reason for found in chains.values() for d in found)
    for words in REASONS:
        assert words in told


def test_one_job_goes_through_all_three_and_each_hop_is_told(site: Sandbox) -> None:
    """What cools down since the first test is cleared by the operator, and the nodes let go."""
    assert main(["clear", "--all", "--config", str(site.layout.config)]) == 0
    site.wait_for(lambda: not held(site), 150, "all holds are over")
    (job,) = submit_many(site, 1, "sleep 2", FULL, "--partition=nebula,stack,aws")
    fields = site.wait_job(job, timeout=300)
    assert fields["Partition"] == "aws"
    assert fields["Restarts"] == "2"
    found = [d for d in chain(site, job) if f"job:{job}" in d.subjects]
    refused = [d for d in found if d.kind == "refused"]
    assert len(refused) == 2
    for decision, words in zip(refused, REASONS[:2], strict=True):
        assert words in decision.reason
    (bought,) = [d for d in found if d.kind == "launched"]
    assert "on-demand" in bought.reason
    assert REASONS[2] in " ".join(d.reason for d in found if d.kind == "launch-refused")
    hops = [d for d in found if d.kind in ("refused", "launched")]
    for before, after in pairwise(hops):
        print(f"hop: {after.at - before.at:.1f} s from {before.subjects} to {after.subjects}")


def held(site: Sandbox) -> list[str]:
    nodes = site.nodes().values()
    return [n.name for n in nodes if n.reason.startswith("slurm-elastic:hold:")]


def chain(site: Sandbox, job: int) -> list[Decision]:
    book = ledger(site)
    try:
        return tell_job(job, book.decisions)
    finally:
        book.close()
