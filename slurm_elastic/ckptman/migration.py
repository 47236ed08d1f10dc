"""The move of one job, step by step: save, verify, requeue, watch until it runs again. Each step is
on the disk before its effect, so that whoever starts after a crash goes on where the last one was.

===========  ===================================================  ==============================
step         what is known to be true                             what a new start does
===========  ===================================================  ==============================
planned      nothing was done to the job                          drain its nodes, save
saving       a save may be under way, done, or never begun        take a good image with a number
                                                                  above what there was before it was
                                                                  asked for, else save again
waiting      no new image; it goes on from an older one or from   the same
             its start, when its time comes or its node is lost
saved        the image was verified, the run is stopped; Slurm    by its restart count: done, or
             may have requeued it                                 requeue
requeueing   the same, after a requeue that had no effect         the same
requeued     Slurm has taken the command                          watch it (``after_requeue``)
===========  ===================================================  ==============================
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from operator import itemgetter

from msgspec.structs import replace

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.base.faults import reach
from slurm_elastic.base.units import brief
from slurm_elastic.ckptman import suspended
from slurm_elastic.ckptman.decide import MIN_FIRST_SAVE_S, JobPlan
from slurm_elastic.ckptman.job_settings import explain_no_method
from slurm_elastic.ckptman.requeueing import ended_for_move, release_run, requeue
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import choose_method
from slurm_elastic.ckptman.steps import RETRY_AFTER_S, enter_step, record_step
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.slurm import ENDED, SlurmJob
from slurm_elastic.policies.checkpoint.checkpoint import fits
from slurm_elastic.policies.checkpoint.threat import OF_JOBS, Cause, Threat
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.state.ckptstate.facts import Migration, Step

MAX_TRIES = 3
MIN_POSTPONEMENT_S = 30.0
"""Seconds by which a deadline has to move for that: clouds round theirs."""
LAUNCHER_START_S = 30.0
"""Seconds in which a run may not be under its launcher yet: its first save is tried meanwhile."""
UNBOUND_SAVE_S = 600.0
"""Seconds for a save before a notice without a deadline."""


def plan_migration(site: CheckpointSite, plan: JobPlan) -> Migration:
    """A move at its first step; not on the disk yet."""
    facts, now = plan.facts, site.now()
    # A run that was stopped in vain is not stopped once more: it works until the last moment. That
    # its limit ends, or that it is preempted, is certain.
    stopped = site.state.was_stopped(facts.run.job, facts.run.attempt)
    job = site.jobs.last.get(facts.run.job)
    return Migration(
        run=facts.run,
        method=facts.choice.method,
        cause=facts.cause or Cause.RECLAIM,
        threatened=facts.threatened,
        reason=plan.reason,
        step=Step.PLANNED,
        began=now,
        changed=now,
        deadline=facts.deadline,
        dump=max((s.dump for s in facts.situations), default=0.0),
        saves=plan.saves and (facts.cause in OF_JOBS or not stopped),
        stopped=stopped,
        suspended=0.0 if job is None else job.suspended,
        reached={str(Step.PLANNED): now},
    )


def reschedule(site: CheckpointSite, move: Migration, leaving: Mapping[str, Threat]) -> Migration:
    """By the earliest end of its nodes: one may be taken away sooner than was said first, and what
    could not be saved is tried once more where it is taken later.
    """
    told = [leaving[what] for what in move.what if what in leaving]
    first = min(
        ((t.until, t) for t in told if t.until is not None), key=itemgetter(0), default=None
    )
    if first is None or move.step is Step.REQUEUED:
        return move
    until, threat = first
    if move.deadline is None or until < move.deadline:
        return _bring_forward(site, move, until)
    gave_up = move.step is Step.WAITING and not (move.again or move.was_stopped)
    of_node = move.cause not in OF_JOBS and move.method in site.checkpointers
    if gave_up and of_node and until >= move.deadline + MIN_POSTPONEMENT_S:
        return _try_again_later(site, move, threat, until)
    return move


def _bring_forward(site: CheckpointSite, move: Migration, deadline: float) -> Migration:
    at, now = move.at, site.now()
    if move.step is Step.WAITING and at is not None:
        at = min(at, max(deadline - site.config.checkpoint.slack, now))
    sooner = replace(move, deadline=deadline, at=at)
    site.state.put(sooner)
    record_step(
        site, sooner, "ckpt-sooner", f"its time is shorter: {brief(deadline - now)} are left"
    )
    return sooner


def _try_again_later(
    site: CheckpointSite, move: Migration, threat: Threat, deadline: float
) -> Migration:
    """Another save, when one for this threat begins."""
    now, slack = site.now(), site.config.checkpoint.slack
    job = site.jobs.last.get(move.run.job)
    if job is None or not fits(deadline, now, MIN_FIRST_SAVE_S, slack):
        return move
    at = max(threat.begins(job, move.dump, slack), now)
    later = replace(move, deadline=deadline, at=at, again=True, tries=0)
    site.state.put(later)
    text = f"its time is longer: {brief(deadline - now)} are left, it is tried to save it once more"
    record_step(site, later, "ckpt-later", text)
    return later


def continue_migration(site: CheckpointSite, move: Migration) -> Migration:
    """All that can be done for it now without waiting for Slurm."""
    match move.step:
        case Step.PLANNED if not move.saves:
            return fall_back(site, move, _explain_no_save(site, move))
        case Step.PLANNED:
            return _save(site, move)
        case Step.SAVING:
            return _find_or_save(site, move)
        case Step.WAITING if move.again:
            return _save(site, replace(move, again=False))
        case Step.WAITING | Step.SAVED | Step.REQUEUEING:
            return requeue(site, move)
    return move


def _find_or_save(site: CheckpointSite, move: Migration) -> Migration:
    """After a crash: a save that was complete is not made again."""
    if move.newest is None:
        return _save(site, move)
    least, attempt = move.newest, move.run.attempt
    # By number: when it was taken is the node's time, whose clock may differ from ours.
    fresh = [i for i in _list_images(site, move) if i.number > least and i.attempt == attempt]
    image = next((i for i in fresh if _is_whole(site, move, i)), None)
    if image is not None:
        record_step(site, move, "ckpt-found", f"save {image.number} was complete before a restart")
        return _requeue_saved(site, move, image)
    # Its run stands stopped after a save that is not whole.
    if fresh:
        _release_run(site, move)
    return _save(site, move)


def _explain_no_save(site: CheckpointSite, move: Migration) -> str:
    job = site.jobs.last.get(move.run.job)
    choice = None if job is None else choose_method(site, job)
    if choice is not None and choice.method == "none":
        return explain_no_method(choice)
    slack = site.config.checkpoint.slack
    if move.deadline is not None and not fits(move.deadline, move.began, move.dump, slack):
        left = max(move.deadline - move.began - slack, 0.0)
        return f"a save may take {brief(move.dump)}, which does not fit into {brief(left)}"
    if move.stopped:
        return "it was stopped for a save before, in vain"
    policy = "" if choice is None else f" is {text_of(choice.policy)}, and"
    return f"its checkpoint policy{policy} wants no save now"


def _save(site: CheckpointSite, move: Migration) -> Migration:
    settings = site.config.checkpoint
    now, method = site.now(), site.checkpointers.get(move.method)
    if method is None:
        return fall_back(site, move, f"method {move.method} cannot be used here any more")
    if not fits(move.deadline, now, 0.0, settings.slack):
        # Its run may stand still for a save that was under way as a service died.
        if move.step is Step.SAVING:
            _release_run(site, move)
        return fall_back(site, move, "the deadline is too near")
    if at := suspended.resumable_at(site, move.run):
        return enter_step(site, move, Step.WAITING, again=True, at=at)
    until = now + UNBOUND_SAVE_S if move.deadline is None else move.deadline - settings.slack
    # Where the method cannot list its images now, our own memory has the highest number all the
    # same.
    known = (*_list_images(site, move), *site.state.images(move.run.job))
    newest = max((i.number for i in known), default=0)
    if move.step is Step.SAVING:  # since its first try
        move = replace(move, newest=newest)
        site.state.put(move)
    else:
        move = enter_step(site, move, Step.SAVING, newest=newest)
    reach("migration.before-save")
    try:
        suspended.resume(site, move.run)
        image = method.checkpoint(move.run, deadline=until, stop=True)
    except (CheckpointError, SlurmError) as error:
        return _handle_failed_save(site, move, str(error))
    # It may be another package's method: whatever it raises, there is no image.
    except Exception as error:
        logging.getLogger(__name__).exception("method fails job=%s", move.run.label)
        return _handle_failed_save(site, move, f"{type(error).__name__}: {error}")
    taken = site.now()
    reach("migration.after-save")
    if not _is_whole(site, move, image):
        _release_run(site, move)
        return _handle_failed_save(site, move, f"save {image.number} is not whole")
    return _requeue_saved(site, move, replace(image, taken=taken))


def _requeue_saved(site: CheckpointSite, move: Migration, image: Image) -> Migration:
    move = enter_step(site, move, Step.SAVED, fresh=image, image=image, at=None)
    reach("migration.saved")
    text = f"save {image.number} is whole: {image.size} bytes in {image.seconds:.1f} s"
    record_step(site, move, "ckpt-saved", text)
    site.recorder.count_save(image)
    return requeue(site, move)


def _release_run(site: CheckpointSite, move: Migration) -> None:
    """The run was stopped after a save that is not whole: it works until the next one, or until its
    node is lost.
    """
    if why := release_run(site, move):
        record_step(site, move, "ckpt-not-released", why, level=logging.ERROR)


def _handle_failed_save(site: CheckpointSite, move: Migration, why: str) -> Migration:
    """Once more if there is time; else from what there is."""
    site.recorder.count("ckpt_saves_total", method=move.method, outcome="failed")
    record_step(site, move, "ckpt-failed", why, level=logging.WARNING)
    tries, now = move.tries + 1, site.now()
    # What nobody has measured yet fills all the time that there is.
    first = not site.state.images(move.run.job)
    dump = min(move.dump, MIN_FIRST_SAVE_S) if first else move.dump
    time_left = fits(move.deadline, now + RETRY_AFTER_S, dump, site.config.checkpoint.slack)
    more = tries < MAX_TRIES or (first and now - move.run.started < LAUNCHER_START_S)
    job = _read_job(site, move.run)
    runs = job is not None and job.restarts == move.run.attempt and not job.states & ENDED
    if runs and time_left and more:
        return enter_step(
            site, move, Step.WAITING, tries=tries, again=True, at=now + RETRY_AFTER_S, note=why
        )
    move = fall_back(site, replace(move, tries=tries), why, runs=runs)
    if job is not None and job.states & ENDED and ended_for_move(site, move, job):
        return enter_step(site, move, Step.WAITING, at=now)
    return move


def _read_job(site: CheckpointSite, run: JobRun) -> SlurmJob | None:
    try:
        return site.jobs.read_new(run.job)
    except SlurmError:
        return site.jobs.last.get(run.job)


def fall_back(site: CheckpointSite, move: Migration, why: str, *, runs: bool = True) -> Migration:
    """No save is possible: from an older image at the last moment, else when its node is lost.
    ``runs``: whether the job's run is still there, as far as is known.
    """
    image = next((i for i in _list_images(site, move) if _is_whole(site, move, i)), None)
    if image is None and _may_end_late(site, move):
        at = site.now() + RETRY_AFTER_S
        return enter_step(site, move, Step.WAITING, image=None, at=at, again=True, note=why)
    if image is None:
        then = "it goes on where it is, and from its start if that is lost"
        text = f"{why}; there is no image: {then if runs else 'its run is over'}"
        record_step(site, move, "ckpt-no-image", text, level=logging.WARNING)
        return enter_step(site, move, Step.WAITING, image=None, at=None, again=False, note=why)
    if move.cause is Cause.PLANNED_END:  # nobody ends its machine while it runs
        then = "it goes on where it is" if runs else "its run is over"
        record_step(site, move, "ckpt-stays", f"{why}; {then}", level=logging.WARNING)
        return enter_step(site, move, Step.WAITING, image=image, at=None, again=False, note=why)
    lost = max(site.now() - image.taken, 0.0)
    text = f"{why}; it goes on from save {image.number}, {brief(lost)} old"
    record_step(site, move, "ckpt-older-image", text, level=logging.WARNING)
    # It may end by itself until then, and nothing more can be lost.
    slack = site.config.checkpoint.slack
    at = site.now() if move.deadline is None else max(move.deadline - slack, site.now())
    return enter_step(site, move, Step.WAITING, image=image, at=at, again=False, note=why)


def _may_end_late(site: CheckpointSite, move: Migration) -> bool:
    """Whether a save that was asked for may yet come to its end, too late to be answered, before
    Slurm ends the run: it would have lost its images by then.
    """
    asked, now = move.newest is not None, site.now()
    if move.cause not in OF_JOBS or not asked or move.deadline is None or now >= move.deadline:
        return False
    return not fits(move.deadline, now + RETRY_AFTER_S, 0.0, site.config.checkpoint.slack)


def _list_images(site: CheckpointSite, move: Migration) -> Sequence[Image]:
    """The images that the method has, newest first; none where that cannot be told."""
    method = site.checkpointers.get(move.method)
    if method is None:
        return ()
    try:
        return method.images(move.run)
    except Exception as error:  # noqa: BLE001 - a shared directory may fail in many ways
        record_step(
            site, move, "ckpt-no-view", f"images cannot be listed: {error}", level=logging.WARNING
        )
        return ()


def _is_whole(site: CheckpointSite, move: Migration, image: Image) -> bool:
    try:
        site.checkpointers[move.method].verify(image)
    except Exception as error:  # noqa: BLE001 - whatever it is, that image is not to be trusted
        site.state.forget_image(image)
        text = f"save {image.number} is not used: {error}"
        record_step(site, move, "ckpt-bad-image", text, level=logging.WARNING)
        return False
    return True
