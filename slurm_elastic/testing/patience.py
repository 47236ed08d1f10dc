"""Deadlines and time measurement for tests.

A deadline only ends a test that hangs. It does not test speed, because the whole machine may stand
still for a while, as virtual machines do.
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

IDLE_FACTOR, MAX_FACTOR = 2.0, 10.0
"""The factors by which a deadline is stretched on an idle machine, and at most."""
MAX_STRETCHED_S = 900.0
"""The maximum of a stretched deadline in seconds, so that a test that hangs on a busy machine
ends.
"""
STANDSTILL_S = 60.0
"""Seconds added to every deadline, for which the whole machine may stand still."""
FIRST_PAUSE_S, PAUSE_SHARE, MAX_PAUSE_S = 0.02, 0.05, 0.5
"""Pauses between two looks of a waiting test: seconds at first, share of the time waited so far,
and seconds at most.
"""
TICK_S, MAX_STEP_S = 0.05, 0.5
"""Seconds between two looks of ``awake``, and the most seconds that it counts between two looks."""


def stretched(seconds: float) -> float:
    """Return the limit for work that an idle machine does within ``seconds``. It grows with the
    load of this machine. Measure with the clock of ``awake``.
    """
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(
        seconds * min(MAX_FACTOR, IDLE_FACTOR + busy), max(seconds * IDLE_FACTOR, MAX_STRETCHED_S)
    )


def patience(seconds: float) -> float:
    """Return the limit for work that an idle machine does within ``seconds``, for any clock."""
    return STANDSTILL_S + stretched(seconds)


def eventually(
    condition: Callable[[], T],
    seconds: float = 60.0,
    told: Callable[[], object] = lambda: "it did not happen",
) -> T:
    """Wait until ``condition`` is true, and return its value. ``told`` returns the text of a
    failure.

    The condition is checked less and less often, because many conditions start a process.
    """
    began = time.monotonic()
    deadline = began + patience(seconds)
    while not (value := condition()):
        assert time.monotonic() < deadline, told()
        pause(began)
    return value


def pause(began: float, least: float = FIRST_PAUSE_S) -> None:
    """Sleep until the next look of a test that waits since ``began`` (``time.monotonic``)."""
    time.sleep(max(least, min((time.monotonic() - began) * PAUSE_SHARE, MAX_PAUSE_S)))


class Awake:
    """A clock that counts the seconds for which this machine has been running, without standstills.

    ``longest``: the longest standstill in seconds.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self._seconds = 0.0
        self._over = threading.Event()

    def __call__(self) -> float:
        return self._seconds

    def watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(TICK_S):
            now = time.monotonic()
            self._seconds += min(now - before, MAX_STEP_S)
            self.longest = max(self.longest, now - before - TICK_S)
            before = now

    def close(self) -> None:
        self._over.set()


@contextmanager
def awake() -> Iterator[Awake]:
    """Yield a clock for limits on durations. It counts a standstill of the machine only as
    ``MAX_STEP_S``.
    """
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
    """Retry ``attempt``, after ``renew``, if it failed while the machine stood still for at least
    ``still`` seconds. For tests about time itself, which mean nothing after a standstill.
    """
    for _ in range(tries - 1):
        with awake() as clock:
            try:
                attempt()
            except (AssertionError, SlurmElasticError):
                # Without a standstill the failure is real.
                if clock.longest < still:
                    raise
            else:
                return
        renew()
    attempt()
