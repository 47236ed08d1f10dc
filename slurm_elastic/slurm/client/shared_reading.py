"""One reading for all threads that ask while another one is under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

from slurm_elastic.base.guards import Guarded, GuardedBy

T = TypeVar("T")


class SharedReading(Generic[T]):
    """``get`` gives what a reading found that began after the call: never an older one. So two run
    at most for any number of threads, one after the other. Nothing is kept when nobody waits:
    a list of all jobs may be large, so this is no cache (``base.ttl_cache``).
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
        """Whatever the reading raises is its own caller's; the next caller reads anew."""
        with self._counting:
            called = time.monotonic()
            self._callers += 1
        try:
            with self._reading:
                if self._last is None or self._last[0] < called:
                    self._last = None
                    # The time at which it began, as a tuple is made from left to right.
                    self._last = time.monotonic(), self._read()
                return self._last[1]
        finally:
            with self._counting:
                self._callers -= 1
                if not self._callers:
                    # Nobody else reads now, so this does not wait. Also where the reading fails: an
                    # older one is for nobody who waits now.
                    with self._reading:
                        self._last = None
