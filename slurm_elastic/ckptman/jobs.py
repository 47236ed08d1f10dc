"""The list of jobs, read once for all who ask within a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from slurm_elastic.model_slurm import SlurmJob
from slurm_elastic.protocols import Slurm

FRESH = 0.3
"""Seconds for which one reading serves everybody."""


class JobList:
    """One command for any number of jobs and threads; ``clock`` is monotonic time."""

    def __init__(
        self, slurm: Slurm, clock: Callable[[], float] = time.monotonic, fresh: float = FRESH
    ) -> None:
        self._slurm = slurm
        self._clock = clock
        self._fresh = fresh
        self._lock = threading.Lock()
        self._jobs: Mapping[int, SlurmJob] = {}
        self._begun = float("-inf")
        self.cost = 0.0

    def read(self) -> Mapping[int, SlurmJob]:
        """All jobs, by a list of this moment. SlurmError where it cannot be read."""
        return self._since(self._clock() - self._fresh)

    def anew(self, job: int) -> SlurmJob | None:
        """The job by a list that was asked for after this call began."""
        return self._since(self._clock()).get(job)

    def look(self, job: int) -> SlurmJob | None:
        """The job by a list of this moment."""
        return self.read().get(job)

    def mark(self) -> float:
        """The moment, for ``knows``."""
        return self._clock()

    def knows(self, mark: float) -> bool:
        """Whether the last list was asked for after that moment."""
        return self._begun >= mark

    @property
    def last(self) -> Mapping[int, SlurmJob]:
        """The jobs of the last reading, however long ago."""
        return self._jobs

    def _since(self, when: float) -> Mapping[int, SlurmJob]:
        with self._lock:
            if self._begun < when:
                begun = self._clock()
                self._jobs = {job.id: job for job in self._slurm.jobs(ended=True)}
                self._begun, self.cost = begun, self._clock() - begun
            return self._jobs
