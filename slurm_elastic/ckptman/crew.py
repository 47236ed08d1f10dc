"""Threads that take the most urgent work first, one piece of work a job at a time."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

Order = tuple[float, float]
"""Deadline (Unix time), then less the work at risk: smaller is more urgent."""


class Crew:
    """At most ``size`` at work; 0: whoever submits does it at once. Threads start when needed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._wake = threading.Condition()
        self._waiting: list[tuple[Order, int, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._busy: set[int] = set()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, job: int, order: Order, work: Callable[[], object]) -> bool:
        """Have ``work`` done for that job; False where something waits or runs for it already."""
        with self._wake:
            if job in self._busy or self._closed:
                return False
            self._busy.add(job)
            if self._size:
                heapq.heappush(self._waiting, (order, next(self._numbers), job, work))
                self._start()
                self._wake.notify()
                return True
        self._do(job, work)
        return True

    def busy(self, job: int) -> bool:
        """Whether something waits or runs for that job."""
        with self._wake:
            return job in self._busy

    def close(self) -> None:
        """Forget what waits, and wait for what runs."""
        with self._wake:
            self._closed = True
            self._waiting.clear()
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        if self._idle < len(self._waiting) and len(self._threads) < self._size:
            name = f"crew-{len(self._threads) + 1}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._idle += 1
                while not self._waiting and not self._closed:
                    self._wake.wait()
                self._idle -= 1
                if not self._waiting:
                    return
                _, _, job, work = heapq.heappop(self._waiting)
            self._do(job, work)

    def _do(self, job: int, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception:
            log.exception("work fails in an unknown way job=%d", job)
        finally:
            with self._wake:
                self._busy.discard(job)
