"""Jobs that we had requeued: their BeginTime hold (121 s) is lifted once they are pending."""

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
from slurm_elastic.slurm.client import requeue_setting
from slurm_elastic.state.ledger import Ledger

log = logging.getLogger(__name__)

PATIENCE = 120.0
"""Seconds to wait for a requeued job to be pending (COMPLETING takes 11 s on a half-up job)."""


class _Expected(Struct, frozen=True):
    """A job as it was ``before`` its requeue, the nodes that it cannot get again, until when (s) it
    is looked for, whether its hold is to be lifted, and since when (s) it is known to have left its
    nodes. Times are monotonic.
    """

    before: SlurmJob
    gone: frozenset[str]
    deadline: float
    hurry: bool = True
    left: float | None = None


class Requeues:
    """Which jobs to hurry. In memory: without it a job waits out its hold, no more. But those whose
    own ``--no-requeue`` is lifted for it are in the ledger, too. ``clock`` is monotonic time.
    """

    guarded_by: ClassVar[GuardedBy] = {
        # Whether any job is expected: a job that comes a moment later is for the next pass.
        "_lock": Guarded("_expected", unguarded_readers=["__bool__", "tick"]),
        # A job must not be expected again between the look whether it is expected and the command,
        # which would fail it with its nodes.
        "_putting_back": "to put back a setting that was lifted for one requeue",
    }

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Held while a setting is put back: a job must not be expected again between the look
        # whether it is expected and the command, which would fail it with its nodes.
        self._putting_back = threading.Lock()
        self._expected: dict[int, _Expected] = {}

    def expect(
        self, job: SlurmJob, clock: float, gone: Collection[str], *, hurry: bool = True
    ) -> None:
        """``job`` (as it was before) is being requeued, as these nodes of its are ``gone``; without
        ``hurry`` its hold stays.
        """
        with self._putting_back, self._lock:
            earlier = self._expected.get(job.id)
            if earlier is not None:  # we may have lifted its user's --no-requeue since
                job = replace(job, requeue=job.requeue and earlier.before.requeue)
            self._expected[job.id] = _Expected(job, frozenset(gone), clock + PATIENCE, hurry)

    def recall(self, ledger: Ledger, clock: float) -> None:
        """The jobs for which somebody lifted ``--no-requeue`` for while no daemon ran, or an
        earlier one did and did not put back. They wait out their hold.
        """
        for number, restarts in ledger.requeues.lifted():
            new = _recalled(number, restarts, clock)
            with self._lock:
                known = self._expected.get(number, new)
                before = replace(known.before, requeue=False)
                self._expected[number] = replace(known, before=before)

    def recall_left(self, ledger: Ledger, now: float, clock: float) -> None:
        """The jobs for which somebody else lifted it and did not put back in a while: ckptman, when
        this daemon hung, and was restarted since. A job for which the daemon lifts it itself is
        expected first.
        """
        for number, restarts in ledger.requeues.lifted(now - PATIENCE):
            with self._lock:
                self._expected.setdefault(number, _recalled(number, restarts, clock))

    def __bool__(self) -> bool:
        return bool(self._expected)

    def tick(self, slurm: Slurm, ledger: Ledger, now: float, clock: float) -> None:
        """Lift the hold of those that are pending by now; forget those that moved on. The first
        SlurmError ends the pass; the job it was about comes last in the next one.
        """
        if not self._expected:
            return
        queue = {job.id: job for job in slurm.jobs()}
        for one in self._snapshot():
            job = queue.get(one.before.id)
            if one.left is None and job is not None and _waits(job):
                one = self._note_left(one, clock)
            try:
                if job is None or _over(one, job, clock) or _hurried(slurm, one, job, now, clock):
                    self._settle(slurm, ledger, one, job)
            except SlurmError:
                self._postpone(one)
                raise

    def _snapshot(self) -> Iterable[_Expected]:
        with self._lock:
            return tuple(self._expected.values())

    def _note_left(self, one: _Expected, clock: float) -> _Expected:
        """It is pending, so slurmctld has told its nodes to kill it by now. Where it is expected
        anew since, that one is looked at with the next pass.
        """
        noted = replace(one, left=clock)
        with self._lock:
            if self._expected.get(one.before.id) == one:
                self._expected[one.before.id] = noted
        return noted

    def _settle(self, slurm: Slurm, ledger: Ledger, one: _Expected, job: SlurmJob | None) -> None:
        """Forget it, and give it its user's ``--no-requeue`` back, which was lifted for this one
        requeue; neither if the job is expected again since: its node is about to be powered down.
        """
        with self._putting_back:
            if self._forget(one) and not one.before.requeue:
                requeue_setting.put_back(slurm, ledger, one.before.id, job)

    def _forget(self, one: _Expected) -> bool:
        """Whether it was expected still as it is here."""
        with self._lock:
            is_current = self._expected.get(one.before.id) == one
            if is_current:
                del self._expected[one.before.id]
        return is_current

    def _postpone(self, one: _Expected) -> None:
        with self._lock:
            number = one.before.id
            # To the end of the order: one that Slurm fails at must not keep the others from their
            # turn.
            self._expected[number] = self._expected.pop(number, one)


def _recalled(number: int, restarts: int, clock: float) -> _Expected:
    """Only this is known of the job as it was: that it was not to be requeued."""
    bare = SlurmJob(id=number, states=frozenset(), restarts=restarts, requeue=False)
    # Not hurried: slurmctld may have failed its nodes itself, and tells these for a while to kill
    # the job; a machine that comes up under the same name obeys (22.05, measured).
    return _Expected(bare, frozenset(), clock + PATIENCE, hurry=False)


def _over(one: _Expected, job: SlurmJob, clock: float) -> bool:
    """Whether the requeue of this job is not expected any longer."""
    recalled = not one.before.states
    # A job that somebody else recalled waits for nodes still: slurmctld would fail it where these
    # do not come.
    return clock > one.deadline and not (recalled and "CONFIGURING" in job.states)


def _waits(job: SlurmJob) -> bool:
    return "PENDING" in job.states and "COMPLETING" not in job.states


def _hurried(slurm: Slurm, one: _Expected, job: SlurmJob, now: float, clock: float) -> bool:
    """Whether nothing is left to do for the job."""
    again = job.restarts > one.before.restarts
    if not _waits(job):
        runs = "RUNNING" in job.states and "CONFIGURING" not in job.states
        started = runs and not one.before.states  # it waited for nodes when it was recalled
        return started or (again and bool(job.states & {"RUNNING", "CONFIGURING"}))
    if job.begin <= now:  # ``start`` may be the estimate of when one that waits gets its nodes
        return again
    if not one.hurry:
        return True
    if one.left is None or not may_hurry(one.before.nodes, one.gone, one.left, clock):
        return False
    slurm.start_now(job.id)
    reach("refuse.after-hurry")
    log.info("requeued job may start at once job=%d", job.id)
    return True
