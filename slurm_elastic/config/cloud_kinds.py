"""The kinds of clouds, each described by its own folder: one table, filled when it is asked.

A kind of ours is a folder of ``slurm_elastic.providers`` that has a ``CLOUD``; one of others is an
entry point of the group ``slurm_elastic.providers`` that leads to one, and is imported only where a
configuration names it. No other file knows which kinds there are.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, cast

import msgspec
import msgspec.inspect as mi
from msgspec import Struct

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.clouds import CloudSettings, UnusableCloud
from slurm_elastic.config.found import Found, Place
from slurm_elastic.config.grants import Grant, Holder, Use
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.requirements import KnownType
from slurm_elastic.model.protocols import ImageStore, Provider

GROUP = "slurm_elastic.providers"
API = 1
"""The interface that a kind must have been written for; it grows when CloudKind, CloudSettings or
Provider change in a way that breaks one.
"""
_SHARED = "base"


def _no_complaint(draft: Draft, index: int, cloud: Any) -> None:  # noqa: ANN401 - the kind's settings
    del draft, index, cloud


class CloudKind(Struct, frozen=True, kw_only=True):
    """A kind of cloud. The tag of ``settings`` is its name, the value of the key ``provider``.

    ``open`` makes a provider from settings, the cluster and, where there is one, the whole
    configuration; it imports the SDK. ``check`` adds what makes no sense in a cloud of the kind, at
    its index in the file, to the draft's problems. ``grant`` writes the least rights that its
    account needs; None where the cloud knows no rights. ``known_types`` asks the cloud for its
    types and prices (any ProviderError); None where it has no catalogue. ``found`` looks
    for clouds of the kind that this host can reach, for ``init``. ``images`` opens its images, for
    ``image upload``; None where it keeps none.
    """

    settings: type[CloudSettings]
    open: Callable[[Any, Cluster, Config | None], Provider]
    check: Callable[[Draft, int, Any], None] = _no_complaint
    grant: Callable[[Any, Use, Holder], Grant] | None = None
    known_types: Callable[[Any], Iterable[KnownType]] | None = None
    found: Callable[[Place], Iterable[Found]] | None = None
    images: Callable[[Any, Cluster], ImageStore] | None = None
    api: int = API

    @property
    def name(self) -> str:
        """The value of the key ``provider``."""
        return str(self.settings.__struct_config__.tag)


class CloudTable:
    """All kinds that there are, by name; each is imported when it is first asked for. ``own`` are
    those of this package.
    """

    def __init__(self, own: Mapping[str, str], others: Mapping[str, tuple[str, ...]]) -> None:
        self.own = frozenset(own)
        self._own = own
        self._others = others
        self._known: dict[str, CloudKind] = {}

    def names(self) -> tuple[str, ...]:
        """The values that ``provider`` may have."""
        return (*self._own, *(name for name in self._others if name not in self._own))

    def kind(self, name: str) -> CloudKind:
        """ConfigError where it cannot be used, with why, to be said after its name. KeyError where
        there is none.
        """
        if name not in self._known:
            self._known[name] = self._loaded(name)
        return self._known[name]

    def member(self, name: str) -> mi.StructType:
        """The schema of a cloud of that kind; errors as of ``kind``."""
        return _schema(self.kind(name).settings)

    def _loaded(self, name: str) -> CloudKind:
        own = (self._own[name],) if name in self._own else ()
        places = (*own, *self._others.get(name, ()))
        if not places:
            raise KeyError(name)
        if len(places) > 1:
            raise ConfigError(f"which several packages have: {', '.join(places)}")
        found = _imported(places[0])
        if not isinstance(found, CloudKind):
            raise ConfigError(f"but {places[0]} is no CloudKind")
        if found.api != API:
            raise ConfigError(
                f"but {places[0]} is made for interface {found.api} of providers, this release has "
                f"{API} (install a release of it that fits)"
            )
        if found.name != name:
            raise ConfigError(f"but {places[0]} calls itself {found.name}")
        return found


class Tolerant:
    """The same kinds; in the place of one that cannot be used, the keys that all clouds have. A
    configuration goes on with it as far as the other clouds are concerned.
    """

    def __init__(self, whole: CloudTable) -> None:
        self._whole = whole

    def names(self) -> tuple[str, ...]:
        """As of the table."""
        return self._whole.names()

    def member(self, name: str) -> mi.StructType:
        """As of the table, but for ConfigError."""
        try:
            return self._whole.member(name)
        except ConfigError as error:
            return _schema(_unusable(name, f"provider {name!r}, {error}"))


@cache
def _unusable(name: str, why: str) -> type[CloudSettings]:
    return cast(
        type[CloudSettings],
        msgspec.defstruct(
            UnusableCloud.__name__, [], bases=(UnusableCloud,), tag=name, frozen=True, kw_only=True,
            namespace={"unusable": why},
        ),
    )  # fmt: skip


def _imported(place: str) -> object:
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a stranger's code may raise anything
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"but {place} cannot be imported: {why}") from error


@cache
def table() -> CloudTable:
    """The kinds of this installation."""
    return CloudTable(_own(), _installed())


def _own() -> dict[str, str]:
    """By name, where the kinds of this package are. None of them is imported for that."""
    found = importlib.util.find_spec("slurm_elastic.providers")
    folders = found.submodule_search_locations if found else None
    names = [m.name for m in pkgutil.iter_modules(folders) if m.ispkg and m.name != _SHARED]
    return {name: f"slurm_elastic.providers.{name}:CLOUD" for name in sorted(names)}


def _installed() -> dict[str, tuple[str, ...]]:
    """By name, what other packages say that they have."""
    if not any(map(_mentions_us, sys.path)):
        return {}
    import importlib.metadata  # 25 ms of processor time, a tenth of what a command takes

    found: dict[str, tuple[str, ...]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        found[point.name] = (*found.get(point.name, ()), point.value)
    return found


def _mentions_us(place: str) -> bool:
    """Whether a package there may have entry points of ours; what is no directory may."""
    try:
        with os.scandir(place or ".") as entries:
            folders = [e.path for e in entries if e.name.endswith(("-info", ".egg"))]
        if any(folder.endswith(".egg") for folder in folders):
            return True
    except FileNotFoundError:
        return False
    except OSError:
        return True
    files = (f"{folder}/entry_points.txt" for folder in folders)
    return any(GROUP.encode() in _content(file) for file in files)


def _content(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return b""


@cache
def _schema(settings: type[CloudSettings]) -> mi.StructType:
    return cast(mi.StructType, mi.type_info(settings))
