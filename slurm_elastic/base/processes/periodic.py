"""Periodic tasks: the rules for the next time, and a thread that runs a task."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.processes.lasting import LastingThread

MAX_REST_S = 180.0
"""The longest rest after slow work. Commands of Slurm may take 30 seconds until they time out, and
20 times that would leave waiting jobs without a look for 10 minutes. Answers of 30 seconds still
take at most a seventh of the time.
"""
MAX_REST_AFTER_FAILURE_S = 60.0
"""The longest rest after slow work that failed. It took as long as a time-out, and a time-out says
nothing about the load that an answer would cause.
"""


def rest_after(took_s: float, pace: float, *, succeeded: bool = True) -> float:
    """Seconds to rest after work that took ``took_s``, so that it takes about 1/``pace`` of the
    time.
    """
    return min(pace * took_s, MAX_REST_S if succeeded else MAX_REST_AFTER_FAILURE_S)


class PeriodicTask:
    """Calls ``work`` again and again, one call after the other. A call that returns False has
    failed.

    The next call is due ``period_s`` after the end of the last one, or ``pace`` times the length of
    the last one if this is more (at most the bounds of ``rest_after``). After a failure it is due
    after the pause of ``retry``, if given.
    An exception passes to the caller, and the next call is due at once.
    """

    def __init__(
        self, name: str, work: Callable[[], object], period_s: float, *,
        pace: float = 0.0, retry: Backoff | None = None, first_in_s: float = 0.0,
        clock: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        self.name, self._work = name, work
        # Read from the module at this point, so that tests can replace ``time`` in it.
        self._clock = time.monotonic if clock is None else clock
        self._period_s, self._pace, self._retry = period_s, pace, retry
        self._failures = 0
        self._has_ended = False
        self._due_at = self._clock() + first_in_s
        self._soonest_at = -inf
        """Before this time not even an event makes a call due, because the last one took long."""

    def once(self) -> bool:
        """Call ``work`` now. Return whether it succeeded."""
        began_at = self._clock()
        went_well = self._work() is not False
        ended_at = self._clock()
        rest_s = rest_after(ended_at - began_at, self._pace, succeeded=went_well)
        pause_s = max(self._period_s, rest_s)
        self._failures = 0 if went_well else self._failures + 1
        if self._failures and self._retry is not None:
            pause_s = self._retry.after(self._failures)
        self._soonest_at, self._due_at = ended_at + rest_s, ended_at + pause_s
        if self._has_ended:  # by the work itself
            self.end()
        return went_well

    def skip(self) -> None:
        """Make the next call due a period from now, because there is nothing to do."""
        self._due_at = self._clock() + self._period_s

    def end(self) -> None:
        """Never call ``work`` again."""
        self._has_ended, self._due_at, self._soonest_at = True, inf, inf

    def run(self, stop: threading.Event, woken: threading.Event | None = None) -> None:
        """Call ``work`` whenever it is due, until ``stop`` is set or the task has ended. ``woken``
        makes a call due at once. Its owner must set ``woken`` after ``stop``, too, or this thread
        would not notice ``stop``.
        """
        while not self._has_ended:
            (woken or stop).wait(max(self._due_at - self._clock(), 0.0))
            if stop.is_set():
                return
            if woken is not None:
                woken.clear()
            self.once()


class PeriodicThread(LastingThread):
    """Runs one task in a thread of its own, until ``stop`` is set or the task has ended."""

    def __init__(
        self,
        task: PeriodicTask,
        stop: threading.Event,
        *,
        woken: threading.Event | None = None,
        died: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(task.name, lambda: task.run(stop, woken), died)
