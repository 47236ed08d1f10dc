"""Jobs that we had requeued: their BeginTime hold (121 s) is lifted once they are pending."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from msgspec.structs import replace

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
            if job.id in self._expected:  # its own requeue setting is the one it had at first
                job = replace(job, requeue=self._expected[job.id][0].requeue)
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
            job = queue.get(before.id)
            if job is None or _hurried(slurm, before, job, now) or now > deadline:
                self._forget(before, deadline)
                _put_back(slurm, before, job)

    def _snapshot(self) -> Iterable[tuple[SlurmJob, float]]:
        with self._lock:
            return tuple(self._expected.values())

    def _forget(self, before: SlurmJob, deadline: float) -> None:
        """Unless it is expected anew since."""
        with self._lock:
            if self._expected.get(before.id) == (before, deadline):
                del self._expected[before.id]


def _hurried(slurm: Slurm, before: SlurmJob, job: SlurmJob, now: float) -> bool:
    """Whether nothing is left to do for the job."""
    if "PENDING" not in job.states or "COMPLETING" in job.states:
        return job.restarts > before.restarts and bool(job.states & {"RUNNING", "CONFIGURING"})
    if job.start <= now and job.reason != "BeginTime":
        return job.restarts > before.restarts
    try:
        slurm.start_now(job.id)
    except SlurmError as error:
        log.warning("requeued job not hurried job=%d error=%s", job.id, error)
        return False
    log.info("requeued job may start at once job=%d", job.id)
    return True


def _put_back(slurm: Slurm, before: SlurmJob, job: SlurmJob | None) -> None:
    """The job's own ``--no-requeue``, which was lifted for this one requeue."""
    if job is None or before.requeue or not job.requeue:
        return
    try:
        slurm.set_requeue(job.id, requeue=False)
    except SlurmError as error:
        log.warning("job keeps its leave to be requeued job=%d error=%s", job.id, error)
