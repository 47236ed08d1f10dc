"""The least rights that a cloud's account needs for a configuration. Each kind of cloud writes them
in the form in which its administrator grants them (``CloudKind.grant``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from msgspec import Struct

from slurm_elastic.config import Cluster, Config, domain_pools
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.joining import CONSOLE
from slurm_elastic.model.cluster import Pool


class Holder(StrEnum):
    """Who holds rights: the services, which buy; the watchdog, which ends; an image's uploader."""

    SERVICES = "services"
    WATCHDOG = "watchdog"
    IMAGES = "images"


class Use(Struct, frozen=True, kw_only=True):
    """What rights depend on, too: the cloud's ``pools``, and whether we read consoles' keys."""

    cluster: Cluster
    pools: tuple[Pool, ...]
    console: bool = False


class Grant(Struct, frozen=True, kw_only=True):
    """A document for the cloud's own tool, and ``notes``: how to apply it, and its limits."""

    text: str
    notes: tuple[str, ...] = ()


def use_of(config: Config, cloud: CloudSettings, expand: Callable[[str], Sequence[str]]) -> Use:
    """How a configuration uses one of its clouds."""
    ssh = config.join.ssh
    return Use(
        cluster=config.cluster,
        pools=tuple(p for p in domain_pools(config, expand) if p.cloud == cloud.name),
        console=config.join.head is not None and ssh is not None and ssh.host_key == CONSOLE,
    )
