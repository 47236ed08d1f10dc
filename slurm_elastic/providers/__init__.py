"""The clouds: a folder for each (see ``config.cloud_kinds``), and ``base``, what they share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.config import NO_UUID, Cluster, Config
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.protocols import ImageStore, Provider
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
        raise ConfigError(NO_UUID)
    with _told(settings):
        return table().kind(settings.provider).open(settings, cluster, config)


def open_images(settings: CloudSettings, cluster: Cluster) -> ImageStore:
    """The images of a cloud; nothing is asked of it yet. ConfigError where it keeps none, or cannot
    be used.
    """
    with _told(settings):
        opened = table().kind(settings.provider).images
        if opened is None:
            text = f"a cloud of provider {settings.provider} keeps no images"
            raise ConfigError(f"cloud {settings.name!r}: {text}")
        return opened(settings, cluster)


@contextmanager
def _told(settings: CloudSettings) -> Iterator[None]:
    """ConfigError, with the cloud's name, for what cannot be used while it is opened inside."""
    if settings.unusable:
        raise ConfigError(f"cloud {settings.name!r}: {settings.unusable}")
    ours = settings.provider in table().own
    try:
        yield
    except ModuleNotFoundError as error:
        others = f"Python module {error.name!r} is missing; install it beside slurm-elastic"
        why = missing_module(error, settings.provider) if ours else others
        raise ConfigError(f"cloud {settings.name!r}: {why}") from error
    except Exception as error:
        if ours or isinstance(error, ConfigError):
            raise
        why = f"provider {settings.provider!r} cannot be opened: {type(error).__name__}: {error}"
        raise ConfigError(f"cloud {settings.name!r}: {why}") from error
