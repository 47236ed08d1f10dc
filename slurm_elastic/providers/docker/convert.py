"""An engine's answers as our values: containers, their states, the room on a host. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.providers.base.hosted import Tagged
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
"""All else (exited, dead) is a machine that is off: it has ended."""


def containers(rows: object, host: str, settings: DockerCloud) -> Sequence[Tagged]:
    """The list of containers; TypeError where it is none: no answer is not "no machine"."""
    if not isinstance(rows, list):
        raise TypeError(f"a list of containers was expected, not {type(rows).__name__}")
    return [_container(row, host, settings) for row in rows]


def without(killed: Collection[str], listed: Sequence[Tagged]) -> Sequence[Tagged]:
    """A container that was killed just now has ended, whatever the list still says of it: an engine
    answers the kill as soon as the process is gone, and notes that for its lists afterwards.
    """
    return [
        replace(one, unstarted=False, machine=replace(one.machine, state=InstanceState.TERMINATED))
        if one.name in killed
        else one
        for one in listed
    ]


def _container(row: Mapping[str, Any], host: str, settings: DockerCloud) -> Tagged:
    """One row of the list. Our id is the one that ``docker ps`` shows, the zone its host, and the
    time the engine's clock.
    """
    number, state = str(row["Id"]), str(row["State"])
    tags = SPELLING.read(row.get("Labels") or {})
    networks = (row.get("NetworkSettings") or {}).get("Networks") or {}
    addresses = (n.get("IPAddress") for n in networks.values())
    machine = machine_of(
        number[:12], tags, settings, _STATES.get(state, InstanceState.TERMINATED),
        next((str(address) for address in addresses if address), None),
        zone=host, launched=float(row["Created"]),
    )  # fmt: skip
    return Tagged(machine=machine, name=number, host=host, unstarted=state == CREATED, tags=tags)


def used(containers: Iterable[Tagged]) -> tuple[int, int]:
    """The cpus and MiB given out on a host. ``containers``: all that run there with our labels,
    those of other clusters too.
    """
    there = [c for c in containers if not c.ended]
    cpus = sum(_number(c.tags, CPUS) for c in there)
    return cpus, sum(_number(c.tags, MEMORY) for c in there)


def _number(labels: Mapping[str, str], key: str) -> int:
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
