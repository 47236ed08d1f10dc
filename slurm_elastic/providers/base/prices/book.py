"""Recent spot prices for checkpoint policies: a short history for each pool, type and
zone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.price_feed import Points, PriceFeed, PriceKey
from slurm_elastic.providers.base.prices.trace import load_trace

log = logging.getLogger(__name__)

HISTORY_S = 2 * 3600.0
"""Seconds of history to keep. A policy looks back ten minutes."""


def price_key(machine: Machine) -> PriceKey:
    """The key of a machine's prices."""
    return machine.pool, machine.instance.instance_type, machine.instance.zone


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

    def __init__(self, feeds: Sequence[PriceFeed], now: Callable[[], float]) -> None:
        self._feeds, self._now = feeds, now
        self._lock = threading.Lock()
        self._points: dict[PriceKey, dict[float, float]] = {}

    @property
    def name(self) -> str:
        """The name under which the feeds' health is recorded."""
        return ", ".join(feed.name for feed in self._feeds)

    def retry(self, every: float) -> Backoff | None:
        """Return the pauses after a failure, of a book that is read ``every`` so many seconds; None
        for the usual ones. With several feeds they do not grow: a feed that cannot be read must not
        make the prices of the others old.
        """
        return Backoff(every, every) if len(self._feeds) > 1 else None

    def refresh(self, keys: Iterable[PriceKey]) -> None:
        """Read the prices of all keys in one call to each feed. If a feed cannot be read, the
        prices of the others count, and the exception goes to the caller: that of the feed, or
        SlurmElasticError with the text of each if several cannot be read.
        """
        since, all_keys = self._now() - HISTORY_S, tuple(keys)
        errors: dict[str, Exception] = {}
        for feed in self._feeds:
            try:
                points_by_key = feed.read(all_keys, since)
            except Exception as error:  # noqa: BLE001 - it is raised below
                errors[feed.name] = error
                continue
            self._store(points_by_key, since)
        if len(errors) > 1:
            raise SlurmElasticError("; ".join(f"{name}: {e}" for name, e in errors.items()))
        for only in errors.values():
            raise only

    def _store(self, points_by_key: Mapping[PriceKey, Points], since: float) -> None:
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
