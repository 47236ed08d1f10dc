"""Jobs that we had requeued: their BeginTime hold (121 s) is lifted once they are pending."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from slurm_elastic.errors import SlurmError
from slurm_elastic.model import SlurmJob
from slurm_elastic.protocols import Slurm

log = logging.getLogger(__name__)

PATIENCE = 120.0
"""Seconds to wait for a requeued job to be pending (COMPLETING takes 11 s on a half-up job)."""


class Restarts:
    """Which jobs to hurry. In memory only: without it a job waits out its hold, no more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: dict[int, tuple[SlurmJob, float]] = {}

    def expect(self, job: SlurmJob, now: float) -> None:
        """``job`` (as it was before) is being requeued."""
        with self._lock:
            self._expected[job.id] = (job, now + PATIENCE)

    def __bool__(self) -> bool:
        return bool(self._expected)

    def tick(self, slurm: Slurm, now: float) -> None:
        """Lift the hold of those that are pending by now; forget those that moved on. SlurmError
        of the queue's reading passes through; one job's failing update does not stop the others.
        """
        if not self._expected:
            return
        queue = {job.id: job for job in slurm.jobs()}
        for before, deadline in self._snapshot():
            done = now > deadline or _hurry(slurm, before, queue.get(before.id), now)
            if done:
                with self._lock:
                    self._expected.pop(before.id, None)

    def _snapshot(self) -> Iterable[tuple[SlurmJob, float]]:
        with self._lock:
            return tuple(self._expected.values())


def _hurry(slurm: Slurm, before: SlurmJob, job: SlurmJob | None, now: float) -> bool:
    """Whether nothing is left to do for the job."""
    if job is None:
        return True
    if "PENDING" not in job.states or "COMPLETING" in job.states:
        return job.restarts > before.restarts and bool(job.states & {"RUNNING", "CONFIGURING"})
    if job.start <= now and job.reason != "BeginTime":
        return job.restarts > before.restarts
    try:
        slurm.start_now(job.id)
        if not before.requeue:
            slurm.set_requeue(job.id, requeue=False)
    except SlurmError as error:
        log.warning("requeued job not hurried job=%d error=%s", job.id, error)
        return False
    log.info("requeued job may start at once job=%d", job.id)
    return True
