"""The one way to code of other packages: what they offer by entry points, imported where it is
named.

Clouds, growth policies and checkpoint methods come this way, each by a group of its own.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from slurm_elastic.base.errors import ConfigError, of_stranger


class Kind(Protocol):
    """What an entry point has to lead to: its name, and the version that it is written for."""

    @property
    def name(self) -> str: ...

    @property
    def api(self) -> int: ...


K = TypeVar("K", bound=Kind)


class Kinds(Generic[K]):
    """All kinds of one sort by name; each is imported when it is first asked for. ``own`` are ours,
    ``others`` by name the places in other packages; ``what`` they are all called.
    """

    def __init__(
        self,
        form: type[K],
        api: int,
        what: str,
        own: Mapping[str, str],
        others: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.own, self.others = frozenset(own), frozenset(others)
        self._form, self._api, self._what = form, api, what
        self._own, self._others = own, others
        self._known: dict[str, K] = {}

    def names(self) -> tuple[str, ...]:
        """The names that the configuration may have."""
        return (*self._own, *(name for name in self._others if name not in self._own))

    def kind(self, name: str) -> K:
        """That kind. KeyError if there is none, ConfigError (read on from its name) if unusable."""
        if name not in self._known:
            self._known[name] = self._loaded(name)
        return self._known[name]

    def _loaded(self, name: str) -> K:
        own = (self._own[name],) if name in self._own else ()
        places = (*own, *self._others.get(name, ()))
        if not places:
            raise KeyError(name)
        if len(places) > 1:
            raise ConfigError(f"which several packages have: {', '.join(places)}")
        found = _imported(places[0])
        if not isinstance(found, self._form):
            raise ConfigError(f"but {places[0]} is no {self._form.__name__}")
        if found.api != self._api:
            raise ConfigError(
                f"but {places[0]} is made for interface {found.api} of {self._what}, this release"
                f" has {self._api} (install a release of it that fits)"
            )
        if found.name != name:
            raise ConfigError(f"but {places[0]} calls itself {found.name}")
        return found


def _imported(place: str) -> object:
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a stranger's code may raise anything
        raise ConfigError(f"but {place} cannot be imported: {of_stranger(error)}") from error


def installed(group: str) -> dict[str, tuple[str, ...]]:
    """By name, the places of other packages' kinds, as their entry points of that group have them.
    This imports none of them.
    """
    if not any(_mentions(group, place) for place in sys.path):
        return {}
    import importlib.metadata  # 25 ms of processor time, a tenth of what a command takes

    found: dict[str, tuple[str, ...]] = {}
    for point in importlib.metadata.entry_points(group=group):
        found[point.name] = (*found.get(point.name, ()), point.value)
    return found


def _mentions(group: str, place: str) -> bool:
    """Whether a package in that place of ``sys.path`` may have entry points of the group."""
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
    return any(group.encode() in _content(file) for file in files)


def _content(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return b""
