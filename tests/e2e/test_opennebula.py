"""An on-premises OpenNebula on real Slurm: used first; full by quota or by its hosts, jobs go
on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from needs import not_installed

from slurm_elastic.policies.launch.trial import TrialStep
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.nebula.control import OneQuota
from slurm_elastic.sandbox.nebula.world import OneHost
from tests.e2e.trying import steps, tried
from tests.e2e.world import (
    Until,
    cleared,
    forget_cool_downs,
    held,
    ledger,
    partition_of,
    running_nodes,
    submit_many,
    waited_out,
)

pytestmark = pytest.mark.e2e
pytest.importorskip("pyone", reason=not_installed("pyone"))
FULL = "--cpus-per-task=2"
ELASTIC, USERS = 2, 1
CLOUD = {
    "name": "nebula", "provider": "opennebula", "location": "on-premises",
    "types": {"small": {"cpus": 2, "memory": 2048, "template": 3}}, "pending_timeout": 10,
}  # fmt: skip
POOL = {
    "name": "neb", "cloud": "nebula", "nodes": "neb[1-4]", "cpus": 2, "memory": 1256,
    "real_memory": 1000, "instance_types": ["small"],
}  # fmt: skip


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    aws = {"name": "aws", "provider": "aws"}
    return sandbox(
        static_nodes=1, drop=("onprem",), elastic={"clouds": [aws, CLOUD], "pools": [POOL]}
    )


@pytest.fixture(autouse=True)
def healthy(site: Sandbox) -> Iterator[None]:
    yield
    site.opennebula.heal()
    site.opennebula.quota(OneQuota(user=ELASTIC))
    site.opennebula.quota(OneQuota(group=USERS))
    cleared(site)
    forget_cool_downs(site)
    assert [m for m in site.opennebula.state().machines if m.state != 6] == []
    site.wait_for(lambda: not held(site), 150, "all holds are over")


def reasons(site: Sandbox, job: int) -> str:
    book = ledger(site)
    try:
        return " ".join(str(d.reason) for d in book.decisions.about(f"job:{job}"))
    finally:
        book.close()


@pytest.mark.release
def test_full_by_the_groups_quota_the_jobs_go_on_to_aws(site: Sandbox) -> None:
    """The account may not read the group: oned tells of its quota only by refusing, at once."""
    site.opennebula.quota(OneQuota(group=USERS, vm={"VMS": 2}, hidden=True))
    until = Until(site)
    first = submit_many(site, 2, until.script, FULL, "--partition=nebula,aws")
    nodes = running_nodes(site, first)
    assert all(n.startswith("neb") for j in first for n in nodes[j])
    before = waited_out(site)
    more = submit_many(site, 2, "sleep 2", FULL, "--partition=nebula,aws")
    for job in more:
        assert site.wait_job(job)["Partition"] == "aws"
    assert waited_out(site) == before, "it did not wait for ResumeTimeout"
    told = " ".join(reasons(site, job) for job in more)
    assert "group [1] limit of 2 reached for VMS quota in VM" in told
    until.go()
    for job in first:
        site.wait_job(job)


@pytest.mark.release
def test_full_by_the_accounts_own_quota_nothing_is_even_asked(site: Sandbox) -> None:
    site.opennebula.quota(OneQuota(user=ELASTIC, vm={"VMS": 1}))
    until = Until(site)
    (first,) = submit_many(site, 1, until.script, FULL, "--partition=nebula,aws")
    running_nodes(site, [first])
    before = site.opennebula.state().calls["one.template.instantiate"]
    (second,) = submit_many(site, 1, "sleep 2", FULL, "--partition=nebula,aws")
    assert site.wait_job(second)["Partition"] == "aws"
    assert site.opennebula.state().calls["one.template.instantiate"] == before
    assert "VMS quota is 1 and 1 are used" in reasons(site, second)
    until.go()
    assert site.wait_job(first)["Partition"] == "nebula"


def test_a_plain_job_runs_on_opennebula_and_the_machine_knows_its_node(site: Sandbox) -> None:
    until = Until(site)
    (job,) = submit_many(site, 1, until.script, FULL, "--partition=nebula")
    (node,) = running_nodes(site, [job])[job]
    (machine,) = [m for m in site.opennebula.state().machines if m.state == 3]
    assert machine.context["SLURM_ELASTIC_NODE"] == machine.context["SET_HOSTNAME"] == node
    assert partition_of(site, job) == {"nebula"}
    until.go()
    site.wait_job(job)


@pytest.mark.release
def test_a_machine_that_finds_no_place_is_given_up_and_its_job_goes_on_to_aws(
    site: Sandbox,
) -> None:
    """oned takes the order and its scheduler finds no host: known only after a while."""
    hosts = [OneHost(id=n, name=f"node{n:02}", cpu=6400, memory=2**30) for n in range(4)]
    site.opennebula.hosts([])
    try:
        (job,) = submit_many(site, 1, "sleep 2", FULL, "--partition=nebula,aws")
        fields = site.wait_job(job)
    finally:
        site.opennebula.hosts(hosts)
    assert fields["Partition"] == "aws"
    assert "No host with enough capacity" in reasons(site, job)


@pytest.mark.release
def test_try_follows_a_machine_from_its_order_to_its_end(site: Sandbox) -> None:
    code, said = tried(site, "nebula", "--user", "nobody")
    assert code == 0, said
    assert steps(said) == [str(step) for step in TrialStep]
    assert "One machine of pool neb: nebula/small/" in said


@pytest.mark.release
def test_try_names_the_groups_quota(site: Sandbox) -> None:
    """The account may not read it: oned tells it when it refuses the order."""
    site.opennebula.quota(OneQuota(group=USERS, vm={"VMS": 0}, hidden=True))
    code, said = tried(site, "nebula")
    assert code == 1, said
    assert "STOPPED before launched" in said, said
    assert "cause: quota: " in said, said
    assert "limit of 0 reached for VMS quota" in said


@pytest.mark.release
def test_failures_are_asked_for_and_healed_by_command(site: Sandbox) -> None:
    def cli(*words: str) -> str:
        command = [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "sandbox"]
        return site.run([*command, *words, "--dir", str(site.layout.dir)]).stdout

    cli("fail", "internal", "--action", "one.vm.action", "--count", "2")
    assert [f.action for f in site.opennebula.state().faults] == ["one.vm.action"]
    assert "failing: internal of one.vm.action, 2 calls" in cli("status")
    cli("heal")
    assert site.opennebula.state().faults == ()
