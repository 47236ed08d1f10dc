"""The only place that imports code of other packages. They offer it by entry points.

Clouds, growth policies and checkpoint methods come this way, each by a group of its own. The module
is imported only if the configuration names it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from slurm_elastic.base.errors import ConfigError, describe_foreign


class EntryPointKind(Protocol):
    """The object that an entry point leads to: its name, and the interface version it supports."""

    @property
    def name(self) -> str: ...

    @property
    def api(self) -> int: ...


K = TypeVar("K", bound=EntryPointKind)


class Kinds(Generic[K]):
    """All kinds of one sort by name. Each kind is imported when it is first asked for.

    ``own_places`` and ``other_places`` (of other packages) say where each name is, as
    "module:attribute". ``noun`` is the word for the sort in messages.
    """

    def __init__(
        self,
        form: type[K],
        api: int,
        noun: str,
        own_places: Mapping[str, str],
        other_places: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.own_names, self.other_names = frozenset(own_places), frozenset(other_places)
        self._form, self._api, self._noun = form, api, noun
        self._own_places, self._other_places = own_places, other_places
        self._imported: dict[str, K] = {}

    def names(self) -> tuple[str, ...]:
        """The names that may stand in the configuration, ours first."""
        return (
            *self._own_places,
            *(name for name in self._other_places if name not in self._own_places),
        )

    def kind(self, name: str) -> K:
        """The kind of this name. KeyError if no package has it.

        ConfigError if the kind cannot be used. Its text continues a sentence that begins with the
        name.
        """
        if name not in self._imported:
            self._imported[name] = self._loaded(name)
        return self._imported[name]

    def _loaded(self, name: str) -> K:
        own_places = (self._own_places[name],) if name in self._own_places else ()
        places = (*own_places, *self._other_places.get(name, ()))
        if not places:
            raise KeyError(name)
        if len(places) > 1:
            raise ConfigError(f"which several packages have: {', '.join(places)}")
        kind = _import_object(places[0])
        if not isinstance(kind, self._form):
            raise ConfigError(f"but {places[0]} is no {self._form.__name__}")
        if kind.api != self._api:
            raise ConfigError(
                f"but {places[0]} is made for interface {kind.api} of {self._noun}, this release"
                f" has {self._api} (install a release of it that fits)"
            )
        if kind.name != name:
            raise ConfigError(f"but {places[0]} calls itself {kind.name}")
        return kind


def _import_object(place: str) -> object:
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # another package's code may raise anything
        raise ConfigError(f"but {place} cannot be imported: {describe_foreign(error)}") from error


def installed(group: str) -> dict[str, tuple[str, ...]]:
    """The places of other packages' kinds by name, from the entry points of that group. No package
    is imported.
    """
    if not any(_mentions(group, place) for place in sys.path):
        return {}
    import importlib.metadata  # takes 25 ms, which is a tenth of the time of a short command

    places: dict[str, tuple[str, ...]] = {}
    for point in importlib.metadata.entry_points(group=group):
        places[point.name] = (*places.get(point.name, ()), point.value)
    return places


def _mentions(group: str, place: str) -> bool:
    """Whether a package in this directory of ``sys.path`` may have entry points of the group."""
    try:
        with os.scandir(place or ".") as entries:
            folders = [e.path for e in entries if e.name.endswith(("-info", ".egg"))]
        if any(folder.endswith(".egg") for folder in folders):
            return True
    except FileNotFoundError:
        return False
    except OSError:
        # If in doubt, ask importlib, which takes longer.
        return True
    files = (f"{folder}/entry_points.txt" for folder in folders)
    return any(group.encode() in _content(file) for file in files)


def _content(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return b""
