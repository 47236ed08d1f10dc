"""One reading for all threads that ask during another reading."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

from slurm_elastic.base.guards import Guarded, GuardedBy

T = TypeVar("T")


class SharedReading(Generic[T]):
    """``get`` returns the result of a reading that began after the call, never an older one. Any
    number of threads share at most two readings, one after the other. When no thread waits, nothing
    is kept, because a list of all jobs may be large. (``base.ttl_cache`` is a cache.)
    """

    guarded_by: ClassVar[GuardedBy] = {
        "_reading": Guarded("_last"),
        "_counting": Guarded("_callers"),
    }

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._reading = threading.Lock()
        self._counting = threading.Lock()
        self._callers = 0
        self._last: tuple[float, T] | None = None

    def get(self) -> T:
        """Return the result of a reading that began after this call. An error of the reading goes
        only to its own caller. The next caller reads again.
        """
        with self._counting:
            called_at = time.monotonic()
            self._callers += 1
        try:
            with self._reading:
                if self._last is None or self._last[0] < called_at:
                    self._last = None
                    # The time when it began, because a tuple is built from left to right.
                    self._last = time.monotonic(), self._read()
                return self._last[1]
        finally:
            with self._counting:
                self._callers -= 1
                if not self._callers:
                    # No other thread reads now, so this does not wait. Also after a failure: an
                    # older result is too old for every later caller.
                    with self._reading:
                        self._last = None
