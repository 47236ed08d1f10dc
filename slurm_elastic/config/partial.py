"""A file of which only some parts could be read: one pass over those finds every mistake."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from functools import cached_property
from typing import TypeVar

from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.config import PoolSettings, Timings
from slurm_elastic.config.access import Who
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.decode import Problems, Shape, nearest
from slurm_elastic.config.document import KeyPath, shown

T = TypeVar("T")


class Draft:
    """The parts of a file that could be read, and what checks say to them, by index in the file.
    Unless ``strict``, code of other packages that cannot be used is no mistake.
    """

    def __init__(self, problems: Problems, shape: Shape, *, strict: bool = True) -> None:
        self.problems, self.strict = problems, strict
        self._shape = shape
        value = problems.document.value
        self._raw = value if isinstance(value, dict) else {}

    def section(self, name: str, kind: type[T], default: T | None = None) -> T | None:
        """A value of the first level; ``default`` if the file lacks it, None if it is broken."""
        value = self._shape.built.get((name,))
        if isinstance(value, kind):
            return value
        return None if name in self._raw else default

    def value(self, at: KeyPath, kind: type[T]) -> T | None:
        """The value there; None if the file lacks it, or if it is broken."""
        value = self._shape.built.get(at)
        return value if isinstance(value, kind) else None

    def choice(self, at: KeyPath, words: Iterable[str]) -> None:
        """Complain of a word there that is none of ``words``."""
        word = self.value(at, str)
        if word is not None and word not in words:
            self.problems.add(at, shown(word), f"one of {', '.join(words)}", nearest(word, words))

    def path(self, at: KeyPath, longest: int = 1000) -> None:
        """Complain of a path there that is not absolute, too long or not safe in a shell."""
        path = self.value(at, str)
        if path is None:
            return
        if not re.fullmatch(r"/[^\s\"'#=,;$`\\]*", path):
            expected = "an absolute path without blanks, quotes and shell characters"
            self.problems.add(at, shown(path), expected)
        elif len(path.encode()) > longest:
            expected = f"at most {longest} bytes (a unix socket's address is short)"
            self.problems.add(at, f"a path of {len(path.encode())} bytes", expected)

    def indices(self, section: str) -> range:
        """The indices of the file's clouds or pools."""
        raw = self._raw.get(section)
        return range(len(raw) if isinstance(raw, list) else 0)

    def each(self, section: str, key: str, kind: type[T]) -> dict[int, T]:
        """``value`` of one key of all clouds or pools, by index."""
        found = {i: self.value((section, i, key), kind) for i in self.indices(section)}
        return {i: value for i, value in found.items() if value is not None}

    def timing(self, key: str) -> float | None:
        """One of the timings in seconds; None if it is broken."""
        raw = self._raw.get("timings", {})
        if isinstance(raw, dict) and key not in raw:
            return float(getattr(Timings(), key))
        return self.value(("timings", key), float)

    @property
    def who(self) -> Who:
        """The cluster's allow list and times; empty if it is broken."""
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
        """The names of all clouds in the file, even of broken ones."""
        raw = self._raw.get("clouds")
        names = [c.get("name") for c in raw if isinstance(c, dict)] if isinstance(raw, list) else []
        return tuple(str(name) for name in names if name is not None)

    @cached_property
    def all_whole(self) -> bool:
        """Whether all clouds and pools are known: only then can a check say what none has."""
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
        """The pool's cloud, if it is whole and no other has its name."""
        if self.cloud_names.count(pool.cloud) != 1:
            return None
        return next((c for c in self.clouds.values() if c.name == pool.cloud), None)

    @property
    def pools_with_clouds(self) -> list[tuple[int, PoolSettings, CloudSettings]]:
        """The whole pools whose clouds are whole, too, with their indices."""
        found = [(i, pool, self.cloud_of(pool)) for i, pool in self.pools.items()]
        return [(i, pool, cloud) for i, pool, cloud in found if cloud is not None]

    def _items(self, name: str) -> list[tuple[int, object]]:
        return [(i, self._shape.built.get((name, i))) for i in self.indices(name)]
