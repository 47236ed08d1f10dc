"""The least rights that a cloud's account needs for a configuration, as its administrator gives
them: each kind of cloud writes its own (``CloudKind.grant``).
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
    """Who holds the rights: the services that buy, the watchdog, which lists and ends, or the
    administrator who uploads images.
    """

    SERVICES = "services"
    WATCHDOG = "watchdog"
    IMAGES = "images"


class Use(Struct, frozen=True, kw_only=True):
    """The parts of a configuration that rights depend on, beside the cloud's settings: its
    ``pools``, and whether machines' host keys are read from their consoles.
    """

    cluster: Cluster
    pools: tuple[Pool, ...]
    console: bool = False


class Grant(Struct, frozen=True, kw_only=True):
    """``text`` is the document, ready for the cloud's own tool. ``notes`` say in a sentence each
    how it is applied, and what it cannot hold.
    """

    text: str
    notes: tuple[str, ...] = ()


def use_of(config: Config, cloud: CloudSettings, expand: Callable[[str], Sequence[str]]) -> Use:
    """How a configuration uses one of its clouds. Pure."""
    ssh = config.join.ssh
    return Use(
        cluster=config.cluster,
        pools=tuple(p for p in domain_pools(config, expand) if p.cloud == cloud.name),
        console=config.join.head is not None and ssh is not None and ssh.host_key == CONSOLE,
    )
