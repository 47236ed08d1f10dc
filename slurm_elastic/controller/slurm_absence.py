"""Measures when slurmctld was away. No machine can register in that time, so it counts for no boot.

slurmctld's own ResumeTimeout continues while slurmctld is stopped or hangs, also over a restart
(measured on 22.05.8). If it has expired when slurmctld returns, slurmctld gives the node up one
second later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf
from typing import ClassVar

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.guards import Guarded, GuardedBy

PERIOD_S = 3.0
"""Seconds between two calls to slurmctld while a machine boots."""
MOST_SPANS = 100
"""Absences that are remembered: many more than fit into the time of one boot."""


class SlurmAbsence:
    """The spans (monotonic s) in which slurmctld did not answer. One thread asks, any may read."""

    guarded_by: ClassVar[GuardedBy] = {
        # When an absence ends, the silence becomes a span in one step. A reader that saw both or
        # neither would count the time twice or not at all.
        "_lock": Guarded("_spans", "_answered_at", "_returned_at", "_silent_since", "_started_at"),
    }

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: tuple[tuple[float, float], ...] = ()
        self._asked_next = -inf
        self._answered_at: float | None = None
        self._returned_at = -inf
        self._silent_since: float | None = None
        self._started_at: float | None = None

    def ask(
        self, started: Callable[[], float], monotonic: Callable[[], float], now: Callable[[], float]
    ) -> None:
        """Ask slurmctld when it was ``started`` (Unix time), unless it was asked a moment ago.
        SlurmError: slurmctld answered with an error.
        """
        clock = monotonic()
        if clock < self._asked_next and not self.is_away:
            return
        try:
            started_at = started()
        except SlurmError as error:
            if not error.unanswered:
                raise
            with self._lock:
                self._note_silence(clock)
            return
        self._asked_next = monotonic() + PERIOD_S
        with self._lock:
            self._note_answer(started_at, monotonic(), now())

    def _note_silence(self, clock: float) -> None:
        if self._silent_since is None:
            # slurmctld may have stopped right after its last answer.
            self._silent_since = max(clock - PERIOD_S, self._answered_at or -inf)

    def _note_answer(self, started_at: float, clock: float, now: float) -> None:
        is_same = started_at == self._started_at
        begin = self._silent_since
        if begin is None and not is_same:
            # slurmctld was restarted between two calls. Or this is the first answer, which says
            # nothing about the time before slurmctld was started.
            begin = -inf if self._answered_at is None else self._answered_at
        if begin is not None:
            is_first = self._answered_at is None and self._silent_since is None
            end = min(clock - (now - started_at), clock) if is_first else clock
            self._spans = (*self._spans, (begin, end))[-MOST_SPANS:]
            self._returned_at = end
        self._silent_since, self._started_at, self._answered_at = None, started_at, clock

    @property
    def is_away(self) -> bool:
        """Whether slurmctld did not answer the last call."""
        with self._lock:
            return self._silent_since is not None

    def seconds_since(self, begin: float, clock: float) -> float:
        """For how long slurmctld was away from ``begin`` until ``clock``."""
        with self._lock:
            silent_since, spans = self._silent_since, self._spans
        spans = spans if silent_since is None else (*spans, (silent_since, clock))
        return sum(max(min(end, clock) - max(start, begin), 0.0) for start, end in spans)

    def answers_for(self, clock: float) -> float:
        """For how long slurmctld has answered since it was away; infinite if it never was."""
        with self._lock:
            return 0.0 if self._silent_since is not None else clock - self._returned_at
