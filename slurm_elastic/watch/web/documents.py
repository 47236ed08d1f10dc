"""The documents that the page asks for, by name: what a command prints with ``--json`` to whoever
runs the server, read only as often as makes sense. ``cli/web.py`` lists them with their sources.
"""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.guards import Guarded, GuardedBy

Query = Mapping[str, str]

SHARE = 10.0  # a document is good for so many times the time that it took to make
STALE = 120.0  # seconds for which it is good at most
KEPT = 64  # how many documents, of all names and queries, are kept
_PACKED = 1400  # documents of so many bytes or more are compressed


class Source(Struct, frozen=True, kw_only=True):
    """How one document is made, or SlurmElasticError raised with a sentence. It goes only by those
    words of a query that it ``takes``, and is good for ``fresh`` seconds at least.
    """

    make: Callable[[Query], str]
    fresh: float
    takes: tuple[str, ...] = ()


class Reading(Struct, frozen=True, kw_only=True):
    """A document, good ``until`` then (monotonic); ``packed``: its ``body`` by gzip, or empty."""

    until: float
    body: bytes
    packed: bytes


class Documents:
    """The documents of ``sources`` by name. Thread-safe: who asks meanwhile waits for it."""

    guarded_by: ClassVar[GuardedBy] = {
        "_making": "to make the documents of one name",
        "_lock": Guarded("_readings"),
    }

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources
        self._making = {name: threading.Lock() for name in sources}
        self._lock = threading.Lock()
        self._readings: dict[tuple[str, tuple[tuple[str, str], ...]], Reading] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._sources

    def get(self, name: str, query: Query) -> Reading:
        """The document; SlurmElasticError if it cannot be made. Errors are not kept."""
        source = self._sources[name]
        query = {word: query[word] for word in source.takes if word in query}
        key = (name, tuple(query.items()))
        with self._making[name]:
            began = time.monotonic()
            with self._lock:
                kept = self._readings.get(key)
            if kept is not None and began < kept.until:
                return kept
            text = source.make(query).encode("utf-8", "backslashreplace")
            now = time.monotonic()
            good = max(source.fresh, min(SHARE * (now - began), STALE))
            packed = gzip.compress(text, 1, mtime=0) if len(text) >= _PACKED else b""
            made = Reading(until=now + good, body=text, packed=packed)
            with self._lock:
                # To the end of the order, of which the first ones are dropped.
                self._readings.pop(key, None)
                self._readings[key] = made
                for old in list(self._readings)[:-KEPT]:
                    del self._readings[old]
            return made


def word(query: Query, name: str, default: str = "", longest: int = 200) -> str:
    """One value of a query; SlurmElasticError if it is too long to mean anything."""
    found = query.get(name, default)
    if len(found) > longest:
        raise SlurmElasticError(f"{name}: {len(found)} characters, expected {longest} at most")
    return found
