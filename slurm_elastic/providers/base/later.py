"""The parts of a kind of cloud that are imported when they are used: they need its SDK."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.base.joining import program_of
from slurm_elastic.providers.base.ownership import ownership_of


def later(place: str) -> Callable[..., Any]:
    """The function or class at ``module:name``."""
    module, _, name = place.partition(":")
    return lambda *arguments, **named: getattr(import_module(module), name)(*arguments, **named)


def opened(place: str) -> Callable[[CloudSettings, Cluster, Config | None], Provider]:
    """As ``CloudKind.open``: the class at ``module:name`` is told whose machines there are at its
    cloud, and the program by which its machines join.
    """
    made = later(place)

    def open_(settings: CloudSettings, cluster: Cluster, config: Config | None) -> Provider:
        owners = ownership_of(settings, cluster, config)
        joining = program_of(config, settings) if config else ""
        provider: Provider = made(settings, cluster, ownership=owners, joining=joining)
        return provider

    return open_


def opened_alone(place: str) -> Callable[[CloudSettings, Cluster, Config | None], Provider]:
    """The same for a class that needs to know neither."""
    made = later(place)
    return lambda settings, cluster, _config: made(settings, cluster)
