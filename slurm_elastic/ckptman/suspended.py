"""Jobs that a person has suspended (``scontrol suspend``): they are saved and stay suspended.

Slurm stops all processes of such a job, including its launcher, and only the launcher can save it.
We therefore resume the job for its save, which stops the job itself, and suspend it again
afterwards. A job that moves is suspended again as soon as it runs on its next node.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.faults import reach
from slurm_elastic.ckptman.decide import run_of
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.moves.steps import RETRY_AFTER_S
from slurm_elastic.ckptman.origins import has_started
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import Snapshot, choose_method, is_working
from slurm_elastic.model.causes.checkpoints import ResumedForSave, SlurmRefused, SuspendedAgain
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.state.ckptstate.facts import MigrationStep, Suspension

# Measured on 24.11: slurmd stops the processes two seconds after the command. A resume during that
# time may leave some of the processes stopped.
SETTLE_S = 5.0
"""Seconds from a job's suspension until it can be resumed."""
_NO_HURRY = (float("inf"), 0.0)


def resumable_at(site: CheckpointSite, run: JobRun) -> float:
    """When the run can be resumed (Unix time); 0 if it can be resumed now or is not suspended."""
    job = site.jobs.last.get(run.job)
    settled_at = job.suspended + SETTLE_S if job is not None and job.is_suspended else 0.0
    return settled_at if settled_at > site.now() else 0.0


def is_suspended(site: CheckpointSite, run: JobRun) -> bool:
    """Whether the last list shows the run as suspended."""
    job = site.jobs.last.get(run.job)
    return job is not None and job.is_suspended and job.restarts == run.attempt


def resume(site: CheckpointSite, run: JobRun) -> None:
    """Resume the run if it is suspended. Raises SlurmError if we do not know whether it works after
    this.
    """
    last_job = site.jobs.last.get(run.job)
    if last_job is None or not last_job.is_suspended:
        return
    # Read the job again: since the last list a person may have resumed it, or Slurm requeued it.
    job = site.jobs.read_new(run.job)
    if job is None or not job.is_suspended or job.restarts != run.attempt:
        return
    # A job that Slurm suspended for another job is suspended again by Slurm, not by us.
    if job.is_suspended_by_person:
        # On the disk first, so that a service that starts after a crash suspends it again.
        site.state.add_suspension(Suspension(job=job.id, attempt=job.restarts, since=job.suspended))
    reach("suspended.before-resume")
    site.slurm.resume(job.id)
    reach("suspended.resumed")
    site.recorder.record_run(run, "ckpt-resumed", ResumedForSave())


def suspend_again(site: CheckpointSite, run: JobRun) -> None:
    """Suspend the job if we resumed it for a save. If Slurm refuses, a later tick tries again."""
    if run.job not in site.state.suspensions():
        return
    try:
        site.slurm.suspend(run.job)
    except SlurmError as error:
        cause = SlurmRefused(error=str(error))
        if site.refused_suspensions.put_off(run.job, str(error), site.monotonic()):
            site.recorder.record_run(run, "ckpt-not-suspended", cause, level=logging.WARNING)
        return
    site.refused_suspensions.clear(run.job)
    # Forget the suspension only after Slurm has taken the command. After a crash in between
    # `suspend_owed_jobs` finds the job suspended, and forgets it then.
    reach("suspended.again")
    site.state.forget_suspension(run.job)
    site.recorder.record_run(run, "ckpt-suspended", SuspendedAgain())


@contextmanager
def resumed_for_save(site: CheckpointSite, run: JobRun) -> Iterator[None]:
    """Keep the run resumed for a save in place."""
    resume(site, run)
    try:
        yield
    finally:
        suspend_again(site, run)


def suspend_owed_jobs(site: CheckpointSite, snapshot: Snapshot, crew: KeyedExecutor) -> None:
    """Suspend the jobs again that we resumed. Such a job runs on its next node, or its save did not
    end before the service was killed. ``snapshot.jobs`` must be from this tick.
    """
    for number in site.state.suspensions():
        job = snapshot.jobs.get(number)
        is_over = job is None or job.has_ended
        if not is_over and (crew.is_busy(number) or _is_moved(site, number)):
            continue
        if job is None or is_over or (job.is_suspended and _is_still_suspended(site, number)):
            site.state.forget_suspension(number)
        elif is_working(job) and site.refused_suspensions.may_ask(number, site.monotonic()):
            _submit_suspension(site, job, crew)


def _is_still_suspended(site: CheckpointSite, job: int) -> bool:
    """Whether a new list shows the job as suspended. False if Slurm does not answer."""
    # The tick's list may be older than a save of this tick, which has resumed the job.
    try:
        new_job = site.jobs.read_new(job)
    except SlurmError:
        return False
    return new_job is not None and new_job.is_suspended


def _is_moved(site: CheckpointSite, job: int) -> bool:
    """Whether a move needs the job running. A move that waits for its last moment, or for minutes
    until its next save, does not.
    """
    soon_at = site.now() + RETRY_AFTER_S
    moves = (move for move in site.state.migrations() if move.run.job == job)
    return any(
        move.step is not MigrationStep.WAITING
        or (move.again and (move.at is None or move.at <= soon_at))
        for move in moves
    )


def _submit_suspension(site: CheckpointSite, job: SlurmJob, crew: KeyedExecutor) -> None:
    """Suspend the job unless it is still being restored. Its restoring launcher would stand still
    too, and would give up.
    """
    choice = choose_method(site, job)
    run = run_of(job, choice)
    if has_started(site, choice.method, run):
        crew.submit(job.id, _NO_HURRY, partial(suspend_again, site, run))
