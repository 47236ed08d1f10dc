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
from slurm_elastic.providers.base.joining import program_of


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
            from slurm_elastic.providers.aws.instances import ownership_of
            from slurm_elastic.providers.aws.provider import AwsProvider

            ownership = ownership_of(settings, cluster, config)
            return AwsProvider(settings, cluster, ownership=ownership, joining=joining)
        case LocalCloud():
            from slurm_elastic.providers.local.provider import LocalProvider

            return LocalProvider(settings, cluster)
        case OpenNebulaCloud():
            from slurm_elastic.providers.opennebula.instances import (
                ownership_of as ownership_of_one,
            )
            from slurm_elastic.providers.opennebula.provider import OpenNebulaProvider

            one = ownership_of_one(settings, cluster, config)
            return OpenNebulaProvider(settings, cluster, ownership=one, joining=joining)
        case DockerCloud():
            from slurm_elastic.providers.docker.convert import ownership_of as ownership_of_docker
            from slurm_elastic.providers.docker.provider import DockerProvider

            whose = ownership_of_docker(settings, cluster, config)
            head = config.join.head if config else None
            return DockerProvider(settings, cluster, ownership=whose, head=head)
        case OpenStackCloud():
            from slurm_elastic.providers.openstack.instances import (
                ownership_of as ownership_of_stack,
            )
            from slurm_elastic.providers.openstack.provider import OpenStackProvider

            stack = ownership_of_stack(settings, cluster, config)
            return OpenStackProvider(settings, cluster, ownership=stack, joining=joining)
        case FakeCloud():
            from slurm_elastic.providers.fake.provider import FakeProvider

            return FakeProvider(settings, cluster)
