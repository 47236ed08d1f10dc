"""Jobs that we had requeued: their BeginTime hold (121 s) is lifted once they are pending."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from msgspec.structs import replace

from slurm_elastic.errors import SlurmError
from slurm_elastic.ledger import Ledger
from slurm_elastic.model_slurm import SlurmJob
from slurm_elastic.protocols import Slurm

log = logging.getLogger(__name__)

PATIENCE = 120.0
"""Seconds to wait for a requeued job to be pending (COMPLETING takes 11 s on a half-up job)."""


class Restarts:
    """Which jobs to hurry. In memory: without it a job waits out its hold, no more. But those whose
    own ``--no-requeue`` is lifted for it are in the ledger, too. ``clock`` is monotonic time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: dict[int, tuple[SlurmJob, float]] = {}
        self._patient: set[int] = set()

    def expect(self, job: SlurmJob, clock: float, *, hurry: bool = True) -> None:
        """``job`` (as it was before) is being requeued; without ``hurry`` its hold stays."""
        with self._lock:
            (self._patient.discard if hurry else self._patient.add)(job.id)
            if job.id in self._expected:  # its own requeue setting is the one it had at first
                job = replace(job, requeue=self._expected[job.id][0].requeue)
            self._expected[job.id] = (job, clock + PATIENCE)

    def recall(self, ledger: Ledger, clock: float) -> None:
        """Those that an earlier daemon lifted ``--no-requeue`` for and did not put back."""
        for number, restarts in ledger.lifted_requeues():
            bare = SlurmJob(id=number, states=frozenset(), restarts=restarts)
            with self._lock:
                before, deadline = self._expected.get(number, (bare, clock + PATIENCE))
                self._expected[number] = (replace(before, requeue=False), deadline)

    def __bool__(self) -> bool:
        return bool(self._expected)

    def tick(self, slurm: Slurm, ledger: Ledger, now: float, clock: float) -> None:
        """Lift the hold of those that are pending by now; forget those that moved on. The first
        SlurmError ends the pass; the job it was about comes last in the next one.
        """
        if not self._expected:
            return
        queue = {job.id: job for job in slurm.jobs()}
        for before, deadline in self._snapshot():
            job = queue.get(before.id)
            try:
                patient = before.id in self._patient
                if job is None or clock > deadline or _hurried(slurm, before, job, now, patient):
                    self._forget(before, deadline)
                    _put_back(slurm, ledger, before, job)
            except SlurmError:
                self._postpone(before, deadline)
                raise

    def _snapshot(self) -> Iterable[tuple[SlurmJob, float]]:
        with self._lock:
            return tuple(self._expected.values())

    def _forget(self, before: SlurmJob, deadline: float) -> None:
        """Unless it is expected anew since."""
        with self._lock:
            if self._expected.get(before.id) == (before, deadline):
                del self._expected[before.id]
                self._patient.discard(before.id)

    def _postpone(self, before: SlurmJob, deadline: float) -> None:
        with self._lock:
            self._expected[before.id] = self._expected.pop(before.id, (before, deadline))


def _hurried(slurm: Slurm, before: SlurmJob, job: SlurmJob, now: float, patient: bool) -> bool:
    """Whether nothing is left to do for the job."""
    if "PENDING" not in job.states or "COMPLETING" in job.states:
        return job.restarts > before.restarts and bool(job.states & {"RUNNING", "CONFIGURING"})
    if job.begin <= now:  # ``start`` may be the estimate of when one that waits gets its nodes
        return job.restarts > before.restarts
    if patient:
        return True
    slurm.start_now(job.id)
    log.info("requeued job may start at once job=%d", job.id)
    return True


def _put_back(slurm: Slurm, ledger: Ledger, before: SlurmJob, job: SlurmJob | None) -> None:
    """The job's own ``--no-requeue``, which was lifted for this one requeue."""
    if before.requeue:
        return
    if job is not None and job.requeue:
        slurm.set_requeue(job.id, requeue=False)
    ledger.requeue_put_back(before.id)
