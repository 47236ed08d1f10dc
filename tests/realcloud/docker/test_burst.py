"""The main path on Slurm 24.11 and 26.05: plain sbatch, containers come, jobs end, containers go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .elastic_world import ElasticWorld
from .engine import Engine

pytestmark = pytest.mark.e2e

VERSIONS = {"trixie": "24.11", "forky": "26.05"}


@pytest.fixture(scope="module", params=["trixie", pytest.param("forky", marks=pytest.mark.release)])
def world(request: pytest.FixtureRequest, docker_engine: Engine) -> Iterator[ElasticWorld]:
    image = request.getfixturevalue(request.param)
    with ElasticWorld(docker_engine, image, nodes=1, cpus=1, socket=True) as running:
        version = running.slurm("scontrol", "-V").stdout
        assert VERSIONS[request.param] in version
        yield running


def test_plain_jobs_burst_into_containers_that_go_again(world: ElasticWorld) -> None:
    go = world.shared / "jobs" / "go"
    wait = "hostname; while [ ! -e go ]; do sleep 0.2; done"
    jobs = [world.sbatch(wait, "-o", "out-%j") for _ in range(4)]
    outputs = [world.shared / "jobs" / f"out-{job}" for job in jobs]
    world.wait_for(lambda: all(o.exists() and o.read_text() for o in outputs), "all four run")
    go.touch()
    ran = [world.wait_job(job)["NodeList"] for job in jobs]
    assert ran[0] == "n1"  # the site's own first
    assert set(ran[1:]) <= {"bx1", "bx2", "bx3"}
    assert [o.read_text() for o in outputs] == [f"{node}\n" for node in ran]
    assert {c.labels["slurm-elastic.node"] for c in world.machines()} == {"bx1", "bx2", "bx3"}
    for machine in world.machines():
        limits = machine.attrs["HostConfig"]
        assert (limits["NanoCpus"], limits["Memory"]) == (10**9, 1 << 30)
        assert not limits["Privileged"]
        assert not any("munge" in variable for variable in machine.attrs["Config"]["Env"])
    world.back_to_zero()


def test_a_job_of_two_nodes_has_two_hosts(world: ElasticWorld) -> None:
    before = {c.id for c in world.machines()}
    job = world.sbatch("srun -l hostname", "-N2", "-o", "out-%j")
    shown = world.wait_job(job)
    assert shown["Partition"] == "boxes"
    lines = (world.shared / "jobs" / f"out-{job}").read_text().split()
    hosts = sorted(lines[1::2])
    assert len(set(hosts)) == 2
    fresh = {c.labels["slurm-elastic.node"] for c in world.machines() if c.id not in before}
    assert set(hosts) <= fresh  # an ended machine's node gets a new one
    assert f"job {job}" in world.elastic("explain", str(job)).lower()
    world.back_to_zero()
