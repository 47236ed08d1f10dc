"""The clouds: a folder for each (see ``config.cloud_kinds``), and ``base``, what they share."""

from __future__ import annotations

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.errors import ConfigError
from slurm_elastic.protocols import Provider


def open_provider(
    settings: CloudSettings, cluster: Cluster, config: Config | None = None
) -> Provider:
    """The provider of a cloud; nothing is asked of the cloud yet.

    ``config`` tells it of the clouds beside it: two may be one account and region, and each must
    leave the other's machines alone. Without it the cloud is taken for the only one there.
    ConfigError where the cluster has no UUID yet, the cloud's SDK is not installed, or its
    settings name a file that cannot be used.
    """
    if not cluster.uuid:
        raise ConfigError("cluster.uuid is not set; 'slurm-elastic conf install' makes one")
    try:
        return table().kind(settings.provider).open(settings, cluster, config)
    except ModuleNotFoundError as error:
        ours = settings.provider in table().own
        raise ConfigError(
            f"cloud {settings.name!r}: Python module {error.name!r} is missing; install "
            + (f"slurm-elastic[{settings.provider}]" if ours else "it beside slurm-elastic")
        ) from error
