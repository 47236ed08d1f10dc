"""A file that could be read only in part, so that one pass over those parts finds all mistakes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from functools import cached_property
from typing import TypeVar

from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.config import PoolSettings
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.decode import Conversion, nearest
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.problems import Problems
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.timings import Timings

T = TypeVar("T")


class Draft:
    """The readable parts of a file, and the complaints of the checks, by index in the file. Unless
    ``strict``, unusable code of other packages is no mistake.
    """

    def __init__(self, problems: Problems, shape: Conversion, *, strict: bool = True) -> None:
        self.problems, self.strict = problems, strict
        self._shape = shape
        value = problems.document.value
        self._file_values = value if isinstance(value, dict) else {}

    def section(self, name: str, kind: type[T], default: T | None = None) -> T | None:
        """A value of the first level. ``default`` if the file lacks it, None if it is broken."""
        value = self._shape.built.get((name,))
        if isinstance(value, kind):
            return value
        return None if name in self._file_values else default

    def value(self, path: KeyPath, kind: type[T]) -> T | None:
        """The value at that path. None if the file lacks it, or if it is broken."""
        value = self._shape.built.get(path)
        return value if isinstance(value, kind) else None

    def choice(self, path: KeyPath, choices: Iterable[str]) -> None:
        """Report a word at the path outside ``choices``."""
        text = self.value(path, str)
        if text is not None and text not in choices:
            self.problems.add(
                path, shown(text), f"one of {', '.join(choices)}", nearest(text, choices)
            )

    def path(self, key_path: KeyPath, max_bytes: int = 1000) -> None:
        """Report a path in the file that is not absolute, too long or not safe in a shell."""
        file_path = self.value(key_path, str)
        if file_path is None:
            return
        if not re.fullmatch(r"/[^\s\"'#=,;$`\\]*", file_path):
            expected = "an absolute path without blanks, quotes and shell characters"
            self.problems.add(key_path, shown(file_path), expected)
        elif len(file_path.encode()) > max_bytes:
            expected = f"at most {max_bytes} bytes (a unix socket's address is short)"
            self.problems.add(key_path, f"a path of {len(file_path.encode())} bytes", expected)

    def indices(self, section: str) -> range:
        """The indices of the clouds or pools in the file."""
        section_items = self._file_values.get(section)
        return range(len(section_items) if isinstance(section_items, list) else 0)

    def each(self, section: str, key: str, kind: type[T]) -> dict[int, T]:
        """The values of one key of all clouds or pools, by index."""
        values = {i: self.value((section, i, key), kind) for i in self.indices(section)}
        return {i: value for i, value in values.items() if value is not None}

    def timing(self, key: str) -> float | None:
        """A timing in seconds. None if it is broken."""
        timings = self._file_values.get("timings", {})
        if isinstance(timings, dict) and key not in timings:
            return float(getattr(Timings(), key))
        return self.value(("timings", key), float)

    @property
    def who(self) -> Who:
        """The cluster's allow list and times. Empty if they are broken."""
        return self.section("allow", Who, Who()) or Who()

    @cached_property
    def clouds(self) -> dict[int, CloudSettings]:
        """The complete clouds by index."""
        return {i: v for i, v in self._items("clouds") if isinstance(v, CloudSettings)}

    @cached_property
    def pools(self) -> dict[int, PoolSettings]:
        """The complete pools by index."""
        return {i: v for i, v in self._items("pools") if isinstance(v, PoolSettings)}

    @cached_property
    def cloud_names(self) -> tuple[str, ...]:
        """The names of all clouds in the file, even of broken ones."""
        cloud_items = self._file_values.get("clouds")
        names = (
            [c.get("name") for c in cloud_items if isinstance(c, dict)]
            if isinstance(cloud_items, list)
            else []
        )
        return tuple(str(name) for name in names if name is not None)

    @cached_property
    def all_whole(self) -> bool:
        """Whether all clouds and pools could be read. Only then may a check report
        that no cloud or pool has something.
        """
        have_clouds = all(self.cloud_of(pool) for pool in self.pools.values())
        return have_clouds and {("clouds",), ("pools",)} <= self._shape.built.keys()

    @cached_property
    def nodes(self) -> dict[int, list[str]]:
        """The node names of each pool whose hostlist can be read."""
        names: dict[int, list[str]] = {}
        for i, hostlist in self.each("pools", "nodes", str).items():
            with contextlib.suppress(HostlistError):
                names[i] = expand(hostlist)
        return names

    def cloud_of(self, pool: PoolSettings) -> CloudSettings | None:
        """The pool's cloud, if it could be read and no other cloud has its name."""
        if self.cloud_names.count(pool.cloud) != 1:
            return None
        return next((c for c in self.clouds.values() if c.name == pool.cloud), None)

    @property
    def pools_with_clouds(self) -> list[tuple[int, PoolSettings, CloudSettings]]:
        """The pools that could be read and whose clouds could be read, with their indices."""
        pairs = [(i, pool, self.cloud_of(pool)) for i, pool in self.pools.items()]
        return [(i, pool, cloud) for i, pool, cloud in pairs if cloud is not None]

    def _items(self, name: str) -> list[tuple[int, object]]:
        return [(i, self._shape.built.get((name, i))) for i in self.indices(name)]
