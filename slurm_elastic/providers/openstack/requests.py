"""Builds the requests that create servers. Pure, so that the same launch always makes the same
request.

One call creates many servers with the same metadata, which is the list of their nodes. nova numbers
the names of several servers from 1, and leaves the name of a single one unchanged. The number says
which node a server is. nova limits a metadata value to 255 characters and a server to 128 items.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import ONE_ZONE
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.model.machine_options import Disk, gibibytes
from slurm_elastic.providers.base import tags as machine_tags
from slurm_elastic.providers.base.joining import facts_of
from slurm_elastic.providers.base.machine_tags import bought
from slurm_elastic.providers.base.user_data import Form, compose
from slurm_elastic.providers.openstack.settings import NETWORK_WORDS, OpenStackCloud

USER_DATA = Form(Path(__file__).with_name("boothook.py"), 65535 // 4 * 3, 10240, "nova")
"""nova limits user data to 64 KiB minus one byte, after base64."""
MAX_VALUE = 255
MAX_PER_CALL = 100
"""The list of so many nodes fits into the metadata, however long their names are."""
_MAX_LABEL = 63


def chunks(nodes: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """The nodes in parts, each for one call, and each with the place of its first node."""
    for start in range(0, len(nodes), MAX_PER_CALL):
        yield start, nodes[start : start + MAX_PER_CALL]


def mark(cluster: str, generation: str) -> str:
    """The part of a server's name that identifies the launch and the cluster (by its UUID). nova
    keeps the name of a deleted server, but not its metadata.
    """
    return f"_{cluster[:8]}_{generation}_"


def name(cluster: str, spec: LaunchSpec, start: int, nodes: Sequence[str]) -> str:
    """A name for the servers of a call. Names need not be unique. A single server's name begins
    with its node.
    """
    label = nodes[0] if len(nodes) == 1 else spec.pool.name
    return f"{label[:_MAX_LABEL]}{mark(cluster, spec.generation)}{start}"


def place(text: str, cluster: str, generation: str) -> tuple[int, int] | None:
    """The place in its launch where the server's call began, and the server's number in that call
    (from 0; a single server has no number). None if the name is not of that launch.
    """
    _, has_mark, tail = text.partition(mark(cluster, generation))
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", tail)
    if not has_mark or not match:
        return None
    return int(match[1]), int(match[2] or 1) - 1


def metadata(
    cluster: Cluster, spec: LaunchSpec, nodes: Sequence[str], cloud: str
) -> dict[str, str]:
    """The metadata of the servers for ``nodes``: their owner and purpose."""
    tags = bought(spec, (), cluster, cloud)
    # A server has a name of its own, so the tag is not needed.
    tags.pop("Name")
    shortened = {key: value[:MAX_VALUE] for key, value in tags.items()}
    return shortened | machine_tags.node_tags(nodes, MAX_VALUE)


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
    """The body of ``POST /servers`` for ``nodes``."""
    document = compose(facts_of(cluster, spec), " ".join(nodes), parts, USER_DATA)
    server: dict[str, object] = {
        "name": name(cluster.uuid or "", spec, start, nodes),
        "flavorRef": flavor,
        "imageRef": image,
        "networks": networks if isinstance(networks, str) else [{"uuid": n} for n in networks],
        # nova then starts as many servers as the quota allows, instead of refusing all.
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
    machine = spec.pool.machine
    if machine.root_disk is not None:
        server["block_device_mapping_v2"] = [_volume(machine.root_disk, image)]
        # nova accepts no image beside a disk made from the image.
        server["imageRef"] = ""
    if machine.placement_group is None:
        return {"server": server}
    return {"server": server, "os:scheduler_hints": {"group": machine.placement_group}}


def _volume(disk: Disk, image: str) -> dict[str, object]:
    """The system disk as a volume of cinder, made from the image."""
    volume: dict[str, object] = {
        "boot_index": 0,
        "uuid": image,
        "source_type": "image",
        "destination_type": "volume",
        # Otherwise the volume stays when its machine has ended.
        "delete_on_termination": True,
    }
    if disk.size is not None:
        volume["volume_size"] = gibibytes(disk.size)
    if disk.type is not None:
        volume["volume_type"] = disk.type
    return volume


def own_word(networks: Sequence[str]) -> str | None:
    """Nova's own word in place of networks, if the settings name no network."""
    if not networks:
        return "auto"
    return networks[0] if networks[0] in NETWORK_WORDS else None
