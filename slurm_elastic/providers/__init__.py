"""The clouds. Each module needs one SDK, imported when a cloud of its kind is opened."""

from __future__ import annotations

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.clouds import (
    AnyCloud,
    AwsCloud,
    DockerCloud,
    FakeCloud,
    LocalCloud,
    OpenNebulaCloud,
    OpenStackCloud,
)
from slurm_elastic.errors import ConfigError
from slurm_elastic.protocols import Provider
from slurm_elastic.providers.joining import program_of


def open_provider(settings: AnyCloud, cluster: Cluster, config: Config | None = None) -> Provider:
    """The provider of a cloud; nothing is asked of the cloud yet.

    ``config`` tells it of the clouds beside it: two may be one account and region, and each must
    leave the other's machines alone. Without it the cloud is taken for the only one there.
    ConfigError where the cluster has no UUID yet, the cloud's SDK is not installed, or its
    settings name a file that cannot be used.
    """
    if not cluster.uuid:
        raise ConfigError("cluster.uuid is not set; 'slurm-elastic conf install' makes one")
    try:
        return _open(settings, cluster, config)
    except ModuleNotFoundError as error:
        kind = type(settings).__struct_config__.tag
        raise ConfigError(
            f"cloud {settings.name!r}: Python module {error.name!r} is missing; "
            f"install slurm-elastic[{kind}]"
        ) from error


def _open(settings: AnyCloud, cluster: Cluster, config: Config | None) -> Provider:
    joining = program_of(config, settings) if config else ""
    match settings:
        case AwsCloud():
            from slurm_elastic.providers.aws import AwsProvider
            from slurm_elastic.providers.aws_claim import claim_of

            claim = claim_of(settings, cluster, config)
            return AwsProvider(settings, cluster, claim=claim, joining=joining)
        case LocalCloud():
            from slurm_elastic.providers.local import LocalProvider

            return LocalProvider(settings, cluster)
        case OpenNebulaCloud():
            from slurm_elastic.providers.opennebula import OpenNebulaProvider
            from slurm_elastic.providers.opennebula_claim import claim_of as claim_of_one

            one = claim_of_one(settings, cluster, config)
            return OpenNebulaProvider(settings, cluster, claim=one, joining=joining)
        case DockerCloud():
            from slurm_elastic.providers.docker import DockerProvider
            from slurm_elastic.providers.docker_reading import claim_of as claim_of_docker

            whose = claim_of_docker(settings, cluster, config)
            head = config.join.head if config else None
            return DockerProvider(settings, cluster, claim=whose, head=head)
        case OpenStackCloud():
            from slurm_elastic.providers.openstack import OpenStackProvider
            from slurm_elastic.providers.openstack_claim import claim_of as claim_of_stack

            stack = claim_of_stack(settings, cluster, config)
            return OpenStackProvider(settings, cluster, claim=stack, joining=joining)
        case FakeCloud():
            from slurm_elastic.providers.fake import FakeProvider

            return FakeProvider(settings, cluster)
