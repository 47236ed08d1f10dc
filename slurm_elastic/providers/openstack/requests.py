"""The requests that create servers: pure, so that the same launch always makes the same request.

One call makes many servers, all with the same metadata: the list of their nodes. nova numbers their
names from 1 where there are several (and leaves a single one's as it is), which tells them apart.
nova bounds a metadata value at 255 characters and a server at 128 items.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import ONE_ZONE
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.providers.base import tags as machine_tags
from slurm_elastic.providers.base.joining import facts_of
from slurm_elastic.providers.base.machine_tags import bought
from slurm_elastic.providers.base.user_data import Form, compose
from slurm_elastic.providers.openstack.settings import NETWORK_WORDS, OpenStackCloud

USER_DATA = Form(Path(__file__).with_name("boothook.py"), 65535 // 4 * 3, 10240, "nova")
"""nova bounds user data at 64 KiB less a byte, after base64."""
MAX_VALUE = 255
MAX_PER_CALL = 100
"""The list of so many nodes fits the metadata, whatever they are called."""
_MAX_LABEL = 63


def chunks(nodes: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """The nodes in parts of one call each, with the place of the first."""
    for start in range(0, len(nodes), MAX_PER_CALL):
        yield start, nodes[start : start + MAX_PER_CALL]


def mark(cluster: str, generation: str) -> str:
    """The part of a name that says which launch of which cluster (its UUID) it is: it outlives the
    metadata of what is gone.
    """
    return f"_{cluster[:8]}_{generation}_"


def name(cluster: str, spec: LaunchSpec, start: int, nodes: Sequence[str]) -> str:
    """Names are not unique; a single machine's begins with its node."""
    label = nodes[0] if len(nodes) == 1 else spec.pool.name
    return f"{label[:_MAX_LABEL]}{mark(cluster, spec.generation)}{start}"


def place(text: str, cluster: str, generation: str) -> tuple[int, int] | None:
    """The meaning of a name: where in its launch the call began, and which machine of the call it
    is (from 0; the only one's has no number). None where it is not a name of that launch.
    """
    _, found, tail = text.partition(mark(cluster, generation))
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", tail)
    if not found or not match:
        return None
    return int(match[1]), int(match[2] or 1) - 1


def metadata(
    cluster: Cluster, spec: LaunchSpec, nodes: Sequence[str], cloud: str
) -> dict[str, str]:
    """Whose the machines for ``nodes`` are, and for what."""
    tags = bought(spec, (), cluster, cloud)
    tags.pop("Name")
    cut = {key: value[:MAX_VALUE] for key, value in tags.items()}
    return cut | machine_tags.node_tags(nodes, MAX_VALUE)


def body(
    settings: OpenStackCloud,
    cluster: Cluster,
    spec: LaunchSpec,
    start: int,
    nodes: Sequence[str],
    *,
    flavor: str,
    image: str,
    networks: str | Sequence[str],
    parts: tuple[str, ...],
) -> Mapping[str, object]:
    """For ``POST /servers``: ``nodes``, or as many of them as the quota leaves room for."""
    document = compose(facts_of(cluster, spec), " ".join(nodes), parts, USER_DATA)
    server: dict[str, object] = {
        "name": name(cluster.uuid or "", spec, start, nodes),
        "flavorRef": flavor,
        "imageRef": image,
        "networks": networks if isinstance(networks, str) else [{"uuid": n} for n in networks],
        "min_count": 1,
        "max_count": len(nodes),
        "metadata": metadata(cluster, spec, nodes, settings.name),
        "user_data": base64.b64encode(document).decode(),
    }
    if spec.offer.zone != ONE_ZONE:
        server["availability_zone"] = spec.offer.zone
    if settings.security_groups:
        server["security_groups"] = [{"name": group} for group in settings.security_groups]
    if settings.key_name:
        server["key_name"] = settings.key_name
    if settings.config_drive:
        server["config_drive"] = True
    return {"server": server}


def own_word(networks: Sequence[str]) -> str | None:
    """The word of nova in the place of networks, where no network is named."""
    if not networks:
        return "auto"
    return networks[0] if networks[0] in NETWORK_WORDS else None
