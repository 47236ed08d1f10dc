"""OpenStack, by openstacksdk's session."""

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
from slurm_elastic.providers.openstack.settings import OpenStackCloud
from slurm_elastic.providers.openstack.validate import check


def _open(settings: OpenStackCloud, cluster: Cluster, config: Config | None) -> Provider:
    from slurm_elastic.providers.openstack.provider import OpenStackProvider

    return OpenStackProvider(
        settings,
        cluster,
        ownership=ownership_of(settings, cluster, config),
        joining=program_of(config, settings) if config else "",
    )


def _grant(settings: OpenStackCloud, use: Use, holder: Holder) -> Grant:
    from slurm_elastic.providers.openstack.policy import grant

    return grant(settings, use, holder)


def _known_types(settings: OpenStackCloud) -> Iterable[KnownType]:
    from slurm_elastic.providers.openstack.known_types import known_types

    return known_types(settings)


def _found(place: Place) -> Iterable[Found]:
    from slurm_elastic.providers.openstack.found import found

    return found(place)


def _images(settings: OpenStackCloud, cluster: Cluster) -> ImageStore:
    from slurm_elastic.providers.openstack.image_store import GlanceImages

    return GlanceImages(settings, cluster)


CLOUD = CloudKind(
    settings=OpenStackCloud,
    open=_open,
    check=check,
    grant=_grant,
    known_types=_known_types,
    found=_found,
    images=_images,
)
