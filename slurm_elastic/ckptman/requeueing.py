"""The requeue of a job that was saved; where Slurm does not do it, the job goes on where it is."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.base.faults import reach
from slurm_elastic.base.units import brief
from slurm_elastic.checkpointers.signal import save_signals
from slurm_elastic.ckptman import suspended
from slurm_elastic.ckptman.origins import STAYING
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.steps import RETRY_AFTER_S, enter_step, finish, record_step
from slurm_elastic.model.slurm import ENDED, SlurmJob
from slurm_elastic.policies.checkpoint.threat import Cause
from slurm_elastic.slurm.client import requeue_setting
from slurm_elastic.state.ckptstate.facts import FailedRelease, Migration, Step

LATE_RETRY_AFTER_S = 10.0
"""Seconds between two tries of a requeue that did not come for PATIENCE."""
RELEASE_BACKOFF = Backoff(30.0, 300.0)
"""Seconds until a stopped run is let go on once more, first and at most: its node may have to read
all of its images for that.
"""
REQUEUE_TIMEOUT_S = 600.0
"""Seconds after which a job goes on that was stopped for a move which does not come. No key: Slurm
requeues within seconds; longer is an outage, and a running job is worth more than a stopped one.
"""
_CUT_OFF = {Cause.LIMIT: "TIMEOUT", Cause.PREEMPTION: "PREEMPTED"}
"""Slurm's state of a job that it has ended for the cause of which it was saved."""


def requeue(site: CheckpointSite, move: Migration) -> Migration:
    """Have Slurm put it back into its queue, unless it has begun anew or ended by itself."""
    run = move.run
    try:
        # No older list will do: a run that Slurm has begun since would be ended.
        job = site.jobs.read_new(run.job)
        if (elsewhere := _advanced_by_itself(site, move, job)) is not None:
            return elsewhere
        if job is not None and not job.requeue:
            if not _may_be_requeued(site, move):
                return enter_step(site, move, Step.WAITING, at=None, again=False)
            # That took its time.
            if (
                elsewhere := _advanced_by_itself(site, move, site.jobs.read_new(run.job))
            ) is not None:
                return elsewhere
        if suspended.resumable_at(site, run):
            return _retry_later(site, move, "it was suspended just now")
        # A job that is suspended as it is requeued is held, at priority 0: Slurm takes the one for
        # the other.
        suspended.resume(site, run)
        reach("migration.before-requeue")
        if _ends_in_grace(move, job):
            name = "TERM" if move.method in STAYING else "KILL"  # else it is stopped
            site.slurm.signal(run.job, name, full=False)
        else:
            site.slurm.requeue(run.job)
    except SlurmError as error:
        return _retry_later(site, move, str(error))
    reach("migration.after-requeue")
    move = enter_step(site, move, Step.REQUEUED)
    reach("migration.requeued")
    source = "its start" if move.image is None else f"save {move.image.number}"
    record_step(site, move, "ckpt-requeued", f"it goes on from {source} on another node")
    return move


def _ends_in_grace(move: Migration, job: SlurmJob | None) -> bool:
    """Whether its batch script is ended, so that Slurm requeues it itself: a run that it preempts,
    and that ends within GraceTime. Where preempted jobs are cancelled, or nothing comes of it, the
    requeue follows.
    """
    if move.cause is not Cause.PREEMPTION or move.step is Step.REQUEUEING or job is None:
        return False
    # After ``scontrol requeue`` Slurm takes the end of the next run for that of a preempted one,
    # and begins the finished job once more (24.11, measured; mended in a later 26.05).
    return bool(job.preempted) and "RUNNING" in job.states


def _advanced_by_itself(
    site: CheckpointSite, move: Migration, job: SlurmJob | None
) -> Migration | None:
    """The move at the step that its run has come to without us; None while it is to be requeued."""
    if job is None:
        return finish(site, move, Step.ENDED, "Slurm does not know it any more")
    if job.restarts > move.run.attempt:
        return enter_step(site, move, Step.REQUEUED)
    if job.states & ENDED and not ended_for_move(site, move, job):
        return finish(site, move, Step.ENDED, f"it is {' '.join(sorted(job.states))}")
    return None


def ended_for_move(site: CheckpointSite, move: Migration, job: SlurmJob) -> bool:
    """It ended because it saved itself for this move, as it does not catch our signal, or at the
    time limit that it was saved for, or was preempted then: it has not finished.
    """
    if _CUT_OFF.get(move.cause) in job.states:
        return move.image is not None
    if move.method != "signal" or "CANCELLED" in job.states:
        return False
    if str(Step.SAVED) in move.reached:
        return True
    # Not by its images: that there is an older one says nothing of how it ended.
    asked = move.newest is not None
    return asked and job.died_of in save_signals(site.config.checkpoint.signal, move.run)


def _may_be_requeued(site: CheckpointSite, move: Migration) -> bool:
    """A ``--no-requeue`` job with an image does not begin anew, it goes on; without one its user's
    word stands.
    """
    if move.image is None:
        text = "it must not be requeued (--no-requeue) and has no image: it ends with its node"
        record_step(site, move, "ckpt-no-requeue", text, level=logging.WARNING)
        return False
    try:
        requeue_setting.lift_for_good(site.slurm, move.run.job)
    except SlurmError as error:
        record_step(site, move, "ckpt-no-requeue", str(error), level=logging.WARNING)
        return False
    record_step(site, move, "ckpt-requeue-lifted", "--no-requeue is lifted: there is an image")
    return True


def _retry_later(site: CheckpointSite, move: Migration, why: str) -> Migration:
    """Slurm does not answer or refuses: again in a while, but nobody stays stopped for ever."""
    now = site.now()
    if move.note != why:
        record_step(site, move, "ckpt-not-yet", why, level=logging.WARNING)
    since = move.reached.get(str(Step.SAVED), now)
    late = now - since > REQUEUE_TIMEOUT_S
    move = replace(move, note=why, at=now + (LATE_RETRY_AFTER_S if late else RETRY_AFTER_S))
    if late and (move.held is None or now >= move.held.until):
        text = f"its requeue did not come in {brief(now - since)} ({why}): it goes on where it is"
        return _stay_in_place(site, move, text)
    site.state.put(move)
    return move


def _stay_in_place(site: CheckpointSite, move: Migration, why: str) -> Migration:
    """A run that was stopped for a move that does not come goes on where it is."""
    if failed := release_run(site, move):
        return _note_failed_release(site, move, failed)
    return finish(site, move, Step.STAYED, why)


def release_run(site: CheckpointSite, move: Migration) -> str:
    """Empty once the stopped run goes on."""
    method = site.checkpointers.get(move.method)
    if method is None:
        is_saved = move.method != "none"
        return f"checkpoint method {move.method!r} cannot be used now" if is_saved else ""
    try:
        method.release(move.run)
    except CheckpointError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a shared directory may fail in many ways
        return f"{type(error).__name__}: {error}"
    return ""


def _note_failed_release(site: CheckpointSite, move: Migration, why: str) -> Migration:
    """Told once for each reason; its requeue is tried again sooner than this."""
    last = move.held or FailedRelease()
    pause = RELEASE_BACKOFF.longer(last.pause)
    held = replace(move, held=FailedRelease(why=why, pause=pause, until=site.now() + pause))
    site.state.put(held)
    if last.why != why:
        record_step(site, held, "ckpt-not-released", why, level=logging.ERROR)
    return held
