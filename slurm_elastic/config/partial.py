"""The whole parts of a file that may have broken ones, so that one pass finds every mistake."""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import TypeVar

from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.config import PoolSettings, Timings
from slurm_elastic.config.access import Who
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.decode import Problems, Shape
from slurm_elastic.config.document import KeyPath

T = TypeVar("T")


class Draft:
    """The whole parts by their index in the file; a check asks only for what it needs.

    ``all_whole`` says that no cloud and no pool is missing here, so that "none of them" is certain.
    """

    def __init__(self, problems: Problems, shape: Shape) -> None:
        self.problems = problems
        self._shape = shape
        value = problems.document.value
        self._raw = value if isinstance(value, dict) else {}

    def section(self, name: str, kind: type[T], default: T | None = None) -> T | None:
        """A top-level value; ``default`` if the file lacks it, None if it is broken."""
        value = self._shape.built.get((name,))
        if isinstance(value, kind):
            return value
        return None if name in self._raw else default

    def value(self, at: KeyPath, kind: type[T]) -> T | None:
        """A value that is in the file and whole, else None."""
        value = self._shape.built.get(at)
        return value if isinstance(value, kind) else None

    def indices(self, section: str) -> range:
        """The indices of a list of the file."""
        raw = self._raw.get(section)
        return range(len(raw) if isinstance(raw, list) else 0)

    def each(self, section: str, key: str, kind: type[T]) -> dict[int, T]:
        """One field of all clouds or pools, where it is in the file and whole, by index."""
        found = {i: self.value((section, i, key), kind) for i in self.indices(section)}
        return {i: value for i, value in found.items() if value is not None}

    def timing(self, key: str) -> float | None:
        """One of the timings (s); the default if the file lacks it, None if it is broken."""
        raw = self._raw.get("timings", {})
        default = getattr(Timings(), key) if isinstance(raw, dict) and key not in raw else None
        return default or self.value(("timings", key), float)

    @property
    def who(self) -> Who:
        """The cluster's allow list and times; empty if broken."""
        return self.section("who", Who, Who()) or Who()

    @cached_property
    def clouds(self) -> dict[int, CloudSettings]:
        """The whole clouds by index."""
        return {i: v for i, v in self._items("clouds") if isinstance(v, CloudSettings)}

    @cached_property
    def pools(self) -> dict[int, PoolSettings]:
        """The whole pools by index."""
        return {i: v for i, v in self._items("pools") if isinstance(v, PoolSettings)}

    @cached_property
    def cloud_names(self) -> tuple[str, ...]:
        """The names of all clouds in the file, also of broken ones."""
        raw = self._raw.get("clouds")
        names = [c.get("name") for c in raw if isinstance(c, dict)] if isinstance(raw, list) else []
        return tuple(str(name) for name in names if name is not None)

    @cached_property
    def all_whole(self) -> bool:
        """Whether every cloud and pool of the file is whole, and each pool's cloud is known."""
        known = all(self.cloud_of(pool) for pool in self.pools.values())
        return known and {("clouds",), ("pools",)} <= self._shape.built.keys()

    @cached_property
    def nodes(self) -> dict[int, list[str]]:
        """The node names of each pool whose hostlist can be read."""
        names: dict[int, list[str]] = {}
        for i, hostlist in self.each("pools", "nodes", str).items():
            with contextlib.suppress(HostlistError):
                names[i] = expand(hostlist)
        return names

    def cloud_of(self, pool: PoolSettings) -> CloudSettings | None:
        """The pool's cloud, if it is whole and the only one of that name."""
        if self.cloud_names.count(pool.cloud) != 1:
            return None
        return next((c for c in self.clouds.values() if c.name == pool.cloud), None)

    @property
    def pools_with_clouds(self) -> list[tuple[int, PoolSettings, CloudSettings]]:
        """The whole pools whose clouds are whole too, with their indices."""
        found = [(i, pool, self.cloud_of(pool)) for i, pool in self.pools.items()]
        return [(i, pool, cloud) for i, pool, cloud in found if cloud is not None]

    def _items(self, name: str) -> list[tuple[int, object]]:
        return [(i, self._shape.built.get((name, i))) for i in self.indices(name)]
