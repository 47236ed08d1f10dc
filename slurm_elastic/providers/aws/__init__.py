"""EC2, by boto3."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.config.found import Found, Place
from slurm_elastic.config.grants import Grant, Holder, Use
from slurm_elastic.config.requirements import KnownType
from slurm_elastic.model.protocols import ImageStore, Provider
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.aws.validate import check
from slurm_elastic.providers.base.joining import program_of
from slurm_elastic.providers.base.ownership import ownership_of


def _open(settings: AwsCloud, cluster: Cluster, config: Config | None) -> Provider:
    from slurm_elastic.providers.aws.provider import AwsProvider

    return AwsProvider(
        settings,
        cluster,
        ownership=ownership_of(settings, cluster, config),
        joining=program_of(config, settings) if config else "",
    )


def _grant(settings: AwsCloud, use: Use, holder: Holder) -> Grant:
    from slurm_elastic.providers.aws.policy import grant

    return grant(settings, use, holder)


def _known_types(settings: AwsCloud) -> Iterable[KnownType]:
    from slurm_elastic.providers.aws.known_types import known_types

    return known_types(settings)


def _found(place: Place) -> Iterable[Found]:
    from slurm_elastic.providers.aws.found import found

    return found(place)


def _images(settings: AwsCloud, cluster: Cluster) -> ImageStore:
    from slurm_elastic.providers.aws.image_store import AmiImages

    return AmiImages(settings, cluster)


CLOUD = CloudKind(
    settings=AwsCloud,
    open=_open,
    check=check,
    grant=_grant,
    known_types=_known_types,
    found=_found,
    images=_images,
)
