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
from slurm_elastic.checkpointers.signal import save_signals
from slurm_elastic.ckptman import suspended
from slurm_elastic.ckptman.decide import LEAST_TRIED, Plan, fits
from slurm_elastic.ckptman.origins import LAUNCHED
from slurm_elastic.ckptman.site import Site
from slurm_elastic.model.cluster import Image, JobRun
from slurm_elastic.model.slurm import ENDED, SlurmJob
from slurm_elastic.policies.checkpoint.threat import OF_JOBS, Cause, Threat
from slurm_elastic.slurm.client import requeue_setting
from slurm_elastic.state.ckptstate.facts import Held, Migration, Step

NO_SAVE = "no save is wanted, or it was stopped in vain before"
MOST_TRIES = 3
AGAIN = 2.0
"""Seconds after a save that failed, if there is time for another, or a requeue that did."""
LATER = 10.0
"""The same for a requeue that did not come for ``patience``."""
HELD, LONGEST_HELD = 30.0, 300.0
"""Seconds until a stopped run is let go on once more, first and at most: its node may have to read
all of its images for that.
"""
PATIENCE = 600.0
"""Seconds after which a job goes on that was stopped for a move which does not come. No key: Slurm
requeues within seconds; longer is an outage, and a running job is worth more than a stopped one.
"""
POSTPONED = 30.0
"""Seconds by which a deadline has to move for that: clouds round theirs."""
BEGINS = 30.0
"""Seconds in which a run may not be under its launcher yet: its first save is tried meanwhile."""
UNBOUND = 600.0
"""Seconds for a save before a notice without a deadline."""
_CUT_OFF = {Cause.LIMIT: "TIMEOUT", Cause.PREEMPTION: "PREEMPTED"}
"""Slurm's state of a job that it has ended for the cause of which it was saved."""


def to(
    site: Site, move: Migration, step: Step, *, fresh: Image | None = None, **changes: object
) -> Migration:
    """The migration at its next step, with an image that is new; on the disk when this returns."""
    moved = _at(move, step, site.now(), **changes)
    site.state.put(moved, image=fresh)
    return moved


def _at(move: Migration, step: Step, now: float, **changes: object) -> Migration:
    reached = {**move.reached, str(step): now}
    return replace(move, step=step, changed=now, reached=reached, **changes)


def say(site: Site, move: Migration, kind: str, reason: str, *, level: int = logging.INFO) -> None:
    """One step of a migration, for the journal."""
    site.journal.of_run(move.run, kind, reason, nodes=move.threatened, level=level)


def planned(site: Site, plan: Plan) -> Migration:
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


def reschedule(site: Site, move: Migration, leaving: Mapping[str, Threat]) -> Migration:
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
        return _sooner(site, move, until)
    gave_up = move.step is Step.WAITING and not (move.again or move.was_stopped)
    of_node = move.cause not in OF_JOBS and move.method in site.checkpointers
    if gave_up and of_node and until >= move.deadline + POSTPONED:
        return _later(site, move, threat, until)
    return move


def _sooner(site: Site, move: Migration, deadline: float) -> Migration:
    at, now = move.at, site.now()
    if move.step is Step.WAITING and at is not None:
        at = min(at, max(deadline - site.config.checkpoint.slack, now))
    sooner = replace(move, deadline=deadline, at=at)
    site.state.put(sooner)
    say(site, sooner, "ckpt-sooner", f"its time is shorter: {deadline - now:.0f} s are left")
    return sooner


def _later(site: Site, move: Migration, threat: Threat, deadline: float) -> Migration:
    """Another save, when one for this threat begins."""
    now, slack = site.now(), site.config.checkpoint.slack
    job = site.jobs.last.get(move.run.job)
    if job is None or not fits(deadline, now, LEAST_TRIED, slack):
        return move
    at = max(threat.begins(job, move.dump, slack), now)
    later = replace(move, deadline=deadline, at=at, again=True, tries=0)
    site.state.put(later)
    text = f"its time is longer: {deadline - now:.0f} s are left, it is tried to save it once more"
    say(site, later, "ckpt-later", text)
    return later


def go_on(site: Site, move: Migration) -> Migration:
    """All that can be done for it now without waiting for Slurm."""
    match move.step:
        case Step.PLANNED if not move.saves:
            return fall_back(site, move, _why_no_save(site, move))
        case Step.PLANNED:
            return _save(site, move)
        case Step.SAVING:
            return _find_or_save(site, move)
        case Step.WAITING if move.again:
            return _save(site, replace(move, again=False))
        case Step.WAITING | Step.SAVED | Step.REQUEUEING:
            return _requeue(site, move)
    return move


# saving


def _find_or_save(site: Site, move: Migration) -> Migration:
    """After a crash: a save that was complete is not made again. Images are told apart by number:
    when they were taken is the node's time, whose clock may differ from ours.
    """
    if move.newest is None:
        return _save(site, move)
    least, attempt = move.newest, move.run.attempt
    fresh = [i for i in _images(site, move) if i.number > least and i.attempt == attempt]
    image = next((i for i in fresh if _verified(site, move, i)), None)
    if image is not None:
        say(site, move, "ckpt-found", f"save {image.number} was complete before a restart")
        return _saved(site, move, image)
    if fresh:
        _let_go(site, move)
    return _save(site, move)


def _why_no_save(site: Site, move: Migration) -> str:
    slack = site.config.checkpoint.slack
    if move.deadline is None or fits(move.deadline, move.began, move.dump, slack):
        return NO_SAVE
    left = max(move.deadline - move.began - slack, 0.0)
    return f"a save may take {move.dump:.0f} s, which does not fit into {left:.0f} s"


def _save(site: Site, move: Migration) -> Migration:
    settings = site.config.checkpoint
    now = site.now()
    if not fits(move.deadline, now, 0.0, settings.slack):
        return fall_back(site, move, "the deadline is too near")
    if at := suspended.settled_at(site, move.run):
        return to(site, move, Step.WAITING, again=True, at=at)
    until = now + UNBOUND if move.deadline is None else move.deadline - settings.slack
    known = (*_images(site, move), *site.state.images(move.run.job))
    newest = max((i.number for i in known), default=0)
    if move.step is not Step.SAVING:
        move = _at(move, Step.SAVING, now)
    move = replace(move, newest=newest)
    site.state.put(move)
    reach("migration.before-save")
    method = site.checkpointers[move.method]
    try:
        suspended.resume(site, move.run)
        image = method.checkpoint(move.run, deadline=until, stop=True)
    except (CheckpointError, SlurmError) as error:
        return _failed(site, move, str(error))
    except Exception as error:
        logging.getLogger(__name__).exception("method fails job=%s", move.run.label)
        return _failed(site, move, f"{type(error).__name__}: {error}")
    taken = site.now()
    reach("migration.after-save")
    if not _verified(site, move, image):
        _let_go(site, move)
        return _failed(site, move, f"save {image.number} is not whole")
    return _saved(site, move, replace(image, taken=taken))


def _saved(site: Site, move: Migration, image: Image) -> Migration:
    move = to(site, move, Step.SAVED, fresh=image, image=image, at=None)
    reach("migration.saved")
    text = f"save {image.number} is whole: {image.size} bytes in {image.seconds:.1f} s"
    say(site, move, "ckpt-saved", text)
    site.journal.saved(image)
    return _requeue(site, move)


def _let_go(site: Site, move: Migration) -> None:
    """The run was stopped after a save that is not whole: it works until the next one, or until its
    node is lost.
    """
    if why := _why_not_released(site, move):
        say(site, move, "ckpt-not-released", why, level=logging.ERROR)


def _failed(site: Site, move: Migration, why: str) -> Migration:
    """Once more if there is time; else from what there is."""
    site.journal.count("ckpt_saves_total", method=move.method, outcome="failed")
    say(site, move, "ckpt-failed", why, level=logging.WARNING)
    tries, now = move.tries + 1, site.now()
    # What nobody has measured yet fills all the time that there is.
    first = not site.state.images(move.run.job)
    dump = min(move.dump, LEAST_TRIED) if first else move.dump
    time_left = fits(move.deadline, now + AGAIN, dump, site.config.checkpoint.slack)
    more = tries < MOST_TRIES or (first and now - move.run.started < BEGINS)
    job = _look(site, move.run)
    runs = job is not None and job.restarts == move.run.attempt and not job.states & ENDED
    if runs and time_left and more:
        return to(site, move, Step.WAITING, tries=tries, again=True, at=now + AGAIN, note=why)
    move = fall_back(site, replace(move, tries=tries), why, runs=runs)
    if job is not None and job.states & ENDED and ended_for_us(site, move, job):
        return to(site, move, Step.WAITING, at=now)
    return move


def _look(site: Site, run: JobRun) -> SlurmJob | None:
    try:
        return site.jobs.anew(run.job)
    except SlurmError:
        return site.jobs.last.get(run.job)


def fall_back(site: Site, move: Migration, why: str, *, runs: bool = True) -> Migration:
    """No save is possible: from an older image at the last moment, else when its node is lost.
    ``runs``: whether the job's run is still there, as far as is known.
    """
    image = next((i for i in _images(site, move) if _verified(site, move, i)), None)
    if image is None and _may_come_late(site, move):
        at = site.now() + AGAIN
        return to(site, move, Step.WAITING, image=None, at=at, again=True, note=why)
    if image is None:
        then = "it goes on where it is, and from its start if that is lost"
        text = f"{why}; there is no image: {then if runs else 'its run is over'}"
        say(site, move, "ckpt-no-image", text, level=logging.WARNING)
        return to(site, move, Step.WAITING, image=None, at=None, again=False, note=why)
    if move.cause is Cause.PLANNED_END:  # nobody ends its machine while it runs
        then = "it goes on where it is" if runs else "its run is over"
        say(site, move, "ckpt-stays", f"{why}; {then}", level=logging.WARNING)
        return to(site, move, Step.WAITING, image=image, at=None, again=False, note=why)
    lost = max(site.now() - image.taken, 0.0)
    text = f"{why}; it goes on from save {image.number}, {lost:.0f} s old"
    say(site, move, "ckpt-older-image", text, level=logging.WARNING)
    # It may end by itself until then, and nothing more can be lost.
    slack = site.config.checkpoint.slack
    at = site.now() if move.deadline is None else max(move.deadline - slack, site.now())
    return to(site, move, Step.WAITING, image=image, at=at, again=False, note=why)


def _may_come_late(site: Site, move: Migration) -> bool:
    """Whether a save that was asked for may yet come to its end, too late to be answered, before
    Slurm ends the run: it would have lost its images by then.
    """
    asked, now = move.newest is not None, site.now()
    if move.cause not in OF_JOBS or not asked or move.deadline is None or now >= move.deadline:
        return False
    return not fits(move.deadline, now + AGAIN, 0.0, site.config.checkpoint.slack)


def _images(site: Site, move: Migration) -> Sequence[Image]:
    """The images that the method has, newest first; none where that cannot be told."""
    method = site.checkpointers.get(move.method)
    if method is None:
        return ()
    try:
        return method.images(move.run)
    except Exception as error:  # noqa: BLE001 - a shared directory may fail in many ways
        say(site, move, "ckpt-no-view", f"images cannot be listed: {error}", level=logging.WARNING)
        return ()


def _verified(site: Site, move: Migration, image: Image) -> bool:
    try:
        site.checkpointers[move.method].verify(image)
    except Exception as error:  # noqa: BLE001 - whatever it is, that image is not to be trusted
        site.state.forget(image)
        text = f"save {image.number} is not used: {error}"
        say(site, move, "ckpt-bad-image", text, level=logging.WARNING)
        return False
    return True


# requeueing


def _requeue(site: Site, move: Migration) -> Migration:
    """Have Slurm put it back into its queue, unless it has begun anew or ended by itself. By a list
    that is no older than that question: a run that Slurm has begun since would be ended.
    """
    run = move.run
    try:
        job = site.jobs.anew(run.job)
        if (elsewhere := _is_over(site, move, job)) is not None:
            return elsewhere
        if job is not None and not job.requeue:
            if not _may_be_requeued(site, move):
                return to(site, move, Step.WAITING, at=None, again=False)
            # That took its time.
            if (elsewhere := _is_over(site, move, site.jobs.anew(run.job))) is not None:
                return elsewhere
        if suspended.settled_at(site, run):
            return _not_yet(site, move, "it was suspended just now")
        suspended.resume(site, run)
        reach("migration.before-requeue")
        if _ends_in_grace(move, job):
            name = "TERM" if move.method in LAUNCHED else "KILL"  # else it is stopped
            site.slurm.signal(run.job, name, full=False)
        else:
            site.slurm.requeue(run.job)
    except SlurmError as error:
        return _not_yet(site, move, str(error))
    reach("migration.after-requeue")
    move = to(site, move, Step.REQUEUED)
    reach("migration.requeued")
    source = "its start" if move.image is None else f"save {move.image.number}"
    say(site, move, "ckpt-requeued", f"it goes on from {source} on another node")
    return move


def _ends_in_grace(move: Migration, job: SlurmJob | None) -> bool:
    """Whether its batch script is ended, so that Slurm requeues it itself: a run that it preempts,
    and that ends within GraceTime. After ``scontrol requeue`` Slurm takes the end of the next run
    for that of a preempted one, and begins the finished job once more (24.11, measured; mended in
    a later 26.05). Where preempted jobs are cancelled, or nothing comes of it, the requeue follows.
    """
    if move.cause is not Cause.PREEMPTION or move.step is Step.REQUEUEING or job is None:
        return False
    return bool(job.preempted) and "RUNNING" in job.states


def _is_over(site: Site, move: Migration, job: SlurmJob | None) -> Migration | None:
    """The move at the step that its run has come to without us; None while it is to be requeued."""
    if job is None:
        return over(site, move, Step.ENDED, "Slurm does not know it any more")
    if job.restarts > move.run.attempt:
        return to(site, move, Step.REQUEUED)
    if job.states & ENDED and not ended_for_us(site, move, job):
        return over(site, move, Step.ENDED, f"it is {' '.join(sorted(job.states))}")
    return None


def ended_for_us(site: Site, move: Migration, job: SlurmJob) -> bool:
    """It ended because it saved itself for this move, as it does not catch our signal, or at the
    time limit that it was saved for, or was preempted then: it has not finished. That there is an
    older image says nothing of how it ended.
    """
    if _CUT_OFF.get(move.cause) in job.states:
        return move.image is not None
    if move.method != "signal" or "CANCELLED" in job.states:
        return False
    if str(Step.SAVED) in move.reached:
        return True
    asked = move.newest is not None
    return asked and job.died_of in save_signals(site.config.checkpoint.signal, move.run)


def _may_be_requeued(site: Site, move: Migration) -> bool:
    """A ``--no-requeue`` job with an image does not begin anew, it goes on; without one its user's
    word stands.
    """
    if move.image is None:
        text = "it must not be requeued (--no-requeue) and has no image: it ends with its node"
        say(site, move, "ckpt-no-requeue", text, level=logging.WARNING)
        return False
    try:
        requeue_setting.lift_for_good(site.slurm, move.run.job)
    except SlurmError as error:
        say(site, move, "ckpt-no-requeue", str(error), level=logging.WARNING)
        return False
    say(site, move, "ckpt-requeue-lifted", "--no-requeue is lifted: there is an image")
    return True


def _not_yet(site: Site, move: Migration, why: str) -> Migration:
    """Slurm does not answer or refuses: again in a while, but nobody stays stopped for ever."""
    now = site.now()
    if move.note != why:
        say(site, move, "ckpt-not-yet", why, level=logging.WARNING)
    since = move.reached.get(str(Step.SAVED), now)
    late = now - since > PATIENCE
    move = replace(move, note=why, at=now + (LATER if late else AGAIN))
    if late and (move.held is None or now >= move.held.until):
        text = f"its requeue did not come in {now - since:.0f} s ({why}): it goes on where it is"
        return _release(site, move, text)
    site.state.put(move)
    return move


def over(
    site: Site, move: Migration, end: Step, why: str, *, level: int = logging.INFO
) -> Migration:
    """The last step."""
    done = to(site, move, end, note=why)
    say(site, done, f"ckpt-{end}", why, level=level)
    site.journal.moved(done)
    return done


def _release(site: Site, move: Migration, why: str) -> Migration:
    """A run that was stopped for a move that does not come goes on where it is."""
    if failed := _why_not_released(site, move):
        return _hold(site, move, failed)
    return over(site, move, Step.STAYED, why)


def _why_not_released(site: Site, move: Migration) -> str:
    """Empty once the stopped run goes on."""
    method = site.checkpointers.get(move.method)
    try:
        if method is not None:
            method.release(move.run)
    except CheckpointError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a shared directory may fail in many ways
        return f"{type(error).__name__}: {error}"
    return ""


def _hold(site: Site, move: Migration, why: str) -> Migration:
    """Told once for each reason; its requeue is tried again sooner than this."""
    last = move.held or Held()
    pause = min(max(2 * last.pause, HELD), LONGEST_HELD)
    held = replace(move, held=Held(why=why, pause=pause, until=site.now() + pause))
    site.state.put(held)
    if last.why != why:
        say(site, held, "ckpt-not-released", why, level=logging.ERROR)
    return held
