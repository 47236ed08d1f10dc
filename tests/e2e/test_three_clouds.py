"""Three clouds at once on real Slurm: OpenNebula full by quota, OpenStack without a valid host, EC2
without spot. Plain jobs all run in the end, on demand, and each hop has its reason and its time.

OpenStack is a real control plane; where the machine can have none it is a stand-in, and the output
says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest
from needs import not_installed

from slurm_elastic.cli.main import main
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.nebula.control import OneQuota
from slurm_elastic.state.audit_trail import tell_job
from slurm_elastic.state.ledger import Decision
from tests.e2e.conftest import why_not
from tests.e2e.full_stack import FullStack, full_stack
from tests.e2e.world import back_to_zero, cleared, held, ledger, live_ec2, machines, submit_many

pytestmark = [pytest.mark.e2e, pytest.mark.release]
for sdk in ("pyone", "openstack"):
    pytest.importorskip(sdk, reason=not_installed(sdk))

FULL = "--cpus-per-task=2"
USERS = 1
JOBS = 20
GOAL = 1.5
"""Times the floor that a hop should take at most, on a machine that does nothing else."""
STAMPED = "#!/bin/sh\ndate +%s.%N >> starts-$SLURM_JOB_ID\nsleep {}\n"
REASONS = (
    "limit of 0 reached for VMS quota",
    "No valid host was found",
    "InsufficientInstanceCapacity",
)
SIZE = {"cpus": 2, "memory": 1256, "real_memory": 1000, "instance_types": ["small"]}
NEBULA = {
    "name": "nebula", "provider": "opennebula", "location": "on-premises", "pending_timeout": 10,
    "types": {"small": {"cpus": 2, "memory": 2048, "template": 3}},
}  # fmt: skip
POOLS = [
    {"name": "neb", "cloud": "nebula", "nodes": "neb[1-2]", **SIZE},
    {"name": "os", "cloud": "stack", "nodes": "os[1-2]", **SIZE},
]


@pytest.fixture(scope="module")
def stack() -> Iterator[FullStack]:
    if reason := why_not():
        pytest.skip(reason)
    with full_stack() as full:
        yield full


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox], stack: FullStack) -> Sandbox:
    """One static node and three clouds; the sandbox's own, EC2, is the last of the list."""
    return sandbox(
        static_nodes=1,
        drop=("onprem",),
        resume_timeout=180.0,
        elastic={
            "clouds": [NEBULA, stack.cloud],
            "pools": POOLS,
            "timings": {"capacity_cooldown": 120, "quota_cooldown": 120},
        },
    )


@pytest.fixture(autouse=True)
def nothing_to_be_had(site: Sandbox, stack: FullStack) -> Iterator[None]:
    """But for on-demand machines of EC2. And in the end nothing is left anywhere."""
    site.opennebula.quota(OneQuota(group=USERS, vm={"VMS": 0}, hidden=True))
    site.ec2.fail(Fault(kind=FaultKind.CAPACITY, market="spot"))
    yield
    cleared(site)
    assert live_ec2(site) == []
    assert [m for m in site.opennebula.state().machines if m.state != 6] == []
    stack.require_empty()


def test_twenty_plain_jobs_run_where_there_is_a_machine_and_say_why(site: Sandbox) -> None:
    jobs = submit_many(site, JOBS, "sleep 2", FULL)
    fields = {job: site.wait_job(job, timeout=600) for job in jobs}
    used = {f["Partition"] for f in fields.values()}
    assert used <= {"batch", "aws"}
    assert "aws" in used, "the static node alone did not do it all"
    assert {str(m.instance.market) for m in machines(site, ended=True)} == {"on-demand"}
    chains = {job: chain(site, job) for job in jobs}
    told = " ".join(str(d.reason) for found in chains.values() for d in found)
    for words in REASONS:
        assert words in told


def test_one_job_goes_through_all_three_and_each_hop_is_told_and_timed(
    site: Sandbox, stack: FullStack, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator clears all that cools down since the first test, and the nodes are let go."""
    assert main(["clear", "--all", "--config", str(site.layout.config)]) == 0
    site.wait_for(lambda: not held(site), 150, "all holds are over")
    before = lookups(site)
    job = site.submit(STAMPED.format(2), FULL, "--partition=nebula,stack,aws")
    fields = site.wait_job(job, timeout=400)
    assert lookups(site) == before, "slurmctld searched the name of a refused node"
    assert fields["Partition"] == "aws"
    assert fields["Restarts"] == "2"
    found = [d for d in chain(site, job) if f"job:{job}" in d.subjects]
    refused = [d for d in found if d.kind == "refused"]
    assert len(refused) == 2
    for decision, words in zip(refused, REASONS[:2], strict=True):
        assert words in str(decision.reason)
    (bought,) = [d for d in found if d.kind == "launched"]
    assert "on-demand" in str(bought.reason)
    assert REASONS[2] in " ".join(str(d.reason) for d in found if d.kind == "launch-refused")
    (ran,) = starts(site, job)
    first, second = (d.at for d in refused)
    assert first < second < bought.at < ran
    again, refusal, boot = requeue_floor(site), stack.refusal(), boot_floor(site)
    hops = (
        Hop("OpenNebula refuses -> OpenStack refuses", second - first, again + refusal),
        Hop("OpenStack refuses -> runs on EC2", ran - second, again + boot),
    )
    with capsys.disabled():
        print(f"\nOpenStack: {stack.kind}")
        print(f"floors: requeue {again:.1f} s, refusal {refusal:.1f} s, boot {boot:.1f} s")
        print(table(hops, again + boot))


class Hop(NamedTuple):
    """``took``, and ``bare``: what Slurm and that cloud take without us (s)."""

    name: str
    took: float
    bare: float


def table(hops: Sequence[Hop], floor: float) -> str:
    """Not asserted: what else a machine does at that moment weighs more than the product.

    ``floor`` is that of a requeue and a boot (s), to which the goal of a hop refers.
    """
    rows = [
        f"| hop | took | of requeue and boot (goal: {GOAL}) | of what must be waited for in it |",
        "|---|---|---|---|",
    ]
    rows += [
        f"| {h.name} | {h.took:.1f} s | {h.took / floor:.2f} | {h.took / h.bare:.2f} |"
        for h in hops
    ]
    return "\n".join(rows)


def requeue_floor(site: Sandbox) -> float:
    """Seconds from ``scontrol requeue`` of a job to its next start, on a node that is up: what
    Slurm alone takes. Left out are its hold and the second in which slurmd refuses, as killed, a
    job that comes back ("Job already killed, do not launch batch job"): the job would fail.
    """
    job = site.submit(STAMPED.format(600), FULL, "--partition=batch")
    site.wait_for(lambda: starts(site, job), 120, "the job runs")
    began = time.time()
    site.run(["scontrol", "requeue", str(job)])
    site.wait_for(lambda: is_held(site, job), 100, "the job waits again")
    waits = time.time()
    time.sleep(2.0)
    lifted = time.time()
    site.run(["scontrol", "update", f"jobid={job}", "starttime=now"])
    site.wait_for(lambda: len(starts(site, job)) > 1, 120, "the job runs again")
    site.run(["scancel", str(job)])
    return starts(site, job)[1] - lifted + waits - began


def is_held(site: Sandbox, job: int) -> bool:
    """Whether its first run has ended; Slurm's hold is two minutes."""
    return any(
        j.id == job and "PENDING" in j.states and "COMPLETING" not in j.states for j in site.jobs()
    )


def boot_floor(site: Sandbox) -> float:
    """Seconds from the order of an on-demand machine to the start of the job that it is for."""
    back_to_zero(site)
    job = site.submit(STAMPED.format(2), FULL, "--partition=aws")
    site.wait_job(job, timeout=300)
    bought = [d.at for d in chain(site, job) if d.kind == "launched"]
    return starts(site, job)[0] - bought[-1]


def lookups(site: Sandbox) -> int:
    """How often slurmctld asked in vain for the address of a node's name. 22.05 repeats each for
    ten seconds, in which it starts nothing: that was three quarters of the time of a hop.
    """
    log = site.layout.log / "slurmctld.log"
    return log.read_text(errors="replace").count("getaddrinfo() failed")


def starts(site: Sandbox, job: int) -> list[float]:
    """When the job's script began, each time (s since the epoch)."""
    file = site.work / f"starts-{job}"
    return [float(line) for line in file.read_text().split()] if file.exists() else []


def chain(site: Sandbox, job: int) -> list[Decision]:
    book = ledger(site)
    try:
        return tell_job(job, book.decisions.about)
    finally:
        book.close()
