"""The move of one job, step by step: save, verify, requeue, watch until it runs again. Each step is
on the disk before its effect, so a service that starts after a crash continues at the last step.

===========  ===================================================  ==============================
step         known facts                                          after a restart
===========  ===================================================  ==============================
planned      nothing was done to the job                          drain its nodes, save
saving       a save may be under way, done, or never begun        take a good image with a number
                                                                  above what there was before it was
                                                                  asked for, else save again
waiting      no new image; when its time comes it is saved, or   the same
             continues from an older image or from its start;
             or it waits until its node is lost
saved        the image was verified, the run is stopped; Slurm    by its restart count: done, or
             may have requeued it                                 requeue; planned or stayed if
                                                                  the run has continued since
requeueing   the same, after a requeue that had no effect         the same
requeued     Slurm has taken the command                          watch it (``after_requeue``)
===========  ===================================================  ==============================
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import CheckpointError, SlurmError, UnreadableError
from slurm_elastic.base.faults import reach
from slurm_elastic.checkpointers.signal import taken_at
from slurm_elastic.ckptman import suspended
from slurm_elastic.ckptman.decide import MIN_FIRST_SAVE_S, JobPlan
from slurm_elastic.ckptman.first_image import verify_new
from slurm_elastic.ckptman.moves.requeueing import ended_for_move, is_at_work, release_run, requeue
from slurm_elastic.ckptman.moves.rescheduling import latest_save_at, next_save_at
from slurm_elastic.ckptman.moves.steps import MAX_TRIES, RETRY_AFTER_S, enter_step, record_step
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import choose_method
from slurm_elastic.config.job_checkpoint import why_no_method
from slurm_elastic.model.causes.checkpoints import ImageMakesSafe
from slurm_elastic.model.causes.moves import (
    DeadlineTooNear,
    ImageNotUsed,
    ImagesNotListed,
    MethodGone,
    MoveNotNeeded,
    MoveSaveFailed,
    NoImage,
    OlderImage,
    PolicyWantsNoSave,
    SaveFoundWhole,
    SaveIsWhole,
    SaveNotWhole,
    SaveObstacle,
    SaveTooLong,
    StoppedInVain,
)
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.slurm import ENDED, SlurmJob
from slurm_elastic.policies.checkpoint.checkpoint import fits
from slurm_elastic.policies.checkpoint.threat import OF_JOBS, ThreatCause
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep

LAUNCHER_START_S = 30.0
"""Seconds in which a new run may lack its launcher. Its first save is retried in that time."""
STOP_BACKOFF = Backoff(1800.0, 43_200.0)
"""Seconds for which a run works that was stopped in vain, before a move without a deadline stops it
again. Each stop may take REQUEUE_TIMEOUT_S, and Slurm may refuse requeues for hours.
"""
UNBOUND_SAVE_S = 600.0
"""The shortest time-out (s) of a save without a deadline; three times the save if longer."""


def plan_migration(site: CheckpointSite, plan: JobPlan) -> Migration:
    """A move at its first step. It is not on the disk yet."""
    facts, now = plan.facts, site.now()
    last_stop = _last_stop(site, facts.run)
    job = site.jobs.last.get(facts.run.job)
    return Migration(
        run=facts.run,
        method=facts.choice.method,
        cause=facts.cause or ThreatCause.RECLAIM,
        threatened=facts.threatened,
        reason=plan.cause,
        step=MigrationStep.PLANNED,
        began=now,
        changed=now,
        deadline=facts.deadline,
        dump=max((situation.dump for situation in facts.situations), default=0.0),
        saves=plan.saves,
        image=None if last_stop is None else last_stop.image,
        stopped=last_stop is not None,
        pause=0.0 if last_stop is None else _pause_after(last_stop),
        suspended=0.0 if job is None else job.suspended,
        reached={str(MigrationStep.PLANNED): now},
    )


def _last_stop(site: CheckpointSite, run: JobRun) -> Migration | None:
    """The run's last move, if it or an earlier move has stopped the run in vain."""
    if not site.state.was_stopped(run.job, run.attempt):
        return None
    return next(m for m in site.state.migrations_of(run.job) if m.run.attempt == run.attempt)


def _pause_after(last_move: Migration) -> float:
    # A move that ended before it stopped the run does not make the pause longer.
    has_stopped = MigrationStep.SAVED in last_move.reached
    return STOP_BACKOFF.longer(last_move.pause) if has_stopped else last_move.pause


def continue_migration(site: CheckpointSite, move: Migration) -> Migration:
    """Take each step that can be taken now without waiting for Slurm."""
    match move.step:
        case MigrationStep.PLANNED if not move.saves:
            return fall_back(site, move, _why_no_save(site, move))
        # After the first try the run has worked, so only the first save of the move waits.
        case MigrationStep.PLANNED if move.stopped and not move.tries:
            return _save_later(site, move)
        case MigrationStep.PLANNED:
            return _save(site, move)
        case MigrationStep.SAVING:
            return _find_or_save(site, move)
        case MigrationStep.WAITING if move.again:
            return _save(site, replace(move, again=False))
        case MigrationStep.WAITING | MigrationStep.SAVED | MigrationStep.REQUEUEING:
            return requeue(site, move)
    return move


def _save_later(site: CheckpointSite, move: Migration) -> Migration:
    """Let a run that was stopped in vain work before its next save: until the last moment, or for
    ``pause`` if there is no deadline.
    """
    now, deadline = site.now(), move.deadline
    act_at = now + move.pause if deadline is None else latest_save_at(site, move, deadline)
    if act_at <= now:
        return _save(site, move)
    cause = StoppedInVain()
    record_step(site, move, "ckpt-paused", cause)
    return enter_step(site, move, MigrationStep.WAITING, at=act_at, again=True, note=cause)


def _find_or_save(site: CheckpointSite, move: Migration) -> Migration:
    """Continue with a complete save from before a crash. If there is none, or if the run has worked
    since, save the run.
    """
    if move.newest is None:
        return _save(site, move)
    new_images = _list_new_images(site, move, move.newest)
    if is_at_work(site, move):
        return _save(site, move)
    image = next((image for image in new_images if _is_whole(site, move, image)), None)
    if image is not None:
        record_step(site, move, "ckpt-found", SaveFoundWhole(number=image.number))
        return _requeue_saved(site, move, image)
    # The new save is not whole, and its run is stopped: let the run work until the next save.
    if new_images:
        _release_run(site, move)
    return _save(site, move)


def _list_new_images(site: CheckpointSite, move: Migration, newest_number: int) -> Sequence[Image]:
    """The images of this run that are newer than that number, newest first."""
    # Compare numbers, not times: the node's clock may differ from ours.
    return [
        image
        for image in _list_images(site, move)
        if image.number > newest_number and image.attempt == move.run.attempt
    ]


def _late_image(site: CheckpointSite, move: Migration) -> Image | None:
    """The image of this move's last save, if it was completed after its time-out. None if the run
    has worked since for longer than another save and its verification take.
    """
    if move.step is not MigrationStep.WAITING or move.newest is None:
        return None
    for image in _list_new_images(site, move, move.newest):
        # The node's clock may be ahead of ours, and no image may be from the future.
        late_image = replace(image, taken=min(image.taken, site.now()))
        is_recent = site.now() - late_image.taken <= 2 * max(image.seconds, move.dump)
        if is_recent and _is_whole(site, move, image):
            return late_image
    return None


def _why_no_save(site: CheckpointSite, move: Migration) -> SaveObstacle:
    job = site.jobs.last.get(move.run.job)
    choice = None if job is None else choose_method(site, job)
    if choice is not None and choice.method == "none":
        return why_no_method(choice)
    slack = site.config.checkpoint.deadline_margin
    if move.deadline is not None and not fits(move.deadline, move.began, move.dump, slack):
        left_s = max(move.deadline - move.began - slack, 0.0)
        return SaveTooLong(save_s=move.dump, left_s=left_s)
    return PolicyWantsNoSave(policy="" if choice is None else text_of(choice.policy))


def _save(site: CheckpointSite, move: Migration) -> Migration:
    settings = site.config.checkpoint
    now, method = site.now(), site.checkpointers.get(move.method)
    if method is None:
        return fall_back(site, move, MethodGone(method=move.method))
    # Even a save that takes no time must end ``slack`` seconds before the deadline.
    if not fits(move.deadline, now, 0.0, settings.deadline_margin):
        # The run may be stopped, because a save was under way when the service died.
        if move.step is MigrationStep.SAVING:
            _release_run(site, move)
        return fall_back(site, move, DeadlineTooNear())
    if resumable_at := suspended.resumable_at(site, move.run):
        return enter_step(site, move, MigrationStep.WAITING, again=True, at=resumable_at)
    if (late_image := _late_image(site, move)) is not None:
        return _requeue_saved(site, move, late_image)
    deadline = (
        # Generous, because a save of a busy machine takes longer than the last one did.
        site.now() + max(UNBOUND_SAVE_S, 3 * move.dump)
        if move.deadline is None
        else move.deadline - settings.deadline_margin
    )
    # If the method cannot list its images now, our own state still has the highest number.
    images = (*_list_images(site, move), *site.state.images(move.run.job))
    newest_number = max((image.number for image in images), default=0)
    if move.step is MigrationStep.SAVING:  # the step keeps the time of its first try
        move = replace(move, newest=newest_number)
        site.state.put(move)
    else:
        # Before the save, so that after a crash _find_or_save knows which images are new.
        move = enter_step(site, move, MigrationStep.SAVING, newest=newest_number)
    reach("migration.before-save")
    try:
        suspended.resume(site, move.run)
        image = method.checkpoint(move.run, deadline=deadline, stop=True)
    except (CheckpointError, SlurmError) as error:
        return _handle_failed_save(site, move, MoveSaveFailed(error=str(error)))
    # The method may come from another package, so catch everything: there is no image.
    except Exception as error:
        logging.getLogger(__name__).exception(
            "the checkpoint method failed with an unexpected error job=%s", move.run.label
        )
        cause = MoveSaveFailed(error=f"{type(error).__name__}: {error}")
        return _handle_failed_save(site, move, cause)
    saved_at = taken_at(image, site.now())
    reach("migration.after-save")
    if not _is_whole(site, move, image, is_new=True):
        _release_run(site, move)
        # The next try must not take it for a late image.
        move = replace(move, newest=image.number)
        return _handle_failed_save(site, move, SaveNotWhole(number=image.number))
    return _requeue_saved(site, move, replace(image, taken=saved_at))


def _requeue_saved(site: CheckpointSite, move: Migration, image: Image) -> Migration:
    # One write for the step and the image: after a crash between two writes the image would be
    # lost.
    move = enter_step(site, move, MigrationStep.SAVED, fresh=image, image=image, at=None)
    reach("migration.saved")
    cause = SaveIsWhole(number=image.number, size_bytes=image.size, took_s=image.seconds)
    record_step(site, move, "ckpt-saved", cause)
    site.recorder.count_save(image)
    return requeue(site, move)


def _release_run(site: CheckpointSite, move: Migration) -> None:
    """Let a stopped run continue after a save that is not whole. It works until the next save, or
    until its node is lost.
    """
    if (cause := release_run(site, move)) is not None:
        record_step(site, move, "ckpt-not-released", cause, level=logging.ERROR)


def _handle_failed_save(
    site: CheckpointSite, move: Migration, cause: MoveSaveFailed | SaveNotWhole
) -> Migration:
    """Try again if there is time. Otherwise continue from an older image, or from none."""
    site.recorder.count("ckpt_saves_total", method=move.method, outcome="failed")
    record_step(site, move, "ckpt-failed", cause, level=logging.WARNING)
    tries, now = move.tries + 1, site.now()
    # The planned duration of a first save is only a guess that fills all the time left, so do not
    # require that much again.
    is_first_save = not site.state.images(move.run.job)
    save_s = min(move.dump, MIN_FIRST_SAVE_S) if is_first_save else move.dump
    has_time = fits(
        move.deadline, now + RETRY_AFTER_S, save_s, site.config.checkpoint.deadline_margin
    )
    may_retry = tries < MAX_TRIES or (is_first_save and now - move.run.started < LAUNCHER_START_S)
    job = _read_job(site, move.run)
    is_running = job is not None and job.restarts == move.run.attempt and not job.states & ENDED
    if is_running and has_time and may_retry:
        return enter_step(
            site,
            move,
            MigrationStep.WAITING,
            tries=tries,
            again=True,
            at=now + RETRY_AFTER_S,
            note=cause,
        )
    if is_running and (later_at := next_save_at(site, move)) is not None:
        return enter_step(
            site,
            move,
            MigrationStep.WAITING,
            image=next(iter(site.state.images(move.run.job)), None),
            tries=tries,
            again=True,
            at=later_at,
            note=cause,
        )
    move = fall_back(site, replace(move, tries=tries), cause, runs=is_running)
    if job is not None and job.states & ENDED and ended_for_move(site, move, job):
        return enter_step(site, move, MigrationStep.WAITING, at=now)
    return move


def _read_job(site: CheckpointSite, run: JobRun) -> SlurmJob | None:
    try:
        return site.jobs.read_new(run.job)
    except SlurmError:
        return site.jobs.last.get(run.job)


def fall_back(
    site: CheckpointSite, move: Migration, cause: SaveObstacle, *, runs: bool = True
) -> Migration:
    """Continue the move without a save, because no save is possible. Requeue the job at the last
    moment if there is an older image, else when its node is lost. ``runs``: whether the job's run
    still exists, as far as we know.
    """
    image = next(
        (image for image in _list_images(site, move) if _is_whole(site, move, image)), None
    )
    if image is None and _may_end_late(site, move):
        act_at = site.now() + RETRY_AFTER_S
        return enter_step(
            site, move, MigrationStep.WAITING, image=None, at=act_at, again=True, note=cause
        )
    if image is None:
        lost = NoImage(cause=cause, runs=runs)
        record_step(site, move, "ckpt-no-image", lost, level=logging.WARNING)
        return enter_step(
            site, move, MigrationStep.WAITING, image=None, at=None, again=False, note=cause
        )
    # slurm-elasticd does not end a machine at its planned end while a job runs on it.
    if move.cause is ThreatCause.PLANNED_END:
        stays = MoveNotNeeded(cause=cause, runs=runs)
        record_step(site, move, "ckpt-stays", stays, level=logging.WARNING)
        return enter_step(
            site, move, MigrationStep.WAITING, image=image, at=None, again=False, note=cause
        )
    lost_s = max(site.now() - image.taken, 0.0)
    older = OlderImage(cause=cause, number=image.number, age_s=lost_s)
    record_step(site, move, "ckpt-older-image", older, level=logging.WARNING)
    # Wait until the deadline: the job may end by itself before it, and nothing more can be lost.
    slack = site.config.checkpoint.deadline_margin
    act_at = site.now() if move.deadline is None else max(move.deadline - slack, site.now())
    return enter_step(
        site, move, MigrationStep.WAITING, image=image, at=act_at, again=False, note=cause
    )


def _may_end_late(site: CheckpointSite, move: Migration) -> bool:
    """Whether a save that was requested may still complete before Slurm ends the run, although too
    late for our time-out. If we gave up now, the job would start over although that image exists.
    """
    is_requested, now = move.newest is not None, site.now()
    if (
        move.cause not in OF_JOBS
        or not is_requested
        or move.deadline is None
        or now >= move.deadline
    ):
        return False
    return not fits(move.deadline, now + RETRY_AFTER_S, 0.0, site.config.checkpoint.deadline_margin)


def _list_images(site: CheckpointSite, move: Migration) -> Sequence[Image]:
    """The method's images, newest first; none if they cannot be listed."""
    method = site.checkpointers.get(move.method)
    if method is None:
        return ()
    try:
        return method.images(move.run)
    except Exception as error:  # noqa: BLE001 - a shared directory may fail in many ways
        cause = ImagesNotListed(error=str(error))
        record_step(site, move, "ckpt-no-view", cause, level=logging.WARNING)
        return ()


def _is_whole(site: CheckpointSite, move: Migration, image: Image, *, is_new: bool = False) -> bool:
    try:
        if not is_new:
            site.checkpointers[move.method].verify(image)
        elif verify_new(site, site.checkpointers[move.method], image):
            record_step(site, move, "ckpt-requeue-lifted", ImageMakesSafe())
    except Exception as error:  # noqa: BLE001 - whatever it is, that image is not to be trusted
        # We could not look: the image may be whole, and later tries look again.
        if not isinstance(error, UnreadableError):
            site.state.forget_image(image)
        cause = ImageNotUsed(number=image.number, error=str(error))
        record_step(site, move, "ckpt-bad-image", cause, level=logging.WARNING)
        return False
    return True
