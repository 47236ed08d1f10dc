"""OpenNebula, by pyone."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.config.found import Found, Place
from slurm_elastic.config.grants import Grant, Holder, Use
from slurm_elastic.config.requirements import KnownType
from slurm_elastic.model.protocols import ImageStore, Provider
from slurm_elastic.providers.base.joining import program_of
from slurm_elastic.providers.base.ownership import ownership_of
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud
from slurm_elastic.providers.opennebula.validate import check


def _open(settings: OpenNebulaCloud, cluster: Cluster, config: Config | None) -> Provider:
    from slurm_elastic.providers.opennebula.provider import OpenNebulaProvider

    return OpenNebulaProvider(
        settings,
        cluster,
        ownership=ownership_of(settings, cluster, config),
        joining=program_of(config, settings) if config else "",
    )


def _grant(settings: OpenNebulaCloud, use: Use, holder: Holder) -> Grant:
    from slurm_elastic.providers.opennebula.policy import grant

    return grant(settings, use, holder)


def _known_types(settings: OpenNebulaCloud) -> Iterable[KnownType]:
    from slurm_elastic.providers.opennebula.known_types import known_types

    return known_types(settings)


def _found(place: Place) -> Iterable[Found]:
    from slurm_elastic.providers.opennebula.found import found

    return found(place)


def _images(settings: OpenNebulaCloud, cluster: Cluster) -> ImageStore:
    from slurm_elastic.providers.opennebula.image_store import OneImages

    return OneImages(settings, cluster)


CLOUD = CloudKind(
    settings=OpenNebulaCloud,
    open=_open,
    check=check,
    grant=_grant,
    known_types=_known_types,
    found=_found,
    images=_images,
)
