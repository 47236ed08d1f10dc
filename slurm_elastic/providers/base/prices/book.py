"""Recent spot prices for checkpoint policies: a short history for each pool, type and
zone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Protocol

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.memory import Machine
from slurm_elastic.providers.base.prices.trace import load_trace

log = logging.getLogger(__name__)

PriceKey = tuple[str, str, str]
"""Pool, instance type and zone. Pools differ in their images, whose licences have prices."""
Points = tuple[tuple[float, float], ...]
"""(time from which the price holds, $/h), ascending."""
HISTORY_S = 2 * 3600.0
"""Seconds of history to keep. A policy looks back ten minutes."""


def price_key(machine: Machine) -> PriceKey:
    """The key of a machine's prices."""
    return machine.pool, machine.instance.instance_type, machine.instance.zone


class PriceFeed(Protocol):
    """A source of prices. Any exception means that it cannot be read now."""

    name: str

    def read(self, keys: Iterable[PriceKey], since: float) -> Mapping[PriceKey, Points]:
        """The prices for these keys since ``since`` (Unix time), including the price that was valid
        then.
        """
        ...


class FileFeed:
    """A CSV file in a form that ``providers.base.prices.trace`` reads. It is read again when it
    changes.
    """

    def __init__(self, path: Path) -> None:
        self.name = f"prices in {path}"
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._series: Mapping[tuple[str, str], Points] = {}

    def read(self, keys: Iterable[PriceKey], since: float) -> Mapping[PriceKey, Points]:
        """The prices of the file, which is parsed again only if it has changed."""
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            # The stamp is taken before the file is read and stored after it. If the file changes in
            # between, or cannot be parsed, the next call reads it again.
            series = load_trace(self._path).series
            self._series = {
                offer: tuple(zip(s.times, s.prices, strict=True)) for offer, s in series.items()
            }
            self._stamp = stamp
        offers = {key: (key[1], key[2]) for key in keys}
        return {
            key: cut(self._series[offer], since)
            for key, offer in offers.items()
            if offer in self._series
        }


class PriceBook:
    """Prices by key. ``refresh`` updates them; if it fails, the known prices stay."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_points")}

    def __init__(self, feed: PriceFeed, now: Callable[[], float]) -> None:
        self._feed, self._now = feed, now
        self._lock = threading.Lock()
        self._points: dict[PriceKey, dict[float, float]] = {}

    @property
    def name(self) -> str:
        """The name under which the feed's health is recorded."""
        return self._feed.name

    def refresh(self, keys: Iterable[PriceKey]) -> None:
        """Read the prices of all keys in one call. The feed's exceptions go to the caller."""
        since = self._now() - HISTORY_S
        points_by_key = self._feed.read(keys, since)
        with self._lock:
            for key, points in points_by_key.items():
                known_points = self._points.setdefault(key, {})
                known_points.update(points)
                recent = cut(tuple(sorted(known_points.items())), since)
                self._points[key] = dict(recent)

    def prices(self) -> Mapping[PriceKey, Points]:
        """All known prices."""
        with self._lock:
            return {key: tuple(sorted(points.items())) for key, points in self._points.items()}


def cut(points: Points, since: float) -> Points:
    """The points from the point valid at ``since`` onwards."""
    first_index = max((n for n, (when, _) in enumerate(points) if when <= since), default=0)
    return points[first_index:]
