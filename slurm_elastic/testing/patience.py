"""How long tests wait, and how they measure. A deadline only ends what hangs, and says nothing about
how fast anything is; the whole machine may stand still meanwhile, as virtual ones do.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from slurm_elastic.base.errors import SlurmElasticError

T = TypeVar("T")

IDLE, MOST = 2.0, 10.0
"""By how much a deadline is stretched on an idle machine, and at most."""
LONGEST = 900.0
"""Seconds to which no deadline is stretched: a test that hangs on a busy machine has an end, too."""
STANDSTILL = 60.0
"""Seconds on top: for so long a machine may stand still, and do nothing within any deadline."""
LOOK, SHARE, RAREST = 0.02, 0.05, 0.5
"""Seconds between two looks of who waits: at first, by what was waited already, at most."""
TICK, GAP = 0.05, 0.5
"""Seconds between two looks of ``awake``, and the most that one counts for."""


def stretched(seconds: float) -> float:
    """Seconds for what an idle machine does within ``seconds``, by the clock of ``awake``: more, the
    busier this one is.
    """
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(seconds * min(MOST, IDLE + busy), max(seconds * IDLE, LONGEST))


def patience(seconds: float) -> float:
    """Seconds to wait for what an idle machine does within ``seconds``, by any clock."""
    return STANDSTILL + stretched(seconds)


def eventually(
    condition: Callable[[], T],
    seconds: float = 60.0,
    told: Callable[[], object] = lambda: "it did not happen",
) -> T:
    """Wait until ``condition`` is true; its value. ``told`` goes into the failure.

    It is asked more rarely by and by: many a condition starts a process each time.
    """
    began = time.monotonic()
    deadline = began + patience(seconds)
    while not (value := condition()):
        assert time.monotonic() < deadline, told()
        pause(began)
    return value


def pause(began: float, least: float = LOOK) -> None:
    """Sleep until the next look of who waits since ``began`` (``time.monotonic``)."""
    time.sleep(max(least, min((time.monotonic() - began) * SHARE, RAREST)))


class Awake:
    """Seconds for which this machine has been running since: what it stood still for is left out.

    ``longest``: the most that it stood still for at a time (s).
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self._seconds = 0.0
        self._over = threading.Event()

    def __call__(self) -> float:
        return self._seconds

    def watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(TICK):
            now = time.monotonic()
            self._seconds += min(now - before, GAP)
            self.longest = max(self.longest, now - before - TICK)
            before = now

    def close(self) -> None:
        self._over.set()


@contextmanager
def awake() -> Iterator[Awake]:
    """A clock for what must take no longer than it may: a standstill is one long step of it."""
    clock = Awake()
    watcher = threading.Thread(target=clock.watch, daemon=True)
    watcher.start()
    try:
        yield clock
    finally:
        clock.close()
        watcher.join()


def undisturbed(
    attempt: Callable[[], None],
    still: float,
    renew: Callable[[], None] = lambda: None,
    tries: int = 3,
) -> None:
    """Try again, after ``renew``, what went wrong while this machine stood still for ``still``
    seconds: for what is about time itself, and says nothing then.
    """
    for _ in range(tries - 1):
        with awake() as clock:
            try:
                attempt()
            except (AssertionError, SlurmElasticError):
                if clock.longest < still:
                    raise
            else:
                return
        renew()
    attempt()
