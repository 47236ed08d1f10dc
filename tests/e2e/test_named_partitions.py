"""A cloud for jobs of one partition of the site, on real Slurm with growth ``on_demand``: jobs that
name this partition use its own nodes first, then that cloud, and no other jobs get the cloud.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.policy_site import told
from tests.e2e.world import PATIENCE, cleared, held, machines, running_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.release]

OWN_GPU_NODE = "st2"
CLOUD_NODES = 2 + 2


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """Partition gpu has one node, which the default partition batch has, too. Cloud aws is for jobs
    of partition gpu, cloud onprem for jobs that name none.
    """
    site = sandbox(
        static_nodes=2,
        slurm_conf=(f"PartitionName=gpu Nodes={OWN_GPU_NODE} DefaultTime=10 State=UP",),
        elastic={
            "policies": {
                "growth": "on_demand",
                "release": "idle(seconds=5)",
                "poll_interval": "1s",
            },
            "clouds": [{"name": "aws", "allow": {"partitions": ["gpu"]}}],
            "pools": [{"name": "pub", "nodes": "pub[1-2]"}],
        },
    )
    at_rest(site)
    return site


@pytest.fixture(autouse=True)
def calm(site: Sandbox) -> Iterator[None]:
    yield
    cleared(site)
    at_rest(site)


def at_rest(site: Sandbox) -> None:
    site.wait_for(lambda: len(held(site)) == CLOUD_NODES, PATIENCE, "all cloud nodes are held")


def submit(site: Sandbox, *options: str) -> int:
    return site.submit("sleep 600", "-c2", *options)


def listed(site: Sandbox, job: int) -> set[str]:
    row = next(row for row in site.jobs() if row.id == job)
    return set(row.partitions)


def launches_in_aws(site: Sandbox) -> int:
    return sum(m.instance.node.startswith("pub") for m in machines(site, ended=True))


def rows(site: Sandbox, job: int) -> list[tuple[str, str]]:
    """The partition and the time limit of each running task."""
    command = ["squeue", "-h", "-r", "-t", "R", "-j", str(job), "-o", "%P %l %t"]
    shown = (line.split() for line in site.run(command).stdout.splitlines())
    return sorted((partition, limit) for partition, limit, state in shown if state == "R")


def test_a_job_of_the_partition_starts_at_home_then_in_its_cloud(site: Sandbox) -> None:
    first = submit(site, "-p", "gpu")
    assert running_nodes(site, [first]) == {first: [OWN_GPU_NODE]}
    assert machines(site) == ()

    second = submit(site, "-p", "gpu", "-H")
    assert listed(site, second) == {"gpu", "aws"}
    site.run(["scontrol", "release", str(second)])
    (node,) = running_nodes(site, [second])[second]
    assert node.startswith("pub")
    assert [machine.instance.node for machine in machines(site)] == [node]


def test_a_job_without_a_partition_never_gets_that_cloud(site: Sandbox) -> None:
    before = launches_in_aws(site)
    jobs = [submit(site, "-t", "20") for _ in range(6)]
    site.wait_for(
        lambda: sorted(p for job in jobs for p, _ in rows(site, job)) == ["batch"] * 2 + ["onprem"] * 2,
        PATIENCE, "the site's nodes and the other cloud are full",
    )  # fmt: skip
    waiting = [row for row in site.jobs() if "PENDING" in row.states]
    assert [set(row.partitions) for row in waiting] == [{"batch", "onprem"}] * 2
    assert launches_in_aws(site) == before
    explained = " ".join(told(site, "explain", str(waiting[0].id)).split())
    reason = "only jobs that name partition gpu may get aws (allow.partitions of cloud aws)"
    assert f"the job is for partition batch; {reason}" in explained


@pytest.mark.parametrize(("options", "limit"), [((), "10:00"), (("-t", "20"), "20:00")])
def test_an_array_of_the_partition_has_one_limit(
    site: Sandbox, options: tuple[str, ...], limit: str
) -> None:
    array = submit(site, "-p", "gpu", "--array=1-5", *options)
    expected = [("aws", limit), ("aws", limit), ("gpu", limit)]
    site.wait_for(lambda: rows(site, array) == expected, PATIENCE, "node and machines have tasks")
    assert {row.limit for row in site.jobs() if row.array == array} == {
        600.0 if limit == "10:00" else 1200.0
    }
    site.run(["scancel", "-p", "gpu", "--state=RUNNING"])
    site.wait_for(lambda: rows(site, array) == expected, PATIENCE, "the next task starts at home")
    assert len(machines(site)) == 2
