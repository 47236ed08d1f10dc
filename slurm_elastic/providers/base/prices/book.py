"""Spot prices as checkpoint policies want them: a short history of each type and zone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Protocol

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.providers.base.prices.trace import load_trace

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Instance type and zone."""
Points = tuple[tuple[float, float], ...]
"""(since, $/h), ascending."""
KEPT = 2 * 3600.0
"""Seconds of history: a policy looks ten minutes back."""


class PriceFeed(Protocol):
    """Somewhere that prices come from; any exception means that it cannot be read now."""

    name: str

    def read(self, keys: Iterable[Key], since: float) -> Mapping[Key, Points]:
        """The prices of these from ``since`` on, and the one that held then."""
        ...


class FileFeed:
    """A CSV file in the forms that ``providers.base.prices.trace`` reads, read again when it
    changes.
    """

    def __init__(self, path: Path) -> None:
        self.name = f"prices in {path}"
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._series: Mapping[Key, Points] = {}

    def read(self, keys: Iterable[Key], since: float) -> Mapping[Key, Points]:
        """From the last reading, unless the file is another one by now."""
        found = self._path.stat()
        stamp = (found.st_mtime_ns, found.st_size)
        if stamp != self._stamp:
            series = load_trace(self._path).series
            self._series = {
                key: tuple(zip(s.times, s.prices, strict=True)) for key, s in series.items()
            }
            self._stamp = stamp
        wanted = set(keys)
        return {k: cut(points, since) for k, points in self._series.items() if k in wanted}


class PriceBook:
    """The prices by key, brought up to date by ``refresh``; what is known stays when that fails."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_points")}

    def __init__(self, feed: PriceFeed, now: Callable[[], float]) -> None:
        self._feed, self._now = feed, now
        self._lock = threading.Lock()
        self._points: dict[Key, dict[float, float]] = {}

    @property
    def name(self) -> str:
        """The name under which its health is kept."""
        return self._feed.name

    def refresh(self, keys: Iterable[Key]) -> None:
        """Ask for all these in one go; whatever the feed raises passes."""
        since = self._now() - KEPT
        read = self._feed.read(keys, since)
        with self._lock:
            for key, points in read.items():
                mine = self._points.setdefault(key, {})
                mine.update(points)
                kept = cut(tuple(sorted(mine.items())), since)
                self._points[key] = dict(kept)

    def prices(self) -> Mapping[Key, Points]:
        """All that is known."""
        with self._lock:
            return {key: tuple(sorted(points.items())) for key, points in self._points.items()}


def cut(points: Points, since: float) -> Points:
    """From the point on that held at ``since``."""
    begin = max((n for n, (when, _) in enumerate(points) if when <= since), default=0)
    return points[begin:]
