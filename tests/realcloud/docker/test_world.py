"""Slurm on separate hosts: containers on a real engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .engine import Engine, running_engine
from .world import ContainerWorld

pytestmark = [pytest.mark.e2e, pytest.mark.release]


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[ContainerWorld]:
    with ContainerWorld(docker_engine, trixie, nodes=2, criu=True) as running:
        yield running


def test_a_job_runs_on_hosts_of_its_own(world: ContainerWorld) -> None:
    number = world.sbatch("srun -l hostname; id -un", "-N2", "-o", "/shared/jobs/out-%j")
    world.wait_job(number)
    lines = (world.shared / "jobs" / f"out-{number}").read_text().split("\n")
    assert sorted(lines) == ["", "0: n1", "1: n2", "alice"]


def test_it_is_the_slurm_of_that_debian(world: ContainerWorld) -> None:
    assert " 24.11." in world.slurm("scontrol", "-V").stdout


def test_criu_knows_the_kernel_of_a_node(world: ContainerWorld) -> None:
    node = world.nodes()["n1"]
    assert "4." in node.run(["criu", "--version"]).stdout
    kept = ["test", "-s", "/run/criu.kdat"]
    world.wait_for(lambda: node.run(kept, check=False).returncode == 0, "criu check has run")


def test_the_package_runs_on_the_head(world: ContainerWorld) -> None:
    assert "explain" in world.head.run(["slurm-elastic", "-h"], user="slurm").stdout
    assert "usage" in world.head.run(["slurm-elasticd", "-h"], user="slurm").stdout


def test_a_second_user_of_the_engine_does_not_stop_it(docker_engine: Engine) -> None:
    with running_engine() as second:
        assert second.socket == docker_engine.socket
    client = docker_engine.client()
    try:
        assert client.ping()
    finally:
        client.close()
