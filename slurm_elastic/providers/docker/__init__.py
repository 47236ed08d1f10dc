"""Containers on Docker engines, by the docker SDK."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.config.found import Found, Place
from slurm_elastic.model.protocols import ImageStore, Provider
from slurm_elastic.providers.base.ownership import ownership_of
from slurm_elastic.providers.docker.settings import DockerCloud
from slurm_elastic.providers.docker.validate import check


def _open(settings: DockerCloud, cluster: Cluster, config: Config | None) -> Provider:
    from slurm_elastic.providers.docker.provider import DockerProvider

    ownership = ownership_of(settings, cluster, config)
    head = config.join.head if config else None
    return DockerProvider(settings, cluster, ownership=ownership, head=head)


def _found(place: Place) -> Iterable[Found]:
    from slurm_elastic.providers.docker.found import found

    return found(place)


def _images(settings: DockerCloud, cluster: Cluster) -> ImageStore:
    from slurm_elastic.providers.docker.image_store import EngineImages

    return EngineImages(settings, cluster)


CLOUD = CloudKind(settings=DockerCloud, open=_open, check=check, found=_found, images=_images)
