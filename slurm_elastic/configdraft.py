"""What is whole of a file that may have broken parts, so that one pass finds every mistake."""

from __future__ import annotations

from functools import cached_property
from typing import TypeVar

from slurm_elastic.config import AnyCloud, PoolSettings, Who
from slurm_elastic.configshape import Problems, Shape
from slurm_elastic.slurm.hostlist import HostlistError, expand

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

    @property
    def who(self) -> Who:
        """The cluster's allow list and times; empty if broken."""
        return self.section("who", Who, Who()) or Who()

    @cached_property
    def clouds(self) -> dict[int, AnyCloud]:
        """The whole clouds by index."""
        return {i: v for i, v in self._items("clouds") if isinstance(v, AnyCloud)}

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
        known = all(pool.cloud in self.cloud_names for pool in self.pools.values())
        return known and {("clouds",), ("pools",)} <= self._shape.built.keys()

    @cached_property
    def nodes(self) -> dict[int, list[str]]:
        """The node names of each whole pool whose hostlist can be read."""
        names: dict[int, list[str]] = {}
        for i, pool in self.pools.items():
            try:
                names[i] = expand(pool.nodes)
            except HostlistError:
                continue
        return names

    def cloud_of(self, pool: PoolSettings) -> AnyCloud | None:
        """The pool's cloud, if it is whole."""
        return next((c for c in self.clouds.values() if c.name == pool.cloud), None)

    def _items(self, name: str) -> list[tuple[int, object]]:
        raw = self._raw.get(name)
        count = len(raw) if isinstance(raw, list) else 0
        return [(i, self._shape.built.get((name, i))) for i in range(count)]
