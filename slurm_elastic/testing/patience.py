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

T = TypeVar("T")

IDLE, MOST = 2.0, 10.0
"""By how much a deadline is stretched on an idle machine, and at most."""
STANDSTILL = 60.0
"""Seconds on top: for so long a machine may stand still, and do nothing within any deadline."""
TICK, GAP = 0.05, 0.5
"""Seconds between two looks of ``awake``, and the most that one counts for."""


def stretched(seconds: float) -> float:
    """Seconds for what an idle machine does within ``seconds``, by the clock of ``awake``: more, the
    busier this one is.
    """
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * min(MOST, IDLE + busy)


def patience(seconds: float) -> float:
    """Seconds to wait for what an idle machine does within ``seconds``, by any clock."""
    return STANDSTILL + stretched(seconds)


def eventually(
    condition: Callable[[], T],
    seconds: float = 60.0,
    told: Callable[[], object] = lambda: "it did not happen",
) -> T:
    """Wait until ``condition`` is true; its value. ``told`` goes into the failure."""
    deadline = time.monotonic() + patience(seconds)
    while not (value := condition()):
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)
    return value


@contextmanager
def awake() -> Iterator[Callable[[], float]]:
    """How long (s) this machine has been running since: what it stood still for is left out.

    To say that something takes no longer than it may. A standstill is one long step of the clock.
    """
    over, seconds = threading.Event(), 0.0

    def watch() -> None:
        nonlocal seconds
        before = time.monotonic()
        while not over.wait(TICK):
            now = time.monotonic()
            seconds += min(now - before, GAP)
            before = now

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: seconds
    finally:
        over.set()
        watcher.join()
