"""The clouds: a folder for each (see ``config.cloud_kinds``), and ``base``, what they share."""

from __future__ import annotations

import logging

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.errors import ConfigError
from slurm_elastic.protocols import Provider
from slurm_elastic.providers.base.refused import Refused

log = logging.getLogger(__name__)


def open_providers(config: Config) -> dict[str, Provider]:
    """By name, the provider of each cloud; of one that cannot be opened a provider that says so
    with each call, so that the others go on. ConfigError where none can be.
    """
    found: dict[str, Provider] = {}
    refused: list[ConfigError] = []
    for cloud in config.clouds:
        try:
            found[cloud.name] = open_provider(cloud, config.cluster, config)
        except ConfigError as error:
            refused.append(error)
            found[cloud.name] = Refused(cloud.name, str(error))
    if refused and len(refused) == len(found):
        raise refused[0]
    for why in refused:
        log.error("cloud cannot be used, the others go on: %s", why)
    return found


def open_provider(
    settings: CloudSettings, cluster: Cluster, config: Config | None = None
) -> Provider:
    """The provider of a cloud; nothing is asked of the cloud yet.

    ``config`` tells it of the clouds beside it: two may be one account and region, and each must
    leave the other's machines alone. Without it the cloud is taken for the only one there.
    ConfigError where the cluster has no UUID yet, the cloud's kind cannot be used, its SDK is not
    installed, or its settings name a file that cannot be used.
    """
    if not cluster.uuid:
        raise ConfigError("cluster.uuid is not set; 'slurm-elastic conf install' makes one")
    if settings.unusable:
        raise ConfigError(f"cloud {settings.name!r}: {settings.unusable}")
    ours = settings.provider in table().own
    try:
        return table().kind(settings.provider).open(settings, cluster, config)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"cloud {settings.name!r}: Python module {error.name!r} is missing; install "
            + (f"slurm-elastic[{settings.provider}]" if ours else "it beside slurm-elastic")
        ) from error
    except Exception as error:
        if ours or isinstance(error, ConfigError):
            raise
        why = f"provider {settings.provider!r} cannot be opened: {type(error).__name__}: {error}"
        raise ConfigError(f"cloud {settings.name!r}: {why}") from error
