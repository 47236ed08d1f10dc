"""The cluster of containers/compose.yaml, started as compose would."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from .engine import REPO, Engine
from .world import Host, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.release]

COMPOSE = REPO / "containers" / "compose.yaml"


@pytest.fixture(scope="module")
def head(docker_engine: Engine, trixie: str) -> Iterator[Host]:
    """Its names are fixed, so one at a time on this machine: whoever comes second waits."""
    wanted = yaml.safe_load(COMPOSE.read_text())
    service = wanted["services"]["head"]
    network = wanted["networks"]["slurm"]["name"]
    volumes = {short: v["name"] for short, v in wanted["volumes"].items()}
    with docker_engine.alone("compose"), contextlib.closing(docker_engine.client()) as client:
        _remove(client, network, volumes.values())  # what a run that was killed has left
        try:
            client.networks.create(network)
            container = client.containers.create(
                trixie,
                command=service["command"],
                hostname=service["hostname"],
                init=service["init"],
                cap_add=service["cap_add"],
                security_opt=service["security_opt"],
                environment={k: _default(v) for k, v in service["environment"].items()},
                volumes=[_mount(v, volumes, docker_engine) for v in service["volumes"]],
                network=network,
                networking_config={
                    network: client.api.create_endpoint_config(
                        aliases=service["networks"]["slurm"]["aliases"]
                    )
                },
            )
            container.start()
            yield Host(container)
        finally:
            _remove(client, network, volumes.values())


def test_a_newcomers_job_runs_in_a_container(head: Host) -> None:
    def log() -> str:
        return head.container.logs().decode()

    wait_for(lambda: "serving cluster=demo" in log(), "the head serves", log)
    assert "throw-away slurmctld reads" in log()  # the whole check, not the lesser one
    submit = ["sh", "-c", "cd /shared/demo && sbatch --parsable -o out --wrap 'hostname; id -un'"]
    job = head.run(submit, user="demo").stdout.strip()
    show = ["scontrol", "show", "job", job]

    def ended() -> bool:  # a command that comes while slurmctld reads its files anew is lost
        return "JobState=COMPLETED" in head.run(show, check=False).stdout

    def output() -> list[str]:
        return head.run(["cat", "/shared/demo/out"], check=False).stdout.split()

    wait_for(ended, "the job ends", log)
    wait_for(output, "its output is there", log)
    assert output() == ["bx1", "demo"]
    assert "bx1" in head.run(["slurm-elastic", "status"]).stdout


def _default(value: str) -> str:
    """``${NAME:-default}`` as compose reads it where NAME is not set."""
    return value.partition(":-")[2].rstrip("}") if value.startswith("${") else value


def _mount(text: str, volumes: dict[str, str], engine: Engine) -> str:
    if text.startswith("${DOCKER_SOCKET"):
        return f"{engine.socket}:/var/run/docker.sock"
    source, rest = text.split(":", 1)
    return f"{REPO if source == '..' else volumes[source]}:{rest}"


def _remove(client: Any, network: str, volumes: Any) -> None:
    for found in client.networks.list(names=[network]):
        for container in client.containers.list(all=True, filters={"network": network}):
            container.remove(force=True, v=True)
        found.remove()
    for name in volumes:
        for volume in client.volumes.list(filters={"name": name}):
            volume.remove(force=True)
