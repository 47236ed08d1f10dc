"""Whether slurmctld was away a moment ago. No machine can register while it is, so none is to blame
for that time, nor for the first seconds after it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from slurm_elastic.base.errors import SlurmError

PERIOD_S = 3.0
"""Seconds between two questions: reading all nodes is work for slurmctld."""
RESTART_S = 10.0
"""An absence of so many seconds is a restart, after which slurmctld counts ResumeTimeout again."""
AFTER_RESTART_S = 30.0
"""Seconds after a restart that machines have to register."""
AFTER_PAUSE_S = 8.0
"""Seconds after a shorter absence: slurmctld's own ResumeTimeout goes on, and we give a node up at
least 10 s before it (``boots.MARGIN_LEAST``).
"""


class SlurmAbsence:
    """``clock`` is monotonic time (s)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = -inf
        self._silent_since: float | None = None
        self._blamed_from = -inf

    def ask(self, question: Callable[[], object]) -> None:
        """Ask slurmctld something, unless it was asked a moment ago. SlurmError passes."""
        clock = self._clock()
        if clock < self._next and self._silent_since is None:
            return
        try:
            question()
        except SlurmError as error:
            if error.unanswered and self._silent_since is None:
                self._silent_since = clock
            raise
        self._next = self._clock() + PERIOD_S
        self._note_answer()

    def _note_answer(self) -> None:
        if self._silent_since is None:
            return
        clock = self._clock()
        was_restarted = clock - self._silent_since >= RESTART_S
        self._blamed_from = clock + (AFTER_RESTART_S if was_restarted else AFTER_PAUSE_S)
        self._silent_since = None

    @property
    def is_over(self) -> bool:
        """Whether slurmctld has answered long enough to blame a machine that has not registered."""
        return self._silent_since is None and self._clock() >= self._blamed_from
