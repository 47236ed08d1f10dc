"""A cache whose values serve for a limited time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from math import inf
from typing import ClassVar, Generic, NamedTuple, TypeVar

from slurm_elastic.base.guards import Guarded, GuardedBy

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_KEYS = 10_000
"""More keys than any caller asks for on purpose. The cache drops the keys read longest ago."""


class Reading(NamedTuple, Generic[V]):
    """A value, when its reading began (by the cache's clock) and how long it took (s)."""

    value: V
    began_at: float
    took_s: float


class TtlCache(Generic[K, V]):
    """The last reading of each key. Thread-safe: callers that ask for a key while it is read wait
    for that reading, and other keys do not wait for it. A reading that fails changes nothing here.
    """

    guarded_by: ClassVar[GuardedBy] = {
        "_lock": Guarded("_readings", "_turns", "_era"),
        "_turns": "to read the value of a key",
    }

    def __init__(self, clock: Callable[[], float] | None = None, max_keys: int = MAX_KEYS) -> None:
        # Read from the module at this point, so that tests can replace ``time`` in it.
        self._clock = time.monotonic if clock is None else clock
        self._max_keys = max_keys
        self._lock = threading.Lock()
        self._readings: dict[K, Reading[V]] = {}
        self._turns: dict[K, threading.Lock] = {}
        self._era = object()

    def get(
        self,
        key: K,
        read: Callable[[], V],
        *,
        ttl_s: float | Callable[[float], float] = inf,
        since: float = -inf,
    ) -> V:
        """Return a value whose reading began less than ``ttl_s`` ago, and at ``since`` or later.
        The age counts from the begin of the reading, because changes during a reading may be
        missing from it. ``ttl_s`` may be a function of how long the reading took (s).
        """
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
            # A key whose readings all fail has a turn, too, so the turns need a bound of their own.
            if len(self._turns) > self._max_keys:
                # A dropped turn lets two threads read the same key at the same time, which does no
                # harm.
                del self._turns[next(iter(self._turns))]
        with turn:
            reading = self.reading(key)
            # Checked only now, because the value may have grown too old during the wait.
            if reading is None or reading.began_at < since or self._is_old(reading, ttl_s):
                reading = self._read(key, read)
        return reading.value

    def reading(self, key: K) -> Reading[V] | None:
        """The last reading, however old. The call waits for no reading."""
        with self._lock:
            return self._readings.get(key)

    def last(self, key: K, max_age_s: float = inf) -> V | None:
        """The last value, if it is not older than ``max_age_s``; the call waits for no reading."""
        reading = self.reading(key)
        return None if reading is None or self._is_old(reading, max_age_s) else reading.value

    def forget(self) -> None:
        """Read everything again. An unfinished reading serves only its own caller."""
        with self._lock:
            self._readings.clear()
            self._era = object()

    def _is_old(self, reading: Reading[V], ttl_s: float | Callable[[float], float]) -> bool:
        ttl = ttl_s(reading.took_s) if callable(ttl_s) else ttl_s
        return ttl != inf and self._clock() - reading.began_at >= ttl

    def _read(self, key: K, read: Callable[[], V]) -> Reading[V]:
        with self._lock:
            era = self._era
        began_at = self._clock()
        value = read()
        reading = Reading(value, began_at, self._clock() - began_at)
        with self._lock:
            if era is self._era:  # ``forget`` was not called during the reading
                # The key moves to the end, so the first key was read longest ago.
                self._readings.pop(key, None)
                self._readings[key] = reading
                if len(self._readings) > self._max_keys:
                    del self._readings[next(iter(self._readings))]
        return reading
