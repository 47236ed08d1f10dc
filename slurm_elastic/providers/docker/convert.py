"""An engine's answers as our values: containers, their states, the room on a host. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.providers.base import tags as machine_tags
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.tags import market_of, price_of
from slurm_elastic.providers.docker import requests
from slurm_elastic.providers.docker.settings import DockerCloud

_KEYS = {
    machine_tags.CLUSTER: requests.CLUSTER,
    machine_tags.CLOUD: requests.CLOUD,
    machine_tags.POOL: requests.POOL,
}
CREATED = "created"
EXITED = "exited"
_STATES = {
    CREATED: InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "restarting": InstanceState.RUNNING,
    "paused": InstanceState.RUNNING,
    "removing": InstanceState.STOPPING,
}
"""All else (exited, dead) is a machine that is off: it has ended."""


class Container(Struct, frozen=True, kw_only=True):
    """The fields that we read of a container; ``created`` is the engine's clock (Unix time)."""

    id: str
    host: str
    state: str
    created: float
    labels: Mapping[str, str]
    address: str | None = None

    @property
    def short(self) -> str:
        """Our id of it: the one that ``docker ps`` shows."""
        return self.id[:12]

    @property
    def node(self) -> str:
        """The node that it was made for."""
        return self.labels.get(requests.NODE, "")

    @property
    def generation(self) -> str:
        """The launch that it is of."""
        return self.labels.get(requests.GENERATION, "")

    @property
    def half(self) -> bool:
        """Whether it was made and never started."""
        return self.state == CREATED

    @property
    def ended(self) -> bool:
        """Whether it runs no more, and will not."""
        return self.state not in _STATES


def containers(rows: object, host: str) -> Sequence[Container]:
    """The list of containers; TypeError where it is none: no answer is not "no machine"."""
    if not isinstance(rows, list):
        raise TypeError(f"a list of containers was expected, not {type(rows).__name__}")
    return [container(row, host) for row in rows]


def without(killed: Collection[str], listed: Sequence[Container]) -> Sequence[Container]:
    """A container that was killed just now has ended, whatever the list still says of it: an engine
    answers the kill as soon as the process is gone, and notes that for its lists afterwards.
    """
    return [replace(one, state=EXITED) if one.id in killed else one for one in listed]


def container(row: Mapping[str, Any], host: str) -> Container:
    """One row of the list of containers."""
    return Container(
        id=str(row["Id"]),
        host=host,
        state=str(row["State"]),
        created=float(row["Created"]),
        labels=dict(row.get("Labels") or {}),
        address=_address(row.get("NetworkSettings") or {}),
    )


def instance(one: Container, settings: DockerCloud) -> Instance:
    """A machine as all clouds have it; its zone is its host."""
    kind = one.labels.get(requests.TYPE, "")
    return Instance(
        id=one.short,
        cloud=settings.name,
        node=one.node,
        generation=one.generation,
        instance_type=kind,
        zone=one.host,
        market=market_of(one.labels.get(requests.MARKET, "")),
        price=price_of(one.labels.get(requests.PRICE), kind, settings.types),
        state=_STATES.get(one.state, InstanceState.TERMINATED),
        launched=one.created,
        address=one.address,
    )


def used(containers: Iterable[Container]) -> tuple[int, int]:
    """The cpus and MiB given out on a host. ``containers``: all that run there with our labels,
    those of other clusters too.
    """
    there = [c for c in containers if not c.ended]
    cpus = sum(_number(c.labels, requests.CPUS) for c in there)
    return cpus, sum(_number(c.labels, requests.MEMORY) for c in there)


def owner(of: Ownership, labels: Mapping[str, str]) -> str | None:
    """The cloud's name; AMBIGUOUS where the labels do not tell, None for another cluster's."""
    return of.owner(labels, _KEYS)


def _address(networks: Mapping[str, Any]) -> str | None:
    found = (n.get("IPAddress") for n in (networks.get("Networks") or {}).values())
    return next((str(address) for address in found if address), None)


def _number(labels: Mapping[str, str], key: str) -> int:
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
