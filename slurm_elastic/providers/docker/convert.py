"""Converts an engine's answers into our values: containers, their states, the room on a
host. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.providers.base.hosts.host_rows import Tagged
from slurm_elastic.providers.base.machine_tags import machine_of
from slurm_elastic.providers.docker.requests import CPUS, MEMORY, SPELLING
from slurm_elastic.providers.docker.settings import DockerCloud

CREATED = "created"
_STATES = {
    CREATED: InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "restarting": InstanceState.RUNNING,
    "paused": InstanceState.RUNNING,
    "removing": InstanceState.STOPPING,
}
"""In any other state (exited, dead) the machine is off, so it has ended."""


def containers(rows: object, host: str, settings: DockerCloud) -> Sequence[Tagged]:
    """The listed containers. TypeError if the answer is no list: no answer must not mean "no
    machine".
    """
    if not isinstance(rows, list):
        raise TypeError(f"a list of containers was expected, not {type(rows).__name__}")
    return [_container(row, host, settings) for row in rows]


def machine_id(row: Mapping[str, Any]) -> str:
    """Our id of a listed container: what ``docker ps`` shows."""
    return str(row["Id"])[:12]


def without(killed: Collection[str], listed: Sequence[Tagged]) -> Sequence[Tagged]:
    """Show the killed containers as ended, whatever the listing says. An engine answers a kill as
    soon as the process is gone, and updates its listings later.
    """
    return [
        replace(
            container,
            unstarted=False,
            machine=replace(container.machine, state=InstanceState.TERMINATED),
        )
        if container.name in killed
        else container
        for container in listed
    ]


def _container(row: Mapping[str, Any], host: str, settings: DockerCloud) -> Tagged:
    """One row of the listing. The zone is the host, and times are of the engine's clock."""
    container_id, state = str(row["Id"]), str(row["State"])
    tags = SPELLING.read(row.get("Labels") or {})
    networks = (row.get("NetworkSettings") or {}).get("Networks") or {}
    addresses = (n.get("IPAddress") for n in networks.values())
    machine = machine_of(
        machine_id(row), tags, settings, _STATES.get(state, InstanceState.TERMINATED),
        next((str(address) for address in addresses if address), None),
        zone=host, launched=float(row["Created"]),
    )  # fmt: skip
    return Tagged(
        machine=machine, name=container_id, host=host, unstarted=state == CREATED, tags=tags
    )


def used(containers: Iterable[Tagged]) -> tuple[int, int]:
    """The CPUs and MiB in use on a host. ``containers``: all containers there with our labels, of
    any cluster.
    """
    running = [c for c in containers if not c.ended]
    cpus = sum(_number(c.tags, CPUS) for c in running)
    return cpus, sum(_number(c.tags, MEMORY) for c in running)


def _number(labels: Mapping[str, str], key: str) -> int:
    text = labels.get(key, "")
    # Labels can be edited. The length keeps a senseless number from overflowing sums.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
