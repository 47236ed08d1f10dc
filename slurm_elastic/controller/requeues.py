"""Lets requeued jobs start at once: lifts their BeginTime hold (121 s) as soon as they are pending,
and puts their user's ``--no-requeue`` back if we had lifted it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.faults import reach
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.repair.requeue import may_hurry
from slurm_elastic.slurm.client.commands import requeue_setting
from slurm_elastic.state.ledger import Ledger

log = logging.getLogger(__name__)

REQUEUE_TIMEOUT_S = 120.0
"""Seconds in which a requeued job must be pending. COMPLETING takes 11 s if only a part of the
job's nodes was up.
"""


class _Expected(Struct, frozen=True):
    """A job that is being requeued. ``before``: the job as it was before the requeue.
    ``lost_nodes``: nodes that it cannot get again. ``deadline``: until when we look for it.
    ``hurry``: whether to lift its hold. ``left_at``: when we first saw that it has left its nodes.
    Times are monotonic seconds.
    """

    before: SlurmJob
    lost_nodes: frozenset[str]
    deadline: float
    hurry: bool = True
    left_at: float | None = None


class ExpectedRequeues:
    """The jobs on their way back into the queue, in memory only: if an entry is lost, its job waits
    out its hold. Jobs whose ``--no-requeue`` is lifted are in the ledger, too, because a lost entry
    would change the job for good. ``clock`` is monotonic time.
    """

    guarded_by: ClassVar[GuardedBy] = {
        # Two readers only ask whether any job is expected. They need no lock: a job that comes a
        # moment later is for the next pass.
        "_lock": Guarded("_expected", unguarded_readers=["__bool__", "tick"]),
        # Held from the check whether a job is still expected until the command that puts its
        # setting back. If the job became expected in between, it would get --no-requeue back and
        # fail together with its nodes.
        "_putting_back": "to put back a setting that was lifted for one requeue",
    }

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._putting_back = threading.Lock()
        self._expected: dict[int, _Expected] = {}

    def expect(
        self, job: SlurmJob, clock: float, lost_nodes: Collection[str], *, hurry: bool = True
    ) -> None:
        """Expect the requeue of ``job`` (as it is before the requeue), because it loses
        ``lost_nodes``. Without ``hurry`` its hold stays.
        """
        with self._putting_back, self._lock:
            earlier = self._expected.get(job.id)
            # We may have lifted the user's --no-requeue after the earlier call, so the earlier
            # entry knows the user's setting.
            if earlier is not None:
                job = replace(job, requeue=job.requeue and earlier.before.requeue)
            self._expected[job.id] = _Expected(
                job, frozenset(lost_nodes), clock + REQUEUE_TIMEOUT_S, hurry
            )

    def recall(self, ledger: Ledger, now: float, clock: float) -> None:
        """Expect the jobs whose ``--no-requeue`` was lifted by ckptman while no daemon ran, or by
        an earlier daemon, and not put back. These jobs wait out their hold.
        """
        # The time of ckptman's row is in the future while ckptman verifies the job's first image.
        # The job runs during that, so the next tick would put the setting back, and Slurm would
        # end the job with its node although the image is whole.
        for number, restarts in ledger.requeues.lifted(now):
            self.expect_lifted(number, restarts, clock)

    def expect_lifted(self, job: int, restarts: int, clock: float) -> None:
        """Expect a job whose ``--no-requeue`` is lifted until it runs. It waits out its hold."""
        recalled = _expect_recalled(job, restarts, clock)
        with self._lock:
            expected = self._expected.get(job, recalled)
            before = replace(expected.before, requeue=False)
            self._expected[job] = replace(expected, before=before)

    def recall_left(self, ledger: Ledger, now: float, clock: float) -> None:
        """Expect the jobs whose ``--no-requeue`` another process lifted more than
        REQUEUE_TIMEOUT_S ago and did not put back: ckptman, if it was restarted while this daemon
        hung. The daemon itself expects a job before it lifts the setting.
        """
        for number, restarts in ledger.requeues.lifted(now - REQUEUE_TIMEOUT_S):
            with self._lock:
                self._expected.setdefault(number, _expect_recalled(number, restarts, clock))

    def __bool__(self) -> bool:
        return bool(self._expected)

    def tick(self, slurm: Slurm, ledger: Ledger, now: float, clock: float) -> None:
        """Lift the hold of the jobs pending now, and forget jobs that need nothing more.

        SlurmError passes and ends the pass. The job that caused it comes last in the next pass.
        """
        if not self._expected:
            return
        queue = {job.id: job for job in slurm.jobs()}
        for expected in self._snapshot():
            job = queue.get(expected.before.id)
            if expected.left_at is None and job is not None and _is_pending(job):
                expected = self._note_left(expected, clock)
            try:
                if (
                    job is None
                    or _is_overdue(expected, job, clock)
                    or _hurry_if_possible(slurm, expected, job, now, clock)
                ):
                    self._settle(slurm, ledger, expected, job)
            except SlurmError:
                self._postpone(expected)
                raise

    def _snapshot(self) -> Iterable[_Expected]:
        with self._lock:
            return tuple(self._expected.values())

    def _note_left(self, expected: _Expected, clock: float) -> _Expected:
        """Note that the job is pending, which means that slurmctld has told its nodes to kill it.
        If another thread has expected the job again, leave that entry for the next pass.
        """
        noted = replace(expected, left_at=clock)
        with self._lock:
            if self._expected.get(expected.before.id) == expected:
                self._expected[expected.before.id] = noted
        return noted

    def _settle(
        self, slurm: Slurm, ledger: Ledger, expected: _Expected, job: SlurmJob | None
    ) -> None:
        """Forget the job, and put its user's ``--no-requeue`` back if it was lifted. Do neither if
        the job is expected again, because its node is about to be powered down.
        """
        with self._putting_back:
            if self._forget(expected) and not expected.before.requeue:
                requeue_setting.put_back(slurm, ledger, expected.before.id, job)

    def _forget(self, expected: _Expected) -> bool:
        """Remove this entry. Returns False if the job was expected again and has a newer entry."""
        with self._lock:
            is_current = self._expected.get(expected.before.id) == expected
            if is_current:
                del self._expected[expected.before.id]
        return is_current

    def _postpone(self, expected: _Expected) -> None:
        with self._lock:
            number = expected.before.id
            # Move it to the end of the order: a job at which Slurm always fails must not keep the
            # others from their turn.
            self._expected[number] = self._expected.pop(number, expected)


def _expect_recalled(number: int, restarts: int, clock: float) -> _Expected:
    """Return the entry of a job of which we know only that its user set ``--no-requeue``."""
    bare = SlurmJob(id=number, states=frozenset(), restarts=restarts, requeue=False)
    # Without hurry: slurmctld may have failed the job's nodes itself. It then tells them for a
    # while to kill the job, and a new machine under the same name obeys (measured on 22.05).
    return _Expected(bare, frozenset(), clock + REQUEUE_TIMEOUT_S, hurry=False)


def _is_overdue(expected: _Expected, job: SlurmJob, clock: float) -> bool:
    """Whether we no longer wait for the requeue of this job."""
    recalled = not expected.before.states
    # A recalled job that waits for nodes keeps its lifted setting: if the nodes do not come,
    # slurmctld would fail a job with --no-requeue.
    return clock > expected.deadline and not (recalled and "CONFIGURING" in job.states)


def _is_pending(job: SlurmJob) -> bool:
    return "PENDING" in job.states and "COMPLETING" not in job.states


def _hurry_if_possible(
    slurm: Slurm, expected: _Expected, job: SlurmJob, now: float, clock: float
) -> bool:
    """Lift the hold of a pending job when this is safe. Returns whether nothing is left to do."""
    again = job.restarts > expected.before.restarts
    if not _is_pending(job):
        runs = "RUNNING" in job.states and "CONFIGURING" not in job.states
        # A recalled job waited for nodes. Now it runs, so it was not requeued after all.
        started = runs and not expected.before.states
        return started or (again and bool(job.states & {"RUNNING", "CONFIGURING"}))
    # Lift only the hold of the requeue. The user or a budget has set a later begin time.
    if not job.is_requeue_hold(now):
        return again
    if not expected.hurry:
        return True
    if expected.left_at is None or not may_hurry(
        expected.before.nodes, expected.lost_nodes, expected.left_at, clock
    ):
        return False
    slurm.start_now(job.id)
    reach("refuse.after-hurry")
    log.info("requeued job may start at once job=%d", job.id)
    return True
