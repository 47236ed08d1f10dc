"""Containers on Docker engines, through the docker SDK."""

from __future__ import annotations

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.machine.hub.ports import with_port
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.base.later import later
from slurm_elastic.providers.base.ownership import ownership_of
from slurm_elastic.providers.docker.settings import DockerCloud
from slurm_elastic.providers.docker.skeleton import SKELETON
from slurm_elastic.providers.docker.validate import check


def _open(settings: DockerCloud, cluster: Cluster, config: Config | None) -> Provider:
    from slurm_elastic.providers.docker.provider import DockerProvider

    ownership = ownership_of(settings, cluster, config)
    head = config.join.head if config else None
    if config and head:
        head = with_port(head, config.slurm.conf)
    return DockerProvider(settings, cluster, ownership=ownership, head=head)


CLOUD = CloudKind(
    settings=DockerCloud,
    open=_open,
    check=check,
    found=later(f"{__name__}.found:found"),
    images=later(f"{__name__}.image_store:EngineImages"),
    skeleton=SKELETON,
)
