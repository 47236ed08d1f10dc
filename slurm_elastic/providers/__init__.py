"""The clouds: one folder for each kind (see ``config.cloud_kinds``), and ``base`` with their shared
parts.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.config import NO_UUID, Cluster, Config
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.image_store import ImageStore
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.base.refused import RefusedProvider

log = logging.getLogger(__name__)


def open_providers(config: Config, *, may_refuse_all: bool = False) -> dict[str, Provider]:
    """The provider of each cloud by name.

    A cloud that cannot be opened gets a provider whose calls all fail with the reason, so that the
    other clouds keep working; ``reopened`` tries it again. ConfigError if no cloud can be opened,
    unless ``may_refuse_all``: a service that has worked with this configuration must not end
    because a person is just replacing a file.
    """
    providers: dict[str, Provider] = {}
    refused: list[ConfigError] = []
    for cloud in config.clouds:
        try:
            providers[cloud.name] = open_provider(cloud, config.cluster, config)
        except ConfigError as error:
            refused.append(error)
            providers[cloud.name] = RefusedProvider(cloud.name, str(error))
    if refused and len(refused) == len(providers) and not may_refuse_all:
        raise refused[0]
    for reason in refused:
        log.error("cloud cannot be used, other clouds keep working; will be retried: %s", reason)
    return providers


def reopened(config: Config, providers: Mapping[str, Provider]) -> dict[str, Provider]:
    """The clouds that ``open_providers`` could not open, and that can be opened now."""
    opened: dict[str, Provider] = {}
    for cloud in config.clouds:
        if not isinstance(providers[cloud.name], RefusedProvider):
            continue
        with contextlib.suppress(ConfigError):  # ``open_providers`` has logged it
            opened[cloud.name] = open_provider(cloud, config.cluster, config)
    if opened:
        log.info("cloud can be used again clouds=%s", ",".join(opened))
    return opened


def open_provider(
    settings: CloudSettings, cluster: Cluster, config: Config | None = None
) -> Provider:
    """The provider of a cloud. Nothing is asked of the cloud yet.

    ``config`` names the clouds beside it: two may share an account and region, and each must leave
    the other's machines alone. Without it the cloud counts as the only one there. ConfigError if
    the cluster has no UUID yet, if the cloud's kind cannot be used, if its SDK is not installed, or
    if its settings name a file that cannot be used.
    """
    if not cluster.uuid:
        raise ConfigError(NO_UUID)
    with _naming_cloud(settings):
        return table().kind(settings.provider).open(settings, cluster, config)


def open_images(settings: CloudSettings, cluster: Cluster) -> ImageStore:
    """The images of a cloud. Nothing is asked of the cloud yet. ConfigError if it keeps no images
    or cannot be opened.
    """
    with _naming_cloud(settings):
        opened = table().kind(settings.provider).images
        if opened is None:
            text = f"a cloud of provider {settings.provider} keeps no images"
            raise ConfigError(f"cloud {settings.name!r}: {text}")
        return opened(settings, cluster)


@contextlib.contextmanager
def _naming_cloud(settings: CloudSettings) -> Iterator[None]:
    """Raise a ConfigError with the cloud's name if the cloud cannot be opened inside."""
    if settings.unusable:
        raise ConfigError(f"cloud {settings.name!r}: {settings.unusable}")
    is_own_kind = settings.provider in table().own_names
    try:
        yield
    except ModuleNotFoundError as error:
        others_text = f"Python module {error.name!r} is missing; install it beside slurm-elastic"
        reason = missing_module(error, settings.provider) if is_own_kind else others_text
        raise ConfigError(f"cloud {settings.name!r}: {reason}") from error
    except Exception as error:
        # A plain LookupError, no KeyError: Python cannot read one of its own codecs, such as those
        # of a Python below /root.
        if is_own_kind and type(error) is LookupError:
            unread = missing_module(ModuleNotFoundError(name="encodings"), settings.provider)
            raise ConfigError(f"cloud {settings.name!r}: {unread}") from error
        # An unknown error in our own code is a defect and must keep its traceback. A plug-in's
        # error is its site's business, so it becomes a message.
        if is_own_kind or isinstance(error, ConfigError):
            raise
        reason = f"provider {settings.provider!r} cannot be opened: {type(error).__name__}: {error}"
        raise ConfigError(f"cloud {settings.name!r}: {reason}") from error
