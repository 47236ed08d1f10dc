"""Remembers when prologs let jobs start: the only event by which slurm-elasticd learns of it."""

from __future__ import annotations

import threading
from typing import ClassVar

from slurm_elastic.base.guards import Guarded, GuardedBy

RUNS_AFTER_S = 3.0
"""Seconds after its prolog until Slurm surely shows a job as running. Measured: mostly 0.2 s (22.05
to 26.05).
"""


class JobStarts:
    """The job starts since Slurm's jobs were last read. Thread-safe; times are monotonic."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_first_at", "_last_at")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first_at: float | None = None
        self._last_at = 0.0

    def note(self, clock: float) -> None:
        """Remember that a prolog lets its job start now."""
        with self._lock:
            self._last_at = clock
            if self._first_at is None:
                self._first_at = clock

    def are_due(self, clock: float) -> bool:
        """Whether Slurm must show the first of these jobs as running."""
        with self._lock:
            return self._first_at is not None and clock - self._first_at >= RUNS_AFTER_S

    def look(self, clock: float) -> None:
        """Forget the starts, because Slurm's jobs are being read now. Slurm may not show a job that
        started a moment ago yet, so that start stays due.
        """
        with self._lock:
            is_seen = clock - self._last_at >= RUNS_AFTER_S
            if self._first_at is not None:
                self._first_at = None if is_seen else self._last_at
