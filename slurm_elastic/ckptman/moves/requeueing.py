"""The requeue of a saved job. If Slurm refuses it, does not answer, or accepts it without effect
for REQUEUE_TIMEOUT_S, the job continues where it is. Its launcher may let it continue a little
sooner. If its method cannot let it continue, both are tried again until one works.
"""

from __future__ import annotations

import logging

from msgspec.structs import replace

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.base.faults import reach
from slurm_elastic.checkpointers.signal import save_signals
from slurm_elastic.ckptman import suspended
from slurm_elastic.ckptman.moves.steps import (
    MAX_TRIES,
    RETRY_AFTER_S,
    enter_step,
    finish,
    record_step,
)
from slurm_elastic.ckptman.origins import STAYING
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.model.causes.checkpoints import ImageMakesSafe, SlurmRefused
from slurm_elastic.model.causes.moves import JobOver, JobUnlisted, MethodUnusable, RunNotReleased
from slurm_elastic.model.causes.requeues import (
    MayNotBeRequeued,
    RequeueIgnored,
    RequeueNotYet,
    RequeueObstacle,
    RequeueTooLate,
    RunContinued,
    RunStillEnds,
    SuspendedJustNow,
    WillContinue,
)
from slurm_elastic.model.slurm import ENDED, SlurmJob
from slurm_elastic.policies.checkpoint.threat import ThreatCause
from slurm_elastic.slurm.client.commands import requeue_setting
from slurm_elastic.state.ckptstate.facts import FailedRelease, Migration, MigrationStep

LATE_RETRY_AFTER_S = 10.0
"""Seconds between two tries of a requeue after REQUEUE_TIMEOUT_S."""
RELEASE_BACKOFF = Backoff(30.0, 300.0)
"""Seconds until a stopped run is released again, at first and at most. Its node may have to read
all its images for that.
"""
REQUEUE_TIMEOUT_S = 600.0
"""If the requeue of a stopped job takes longer after the verification, the job continues where it
is. The launchers of criu and dmtcp wait as long after the time that a verification may take, so
they may be first after a slow one. There is no configuration key, because Slurm requeues within
seconds: more is an outage, and a running job is worth more than a stopped one.
"""
_CUT_OFF = {ThreatCause.LIMIT: "TIMEOUT", ThreatCause.PREEMPTION: "PREEMPTED"}
"""The state that Slurm shows for a job that it ended for the cause that the job was saved for."""


def requeue(site: CheckpointSite, move: Migration) -> Migration:
    """Make Slurm requeue the job, unless its next run has begun or it ended by itself."""
    run = move.run
    try:
        # Before the job is read: a shared directory may hang here while the run ends.
        has_worked = _has_worked_since(site, move)
        # Read a new list: with an older one we could end a run that Slurm has begun since.
        job = site.jobs.read_new(run.job)
        if (advanced_move := _advance_or_wait(site, move, job)) is not None:
            return advanced_move
        # A launcher that was killed with its run has left its last report.
        if has_worked and job is not None and not job.states & ENDED:
            return _stay_or_save_again(site, move)
        if job is not None and not job.requeue:
            if not _may_be_requeued(site, move):
                return enter_step(site, move, MigrationStep.WAITING, at=None, again=False)
            # Lifting --no-requeue took time, so read a new list again.
            job = site.jobs.read_new(run.job)
            if (advanced_move := _advance_or_wait(site, move, job)) is not None:
                return advanced_move
        if suspended.resumable_at(site, run):
            return _retry_later(site, move, SuspendedJustNow())
        # Resume first: Slurm holds a requeued job at priority 0 if it was suspended, because it
        # takes the suspension for a hold.
        suspended.resume(site, run)
        reach("migration.before-requeue")
        if _ends_in_grace(move, job):
            # Other methods than STAYING leave the batch script stopped, and a stopped process does
            # not act on TERM.
            signal_name = "TERM" if move.method in STAYING else "KILL"
            site.slurm.signal(run.job, signal_name, full=False)
        else:
            site.slurm.requeue(run.job)
    except SlurmError as error:
        return _retry_later(site, move, SlurmRefused(error=str(error)))
    reach("migration.after-requeue")
    # After the command: if we crash before this, the job's restart count tells whether Slurm has
    # requeued it.
    move = enter_step(site, move, MigrationStep.REQUEUED)
    reach("migration.requeued")
    save = None if move.image is None else move.image.number
    record_step(site, move, "ckpt-requeued", WillContinue(save=save))
    return move


def _ends_in_grace(move: Migration, job: SlurmJob | None) -> bool:
    """Whether to end the batch script, so that Slurm requeues the job itself: Slurm preempts it,
    and it ends within GraceTime. If Slurm cancels preempted jobs, or does not requeue this one, our
    own requeue follows.
    """
    if (
        move.cause is not ThreatCause.PREEMPTION
        or move.step is MigrationStep.REQUEUEING
        or job is None
    ):
        return False
    # After ``scontrol requeue`` Slurm takes the end of the next run for the end of a preempted run,
    # and starts the finished job once more (measured on 24.11; fixed in a later 26.05).
    return bool(job.preempted) and "RUNNING" in job.states


def _advance_or_wait(
    site: CheckpointSite, move: Migration, job: SlurmJob | None
) -> Migration | None:
    """If the run has ended or was requeued without us, the move at the step that follows. While
    Slurm does not show how the run ended, the move is retried later. None if we must requeue the
    job.
    """
    if job is None:
        return finish(site, move, MigrationStep.ENDED, JobUnlisted())
    if job.restarts > move.run.attempt:
        return enter_step(site, move, MigrationStep.REQUEUED)
    if job.states & ENDED and not ended_for_move(site, move, job):
        return finish(site, move, MigrationStep.ENDED, JobOver(states=tuple(sorted(job.states))))
    return _retry_later(site, move, RunStillEnds()) if _is_end_unknown(job) else None


def is_at_work(site: CheckpointSite, move: Migration) -> bool:
    """Whether the run is no longer stopped, according to its launcher."""
    method = site.checkpointers.get(move.method)
    return method is not None and method.is_at_work(move.run)


def _has_worked_since(site: CheckpointSite, move: Migration) -> bool:
    """Whether the saved run has continued without us. False if it is still stopped, or if another
    save would take longer than the run has worked.
    """
    saved_at, image = move.reached.get(str(MigrationStep.SAVED)), move.image
    if saved_at is None or image is None or move.step is MigrationStep.WAITING:
        return False
    # A verification may take longer than the launcher holds the run. Another save would have to be
    # verified as long, so we would never requeue the job.
    save_s = image.seconds + max(saved_at - image.taken, 0.0)
    return site.now() - saved_at > save_s and is_at_work(site, move)


def _stay_or_save_again(site: CheckpointSite, move: Migration) -> Migration:
    """A requeue would lose the work of the run, which has continued without us. If Slurm has
    refused the requeue, the run stays, because it would only be stopped again. If we were away,
    plan another save.
    """
    if isinstance(move.note, SlurmRefused | RequeueIgnored):
        late = RequeueTooLate(late_s=_lateness_s(move, site.now()), cause=move.note)
        return finish(site, move, MigrationStep.STAYED, late)
    cause = RunContinued(number=0 if move.image is None else move.image.number)
    if move.tries + 1 >= MAX_TRIES:
        return finish(site, move, MigrationStep.STAYED, cause)
    record_step(site, move, "ckpt-again", cause)
    # Without the step of the save that no longer counts: it means that the run is stopped.
    reached = {step: at for step, at in move.reached.items() if step != MigrationStep.SAVED}
    move = replace(move, reached=reached, saves=True, tries=move.tries + 1, held=None)
    return enter_step(site, move, MigrationStep.PLANNED, at=None)


def _is_end_unknown(job: SlurmJob | None) -> bool:
    """Whether the run is over and Slurm does not show how it ended. 22.05 shows only COMPLETING
    until the epilog is over. It accepts a requeue during that time, and a finished or cancelled job
    then runs once more (measured).
    """
    return job is not None and "COMPLETING" in job.states and not job.states & ENDED


def ended_for_move(site: CheckpointSite, move: Migration, job: SlurmJob) -> bool:
    """Whether the run ended because of this move and is not finished: it saved itself and died of
    our signal, or Slurm ended it at the time limit, or by the preemption, that it was saved for.
    """
    if _CUT_OFF.get(move.cause) in job.states:
        return move.image is not None
    if move.method != "signal" or "CANCELLED" in job.states:
        return False
    if str(MigrationStep.SAVED) in move.reached:
        return True
    # We do not look at its images: an older image says nothing about how the run ended.
    is_requested = move.newest is not None
    return is_requested and job.died_of in save_signals(site.config.checkpoint.signal, move.run)


def _may_be_requeued(site: CheckpointSite, move: Migration) -> bool:
    """Whether a ``--no-requeue`` job may be requeued: with an image it may, because it continues
    from there. Without an image the user's setting stands. SlurmError if Slurm refuses or does not
    answer: the caller must try again, because the run is stopped.
    """
    if move.image is None:
        record_step(site, move, "ckpt-no-requeue", MayNotBeRequeued(), level=logging.WARNING)
        return False
    requeue_setting.lift_for_good(site.slurm, move.run.job)
    record_step(site, move, "ckpt-requeue-lifted", ImageMakesSafe())
    return True


def _retry_later(site: CheckpointSite, move: Migration, cause: RequeueObstacle) -> Migration:
    """Retry the requeue in a while, because Slurm does not answer or refuses. After
    REQUEUE_TIMEOUT_S let the run continue, so that no job stays stopped for ever.
    """
    now = site.now()
    if move.note != cause:
        record_step(site, move, "ckpt-not-yet", RequeueNotYet(cause=cause), level=logging.WARNING)
    is_late = _lateness_s(move, now) > REQUEUE_TIMEOUT_S
    move = replace(move, note=cause, at=now + (LATE_RETRY_AFTER_S if is_late else RETRY_AFTER_S))
    # However long the epilog of an ended run takes, the run cannot continue.
    is_over = isinstance(cause, RunStillEnds)
    if not is_over and (stayed := stay_if_late(site, move, cause)) is not None:
        return stayed
    site.state.put(move)
    return move


def _lateness_s(move: Migration, now: float) -> float:
    # A run that was not saved is not stopped, so that nothing waits for its requeue.
    return now - move.reached.get(str(MigrationStep.SAVED), now)


def stay_if_late(site: CheckpointSite, move: Migration, cause: RequeueObstacle) -> Migration | None:
    """After REQUEUE_TIMEOUT_S let the stopped run continue where it is. Returns the move, or None
    if the requeue is to be tried again.
    """
    late_s = _lateness_s(move, site.now())
    # After a failed release (``held``) the run is released again only when its pause is over; the
    # requeue is tried in between.
    is_held = move.held is not None and site.now() < move.held.until
    if late_s <= REQUEUE_TIMEOUT_S or is_held:
        return None
    return _stay_in_place(site, move, RequeueTooLate(late_s=late_s, cause=cause))


def _stay_in_place(site: CheckpointSite, move: Migration, cause: RequeueTooLate) -> Migration:
    """Let the run continue where it is, because the requeue does not come."""
    if (obstacle := release_run(site, move)) is not None:
        return _note_failed_release(site, move, obstacle)
    return finish(site, move, MigrationStep.STAYED, cause)


def release_run(site: CheckpointSite, move: Migration) -> RunNotReleased | MethodUnusable | None:
    """Let the stopped run continue. Returns why it cannot, or None."""
    method = site.checkpointers.get(move.method)
    if method is None:
        return None if move.method == "none" else MethodUnusable(method=move.method)
    try:
        method.release(move.run)
    except CheckpointError as error:
        return RunNotReleased(error=str(error))
    except Exception as error:  # noqa: BLE001 - a shared directory may fail in many ways
        return RunNotReleased(error=f"{type(error).__name__}: {error}")
    return None


def _note_failed_release(
    site: CheckpointSite, move: Migration, cause: RunNotReleased | MethodUnusable
) -> Migration:
    """Remember the failed release and when to try again. Each cause is recorded once. The requeue
    is tried again sooner than the release.
    """
    last_failure = move.held or FailedRelease()
    pause = RELEASE_BACKOFF.longer(last_failure.pause)
    held = replace(move, held=FailedRelease(cause=cause, pause=pause, until=site.now() + pause))
    site.state.put(held)
    if last_failure.cause != cause:
        record_step(site, held, "ckpt-not-released", cause, level=logging.ERROR)
    return held
