"""Machines leave by an operator's word on real Slurm: after their jobs, or with their work moved,
each step of it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from slurm_elastic.policies.nodes.node_state import is_drained
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.ckpt import SITE, UNTIL_ENOUGH, counter, enough, kinds, settled, wait_steps
from tests.e2e.crash import FULL
from tests.e2e.world import ELASTIC, PATIENCE, Until, machines, partition_of, running_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.release]
JOBS = 10
SLEEP = "#!/bin/sh\n#SBATCH --cpus-per-task=2\nsleep 12\n"


@pytest.fixture(autouse=True)
def nothing_left_to_leave(site: Sandbox) -> Iterator[None]:
    """A test that fails leaves no drain to the next one."""
    yield
    site.run([*ELASTIC, "resume", "--all"], check=False)


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    elastic = {**SITE["elastic"], "pools": [{"name": "op", "cloud": "onprem", "nodes": "op[1-5]"}]}
    return sandbox(**{**SITE, "elastic": elastic})


def command(site: Sandbox, *words: str) -> str:
    return site.run([*ELASTIC, *words]).stdout


def in_cloud(site: Sandbox, cloud: str) -> list[str]:
    return [m.instance.node for m in machines(site) if m.instance.cloud == cloud]


def test_ten_jobs_of_an_aggressive_drain_go_on_in_another_cloud_each_step_once(
    site: Sandbox,
) -> None:
    jobs = [
        counter(site, "--cpus-per-task=1", "--partition=aws,onprem", steps=UNTIL_ENOUGH)
        for _ in range(JOBS)
    ]
    for job in jobs:
        wait_steps(site, job, 4)
    assert {p for job in jobs for p in partition_of(site, job)} == {"aws"}
    said = command(site, "drain", "aws", "--aggressive", "--dry-run", "--reason", "new image")
    assert f"{JOBS} jobs are saved by signal, to continue elsewhere" in said
    assert "dry run: nothing was changed" in said
    said = command(site, "drain", "aws", "--aggressive", "--reason", "new image")
    assert "cloud aws is drained by root: new image" in said
    site.wait_for(lambda: not in_cloud(site, "aws"), 3 * PATIENCE, "all machines of aws leave")
    for job in jobs:
        enough(site, job, runs=2)
        assert partition_of(site, job) == {"onprem"}
    settled(site)
    assert "Cloud aws is drained by root: new image" in command(site, "status")
    site.wait_for(
        lambda: all(is_drained(n) for name, n in site.nodes().items() if name.startswith("pub")),
        PATIENCE, "its nodes are kept from Slurm",
    )  # fmt: skip
    assert "order ended: cloud aws is drained by root" in command(site, "resume", "aws")
    site.wait_for(
        lambda: not any(is_drained(n) for n in site.nodes().values()), PATIENCE, "they are back"
    )


def test_an_ordered_drain_at_its_time_loses_no_job_and_starts_none(site: Sandbox) -> None:
    until = Until(site)
    jobs = [site.submit(until.script, FULL, "--partition=onprem") for _ in range(2)]
    nodes = running_nodes(site, jobs)
    said = command(site, "drain", "onprem", "--at", "now+30s")
    assert said.startswith("From 20")
    for node in (n for some in nodes.values() for n in some):
        site.wait_for(lambda n=node: "leaving" in kinds(site, n), PATIENCE, f"{node} leaves")
    later = site.submit(SLEEP, "--partition=onprem")
    until.go()
    for job in jobs:
        assert site.wait_job(job)["Restarts"] == "0"
    site.wait_for(lambda: not in_cloud(site, "onprem"), PATIENCE, "the machines leave")
    assert site.job(later)["JobState"] == "PENDING"
    command(site, "resume", "onprem")
    assert site.wait_job(later)["Restarts"] == "0"


def test_a_cloud_is_emptied_to_another_with_its_running_and_waiting_jobs(site: Sandbox) -> None:
    runs = counter(site, "--partition=aws", steps=UNTIL_ENOUGH)
    wait_steps(site, runs, 4)
    waits = site.submit(SLEEP, "--partition=aws", "--begin=now+60")
    said = command(site, "migrate", "aws", "--to", "onprem", "--for", "1h")
    assert "Jobs go to partition onprem, 1 waiting job at once" in said
    enough(site, runs, runs=2)
    site.wait_job(waits)
    assert partition_of(site, runs) == partition_of(site, waits) == {"onprem"}
    assert "redirected" in kinds(site, f"job:{waits}")
    site.wait_for(lambda: not in_cloud(site, "aws"), PATIENCE, "the cloud is empty")
    settled(site)


def test_a_paused_cloud_gets_no_job_and_goes_on_by_itself(site: Sandbox) -> None:
    said = command(site, "pause", "aws", "--for", "100s", "--reason", "quota")
    assert "cloud aws is paused by root until" in said
    job = site.submit(SLEEP, "--partition=aws")
    site.wait_for(
        lambda: "paused by root" in command(site, "explain", str(job)), PATIENCE, "explain says so"
    )
    assert site.job(job)["JobState"] == "PENDING"
    assert site.wait_job(job)["ExitCode"] == "0:0"
    assert "directive-over" in kinds(site, "pool:pub")
