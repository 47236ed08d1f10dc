"""Imports a cloud's functions and classes at their first use, because they need its SDK."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.base.joining import program_of
from slurm_elastic.providers.base.ownership import ownership_of


def later(path: str) -> Callable[..., Any]:
    """The function or class at ``module:name``, which is imported when it is called."""
    module, _, name = path.partition(":")
    return lambda *arguments, **keywords: getattr(import_module(module), name)(
        *arguments, **keywords
    )


def opened(path: str) -> Callable[[CloudSettings, Cluster, Config | None], Provider]:
    """A function for ``CloudKind.open``: it creates the class at ``module:name`` with the owners of
    the machines at its cloud and the program by which its machines join.
    """
    create = later(path)

    def open_(settings: CloudSettings, cluster: Cluster, config: Config | None) -> Provider:
        owners = ownership_of(settings, cluster, config)
        joining = program_of(config, settings) if config else ""
        provider: Provider = create(settings, cluster, ownership=owners, joining=joining)
        return provider

    return open_


def opened_alone(path: str) -> Callable[[CloudSettings, Cluster, Config | None], Provider]:
    """A function as ``opened`` returns it, for a class that needs neither owners nor a program."""
    create = later(path)
    return lambda settings, cluster, _config: create(settings, cluster)
