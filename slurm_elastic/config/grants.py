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
    """Facts on which the rights depend: the cloud's ``pools``, and whether we read consoles."""

    cluster: Cluster
    pools: tuple[Pool, ...]
    console: bool = False


class Grant(Struct, frozen=True, kw_only=True):
    """A document for the cloud's own tool. ``notes``: how to apply it, and its limits."""

    text: str
    notes: tuple[str, ...] = ()


def use_of(
    config: Config, cloud: CloudSettings, expand: Callable[[str], Sequence[str]]
) -> GrantUse:
    """How a configuration uses one of its clouds."""
    return GrantUse(
        cluster=config.cluster,
        pools=tuple(p for p in domain_pools(config, expand) if p.cloud == cloud.name),
        console=_reads_host_keys(config) or _reads_tunnel_keys(config, cloud),
    )


def _reads_host_keys(config: Config) -> bool:
    ssh = config.join.ssh
    return config.join.head is not None and ssh is not None and ssh.host_key == CONSOLE


def _reads_tunnel_keys(config: Config, cloud: CloudSettings) -> bool:
    network = config.join.network
    if network is None or cloud.name not in clouds_with_tunnel(config):
        return False
    return enrols(network, cloud) is Enrol.CONSOLE
