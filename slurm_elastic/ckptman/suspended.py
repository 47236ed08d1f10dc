"""Jobs that somebody has suspended (``scontrol suspend``): saved as they are, and suspended still.

Slurm stops all processes of such a job, its launcher among them, which alone can save it. So it is
resumed for as long as its save takes, which stops the job itself, and then suspended again; one
that moves, as soon as it runs where it goes on.
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
from slurm_elastic.ckptman.origins import has_started
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import Snapshot, choose_method, is_working
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.state.ckptstate.facts import Step, Suspension

# Measured on 24.11: the stop comes two seconds after the command, and a resume at that time may
# leave some of the processes stopped.
SETTLE_S = 5.0
"""Seconds from a job's suspension until it can be resumed."""
_NO_HURRY = (float("inf"), 0.0)


def resumable_at(site: CheckpointSite, run: JobRun) -> float:
    """When that run can be resumed (Unix time); 0 where it can now, or is not suspended."""
    job = site.jobs.last.get(run.job)
    at = job.suspended + SETTLE_S if job is not None and job.is_suspended else 0.0
    return at if at > site.now() else 0.0


def resume(site: CheckpointSite, run: JobRun) -> None:
    """Resume that run if it is suspended. SlurmError where it is not known to work then."""
    known = site.jobs.last.get(run.job)
    if known is None or not known.is_suspended:
        return
    job = site.jobs.read_new(run.job)
    if job is None or not job.is_suspended or job.restarts != run.attempt:
        return
    # One that Slurm itself has suspended for another job is Slurm's to suspend again.
    if job.is_suspended_by_person:
        # On the disk first: whoever starts after a crash suspends it again.
        site.state.add_suspension(Suspension(job=job.id, attempt=job.restarts, since=job.suspended))
    reach("suspended.before-resume")
    site.slurm.resume(job.id)
    reach("suspended.resumed")
    site.recorder.record_run(
        run, "ckpt-resumed", "it is suspended, and resumed as long as its save takes"
    )


def suspend_again(site: CheckpointSite, run: JobRun) -> None:
    """Suspend the job if that is owed; where that fails, the next look does it."""
    if run.job not in site.state.suspensions():
        return
    try:
        site.slurm.suspend(run.job)
    except SlurmError as error:
        site.recorder.record_run(run, "ckpt-not-suspended", str(error), level=logging.WARNING)
        return
    reach("suspended.again")
    site.state.forget_suspension(run.job)
    site.recorder.record_run(
        run, "ckpt-suspended", "it is suspended again, as it was before its save"
    )


@contextmanager
def resumed_for_save(site: CheckpointSite, run: JobRun) -> Iterator[None]:
    """For a save of a run that stays."""
    resume(site, run)
    try:
        yield
    finally:
        suspend_again(site, run)


def suspend_owed_jobs(site: CheckpointSite, seen: Snapshot, crew: KeyedExecutor) -> None:
    """Suspend again what is owed: a job that has come to its next node, or whose save had no end as
    the service was killed. By a list of jobs of this moment.
    """
    for number in site.state.suspensions():
        job = seen.jobs.get(number)
        is_over = job is None or job.has_ended
        if not is_over and (crew.is_busy(number) or _is_moved(site, number)):
            continue
        if job is None or is_over or job.is_suspended:
            site.state.forget_suspension(number)
        elif is_working(job):
            _submit_suspension(site, job, crew)


def _is_moved(site: CheckpointSite, job: int) -> bool:
    """Whether a move of the job needs it awake; one that waits for its last moment does not."""
    moves = (move for move in site.state.migrations() if move.run.job == job)
    return any(move.step is not Step.WAITING or move.again for move in moves)


def _submit_suspension(site: CheckpointSite, job: SlurmJob, crew: KeyedExecutor) -> None:
    """Not while it is brought back: who does that would stand still, too, and give up."""
    choice = choose_method(site, job)
    run = run_of(job, choice)
    if has_started(site, choice.method, run):
        crew.submit(job.id, _NO_HURRY, partial(suspend_again, site, run))
