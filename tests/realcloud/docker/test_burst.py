"""The main path on Slurm 24.11 and 26.05: plain sbatch, containers come, jobs end, containers go."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from .engine import Engine
from .world import UID, USER, ContainerWorld

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

CONFIG = "/etc/elastic/slurm-elastic.yaml"
VERSIONS = {"trixie": "24.11", "forky": "26.05"}
BOOT = (
    f"useradd -u {UID} -m -s /bin/bash {USER};"
    " exec slurm-node >>/shared/log/$SLURM_ELASTIC_NODE.boot 2>&1"
)


class ElasticWorld(ContainerWorld):
    """A static node, and up to three more as containers that the daemon on the head starts."""

    def __enter__(self) -> ElasticWorld:
        super().__enter__()
        group = os.stat(self.engine.socket).st_gid
        self.head.run(["sh", "-c", f"groupadd -o -g {group} engine && usermod -aG engine slurm"])
        self.head.run(["mkdir", "/etc/elastic"])
        self.head.put(CONFIG, json.dumps(self._elastic()))
        self.head.run(["slurm-elastic", "--config", CONFIG, "conf", "install"])
        daemon = ["slurm-elasticd", "--config", CONFIG]
        self.head.start(daemon, "slurm-elasticd.log", user="slurm")
        log = self.shared / "log" / "slurm-elasticd.log"
        self.wait_for(lambda: log.exists() and "serving" in log.read_text(), "the daemon serves")
        return self

    def elastic(self, *words: str) -> str:
        out: str = self.head.run(["slurm-elastic", "--config", CONFIG, *words], user="slurm").stdout
        return out

    def machines(self) -> list[Any]:
        """The daemon's containers, the ended ones too."""
        return [c for c in self.containers() if "slurm-elastic.node" in c.labels]

    def running(self) -> list[str]:
        return [c.labels["slurm-elastic.node"] for c in self.machines() if c.status == "running"]

    def _elastic(self) -> dict[str, Any]:
        keys, shared = self.directory / "keys", self.shared
        return {
            "cluster": {"name": "containers"},
            "timings": {"suspend_time": 4, "suspend_timeout": 5, "resume_timeout": 300,
                        "reconcile": 2, "grace": 20},
            "clouds": [
                {
                    "name": "boxes", "provider": "docker", "location": "on-premises",
                    "hosts": {"box": {"cpus": 1000, "memory": "1T"}},
                    "image": self.image, "network": self.id,
                    "types": {"small": {"cpus": 1, "memory": "1G", "price": 0.01}},
                    "command": ["sh", "-c", BOOT],
                    "mounts": [f"{keys}:/etc/slurm-elastic:ro", f"{shared}:/shared"],
                }
            ],
            "pools": [
                {"name": "box", "cloud": "boxes", "nodes": "bx[1-3]", "cpus": 1, "memory": "1G",
                 "real_memory": 500, "instance_types": ["small"]}
            ],
            "join": {"head": "head"},
        }  # fmt: skip


@pytest.fixture(scope="module", params=["trixie", "forky"])
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
    back_to_zero(world)


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
    back_to_zero(world)


def back_to_zero(world: ElasticWorld) -> None:
    """Wait until no container of the daemon runs and Slurm has all its nodes powered down."""

    def zero() -> bool:
        states = world.slurm("sinfo", "-h", "-p", "boxes", "-o", "%t").stdout.split()
        return not world.running() and states == ["idle~"]

    world.wait_for(zero, "all containers are gone and all nodes powered down")
