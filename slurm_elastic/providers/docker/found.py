"""Finds a Docker engine on this host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.pages import page
from slurm_elastic.config.found import Found, SearchPlace, unanswered, unusable
from slurm_elastic.config.sections.requirements import KnownType
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.docker.client import DockerClient
from slurm_elastic.providers.docker.engines import Engines
from slurm_elastic.providers.docker.settings import DockerCloud, DockerHost

SOCKET = Path("/var/run/docker.sock")
TIMEOUT_S = 10.0
MUNGE_KEY = Path("/etc/munge/munge.key")
HERE = "here"
_OWN_NETWORKS = {"bridge", "host", "none"}


def found(place: SearchPlace) -> Iterator[Found]:
    """The engine behind the socket, with an image and a network for nodes."""
    del place
    if not SOCKET.exists():
        return
    cloud = Found(
        name="boxes", provider="docker", location=Location.ON_PREMISES, usable=True, joins=True,
        what=f"the Docker engine of this host ({SOCKET})", sized=True,
        reads={str(SOCKET): f"put {{user}} into the group docker ({page('docker')})"},
    )  # fmt: skip
    hosts = {HERE: DockerHost(url=f"unix://{SOCKET}")}
    engines = Engines(DockerCloud(
        name=cloud.name, location=cloud.location, hosts=hosts, image="?", network="?", types={},
        api_timeout=TIMEOUT_S,
    ))  # fmt: skip
    try:
        with engines.limited():
            yield engines.call(HERE, lambda client: _complete(cloud, client))
    except ProviderError as error:
        yield unanswered(cloud, "the engine (journalctl -u docker)", error)


def _complete(cloud: Found, client: DockerClient) -> Found:
    tags = [tag for row in client.images() for tag in row.get("RepoTags") or ()]
    image = next((tag for tag in tags if "slurm" in tag.lower()), None)
    network = _network(client.networks())
    if image is None or network is None:
        missing = "an image with slurm in its name" if image is None else "a network for nodes"
        return unusable(cloud, f"make {missing} ({page('docker')})")
    info = client.info()
    host_type = KnownType(name=HERE, cpus=int(info["NCPU"]), memory=int(info["MemTotal"]) >> 20)
    keys: dict[str, object] = {
        "hosts": {HERE: {"url": f"unix://{SOCKET}"}}, "image": image, "network": network,
    }  # fmt: skip
    if MUNGE_KEY.parent.exists():
        keys["mounts"] = [f"{MUNGE_KEY}:/etc/slurm-elastic/munge.key:ro"]
    return replace(cloud, keys=keys, types=(host_type,))


def _network(rows: list[Mapping[str, Any]]) -> str | None:
    """A network with Slurm in its name, or else the only network besides Docker's own."""
    own_networks = [str(row["Name"]) for row in rows if row["Name"] not in _OWN_NETWORKS]
    slurm = [name for name in own_networks if "slurm" in name.lower()]
    return next(iter(slurm or (own_networks if len(own_networks) == 1 else ())), None)
