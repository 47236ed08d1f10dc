"""The least rights that a cloud's account needs for a configuration. Each kind of cloud writes them
in the form in which its administrator grants rights (``CloudKind.grant``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from msgspec import Struct

from slurm_elastic.config import Cluster, Config, domain_pools
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.sections.joining import CONSOLE, Enrol
from slurm_elastic.config.tunnel import clouds_with_tunnel, enrols
from slurm_elastic.model.cluster import Pool


class Holder(StrEnum):
    """Who has the rights: the services (buy), the watchdog (ends), an image's uploader, or the
    administrator who runs ``init --make``.
    """

    SERVICES = "services"
    WATCHDOG = "watchdog"
    IMAGES = "images"
    MAKE = "make"


class GrantUse(Struct, frozen=True, kw_only=True):
    """Facts on which the rights depend: the cloud's ``pools``, whether we read consoles, and the
    queue of notices that its account reads ("": none).
    """

    cluster: Cluster
    pools: tuple[Pool, ...]
    console: bool = False
    queue_url: str = ""


class Grant(Struct, frozen=True, kw_only=True):
    """A document for the cloud's own tool. ``notes``: how to apply it, and its limits."""

    text: str
    notes: tuple[str, ...] = ()


def use_of(
    config: Config, cloud: CloudSettings, expand: Callable[[str], Sequence[str]]
) -> GrantUse:
    """How a configuration uses one of its clouds."""
    of_queue = cloud_of_queue(config)
    has_queue = of_queue is not None and of_queue.name == cloud.name
    return GrantUse(
        cluster=config.cluster,
        pools=tuple(p for p in domain_pools(config, expand) if p.cloud == cloud.name),
        console=_reads_host_keys(config) or _reads_tunnel_keys(config, cloud),
        queue_url=config.checkpoint.notices.queue_url or "" if has_queue else "",
    )


def cloud_of_queue(config: Config) -> CloudSettings | None:
    """The cloud whose account reads the queue of notices; None without a queue."""
    notices = config.checkpoint.notices
    if notices.queue_url is None:
        return None
    of_queue = (c for c in config.clouds if c.has_queue and notices.queue_cloud in (None, c.name))
    return next(of_queue, None)


def _reads_host_keys(config: Config) -> bool:
    ssh = config.join.ssh
    return config.join.head is not None and ssh is not None and ssh.host_key == CONSOLE


def _reads_tunnel_keys(config: Config, cloud: CloudSettings) -> bool:
    network = config.join.network
    if network is None or cloud.name not in clouds_with_tunnel(config):
        return False
    return enrols(network, cloud) is Enrol.CONSOLE
