"""The documents that the page asks for, by name, with a cache.

A document is the ``--json`` output of a command for the user who runs the server.
``cli/operate/web.py`` lists the documents with their sources.
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
from slurm_elastic.watch.web.policy import JSON

Query = Mapping[str, str]

VISITOR = "visitor"
"""The parameter of a query with the name of the user who looks at the page. The server sets it."""
AGE_PER_DURATION = 10.0  # a document is used for this many times the time that it took to make
MAX_AGE_S = 120.0  # but that rule gives at most this long
MAX_DOCUMENTS = 64  # cached documents of all names and queries
_MIN_PACKED_BYTES = 1400  # shorter documents are not compressed


class DocumentSource(Struct, frozen=True, kw_only=True):
    """How one document is made.

    ``make`` raises SlurmElasticError with a sentence for the user. It gets only the query's
    parameters in ``takes``. The document is used for at least ``fresh`` seconds. ``kind``: its
    media type.
    """

    make: Callable[[Query], str]
    fresh: float
    takes: tuple[str, ...] = ()
    kind: str = JSON


class CachedDocument(Struct, frozen=True, kw_only=True):
    """A document, used ``until`` this time (monotonic). ``packed``: gzip of ``body``, or empty."""

    until: float
    body: bytes
    packed: bytes
    kind: str = JSON


class Documents:
    """The documents of ``sources`` by name. Thread-safe: while a document is made, its callers
    wait.
    """

    guarded_by: ClassVar[GuardedBy] = {
        "_making": "to make the documents of one name",
        "_lock": Guarded("_readings"),
    }

    def __init__(self, sources: Mapping[str, DocumentSource]) -> None:
        self._sources = sources
        self._making = {name: threading.Lock() for name in sources}
        self._lock = threading.Lock()
        self._readings: dict[tuple[str, tuple[tuple[str, str], ...]], CachedDocument] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._sources

    def get(self, name: str, query: Query) -> CachedDocument:
        """The document. SlurmElasticError if it cannot be made; errors are not cached."""
        source = self._sources[name]
        query = {field: query[field] for field in source.takes if field in query}
        key = (name, tuple(query.items()))
        with self._making[name]:
            began = time.monotonic()
            with self._lock:
                kept = self._readings.get(key)
            if kept is not None and began < kept.until:
                return kept
            text = source.make(query).encode("utf-8", "backslashreplace")
            now = time.monotonic()
            lifetime_s = max(source.fresh, min(AGE_PER_DURATION * (now - began), MAX_AGE_S))
            packed = gzip.compress(text, 1, mtime=0) if len(text) >= _MIN_PACKED_BYTES else b""
            reading = CachedDocument(
                until=now + lifetime_s, body=text, packed=packed, kind=source.kind
            )
            with self._lock:
                # Re-insert at the end: the loop below drops the oldest entries.
                self._readings.pop(key, None)
                self._readings[key] = reading
                for old in list(self._readings)[:-MAX_DOCUMENTS]:
                    del self._readings[old]
            return reading


def parameter(query: Query, name: str, default: str = "", longest: int = 200) -> str:
    """One value of a query. SlurmElasticError if it is longer than ``longest``."""
    value = query.get(name, default)
    if len(value) > longest:
        raise SlurmElasticError(f"{name}: {len(value)} characters, expected {longest} at most")
    return value
