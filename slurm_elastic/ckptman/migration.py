"""The move of one job, step by step: save, verify, requeue. Each step is on the disk before its
effect, so that whoever starts after a crash goes on where the last one was.

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
requeued     Slurm has taken the command                          watch it (watch.py)
===========  ===================================================  ==============================
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic import requeue_setting
from slurm_elastic.checkpointers.signal import save_signals
from slurm_elastic.ckptman.context import Site
from slurm_elastic.ckptman.decide import Plan, fits
from slurm_elastic.ckptman.node_notices import NodeThreat
from slurm_elastic.ckptstate import Held, Rescue, Step
from slurm_elastic.errors import CheckpointError, SlurmError
from slurm_elastic.faults import reach
from slurm_elastic.model import Image, JobRun
from slurm_elastic.model_slurm import ENDED, SlurmJob

NO_SAVE = "no save fits before the deadline, or none is wanted"
MOST_TRIES = 3
AGAIN = 2.0
"""Seconds after a save that failed, if there is time for another, or a requeue that did."""
LATER = 10.0
"""The same for a requeue that did not come for ``patience``."""
HELD, LONGEST_HELD = 30.0, 300.0
"""Seconds until a stopped run is let go on once more, first and at most: its node may have to read
all of its images for that.
"""
UNBOUND = 600.0
"""Seconds for a save before a notice without a deadline."""


def to(
    site: Site, rescue: Rescue, step: Step, *, fresh: Image | None = None, **changes: object
) -> Rescue:
    """The rescue at its next step, with an image that is new; on the disk when this returns."""
    moved = _at(rescue, step, site.now(), **changes)
    site.state.put(moved, image=fresh)
    return moved


def _at(rescue: Rescue, step: Step, now: float, **changes: object) -> Rescue:
    reached = {**rescue.reached, str(step): now}
    return replace(rescue, step=step, changed=now, reached=reached, **changes)


def say(site: Site, rescue: Rescue, kind: str, reason: str, *, level: int = logging.INFO) -> None:
    """One step of a rescue, for the journal."""
    subjects = (f"job:{rescue.run.job}", *rescue.threatened)
    site.journal.note(rescue.key, kind, subjects, reason, level=level)


def planned(site: Site, plan: Plan) -> Rescue:
    """A move at its first step; not on the disk yet."""
    facts, now = plan.facts, site.now()
    # A run that was stopped in vain is not stopped once more: it works until the last moment.
    before = site.state.was_moved(facts.run.job, facts.run.attempt)
    return Rescue(
        run=facts.run,
        method=facts.choice.method,
        threatened=facts.threatened,
        reason=plan.reason,
        step=Step.PLANNED,
        began=now,
        changed=now,
        deadline=facts.deadline,
        dump=max((s.dump for s in facts.situations), default=0.0),
        saves=plan.saves and not before,
        reached={str(Step.PLANNED): now},
    )


def hasten(site: Site, rescue: Rescue, found: Mapping[str, NodeThreat]) -> Rescue:
    """By the earliest deadline of its nodes: one may be taken away sooner than was said first."""
    told = [found[node].deadline for node in rescue.threatened if node in found]
    deadline = min((t for t in told if t is not None), default=None)
    if deadline is None or rescue.step is Step.REQUEUED:
        return rescue
    if rescue.deadline is not None and deadline >= rescue.deadline:
        return rescue
    at, now = rescue.at, site.now()
    if rescue.step is Step.WAITING and at is not None:
        at = min(at, max(deadline - site.config.checkpoint.slack, now))
    sooner = replace(rescue, deadline=deadline, at=at)
    site.state.put(sooner)
    say(site, sooner, "ckpt-sooner", f"its time is shorter: {deadline - now:.0f} s are left")
    return sooner


def go_on(site: Site, rescue: Rescue) -> Rescue:
    """All that can be done for it now without waiting for Slurm."""
    match rescue.step:
        case Step.PLANNED if not rescue.saves:
            return fall_back(site, rescue, NO_SAVE)
        case Step.PLANNED:
            return _save(site, rescue)
        case Step.SAVING:
            return _find_or_save(site, rescue)
        case Step.WAITING if rescue.again:
            return _save(site, replace(rescue, again=False))
        case Step.WAITING | Step.SAVED | Step.REQUEUEING:
            return _requeue(site, rescue)
    return rescue


# saving


def _find_or_save(site: Site, rescue: Rescue) -> Rescue:
    """After a crash: a save that was complete is not made again. Images are told apart by number:
    when they were taken is the node's time, whose clock may differ from ours.
    """
    if rescue.newest is None:
        return _save(site, rescue)
    least, attempt = rescue.newest, rescue.run.attempt
    fresh = [i for i in _images(site, rescue) if i.number > least and i.attempt == attempt]
    image = next((i for i in fresh if _verified(site, rescue, i)), None)
    if image is not None:
        say(site, rescue, "ckpt-found", f"save {image.number} was complete before a restart")
        return _saved(site, rescue, image)
    return _save(site, rescue)


def _save(site: Site, rescue: Rescue) -> Rescue:
    settings = site.config.checkpoint
    now = site.now()
    if not fits(rescue.deadline, now, 0.0, settings.slack):
        return fall_back(site, rescue, "the deadline is too near")
    until = now + UNBOUND if rescue.deadline is None else rescue.deadline - settings.slack
    known = (*_images(site, rescue), *site.state.images(rescue.run.job))
    newest = max((i.number for i in known), default=0)
    if rescue.step is not Step.SAVING:
        rescue = _at(rescue, Step.SAVING, now)
    rescue = replace(rescue, newest=newest)
    site.state.put(rescue)
    reach("rescue.before-save")
    method = site.checkpointers[rescue.method]
    try:
        image = method.checkpoint(rescue.run, deadline=until, stop=True)
        taken = site.now()
        reach("rescue.after-save")
        method.verify(image)
    except CheckpointError as error:
        return _failed(site, rescue, str(error))
    except Exception as error:
        logging.getLogger(__name__).exception("method fails job=%s", rescue.run.label)
        return _failed(site, rescue, f"{type(error).__name__}: {error}")
    return _saved(site, rescue, replace(image, taken=taken))


def _saved(site: Site, rescue: Rescue, image: Image) -> Rescue:
    rescue = to(site, rescue, Step.SAVED, fresh=image, image=image, at=None)
    reach("rescue.saved")
    text = f"save {image.number} is whole: {image.size} bytes in {image.seconds:.1f} s"
    say(site, rescue, "ckpt-saved", text)
    site.journal.count("ckpt_saves_total", method=rescue.method, outcome="saved")
    return _requeue(site, rescue)


def _failed(site: Site, rescue: Rescue, why: str) -> Rescue:
    """Once more if there is time; else from what there is."""
    site.journal.count("ckpt_saves_total", method=rescue.method, outcome="failed")
    say(site, rescue, "ckpt-failed", why, level=logging.WARNING)
    tries, now = rescue.tries + 1, site.now()
    time_left = fits(rescue.deadline, now + AGAIN, rescue.dump, site.config.checkpoint.slack)
    job = _look(site, rescue.run)
    runs = job is not None and job.restarts == rescue.run.attempt and not job.states & ENDED
    if runs and time_left and tries < MOST_TRIES:
        return to(site, rescue, Step.WAITING, tries=tries, again=True, at=now + AGAIN, note=why)
    rescue = fall_back(site, replace(rescue, tries=tries), why)
    if job is not None and job.states & ENDED and ended_for_us(site, rescue, job):
        return to(site, rescue, Step.WAITING, at=now)
    return rescue


def _look(site: Site, run: JobRun) -> SlurmJob | None:
    try:
        return site.jobs.anew(run.job)
    except SlurmError:
        return site.jobs.last.get(run.job)


def fall_back(site: Site, rescue: Rescue, why: str) -> Rescue:
    """No save is possible: from an older image at the last moment, else when its node is lost."""
    image = next((i for i in _images(site, rescue) if _verified(site, rescue, i)), None)
    if image is None:
        text = (
            f"{why}; there is no image: it goes on where it is, and from its start if that is lost"
        )
        say(site, rescue, "ckpt-no-image", text, level=logging.WARNING)
        return to(site, rescue, Step.WAITING, image=None, at=None, again=False, note=why)
    lost = max(site.now() - image.taken, 0.0)
    text = f"{why}; it goes on from save {image.number}, {lost:.0f} s old"
    say(site, rescue, "ckpt-older-image", text, level=logging.WARNING)
    # It may end by itself until then, and nothing more can be lost.
    slack = site.config.checkpoint.slack
    at = site.now() if rescue.deadline is None else max(rescue.deadline - slack, site.now())
    return to(site, rescue, Step.WAITING, image=image, at=at, again=False, note=why)


def _images(site: Site, rescue: Rescue) -> Sequence[Image]:
    """The images that the method has, newest first; none where that cannot be told."""
    method = site.checkpointers.get(rescue.method)
    if method is None:
        return ()
    try:
        return method.images(rescue.run)
    except Exception as error:  # noqa: BLE001 - a shared directory may fail in many ways
        say(
            site, rescue, "ckpt-no-view", f"images cannot be listed: {error}", level=logging.WARNING
        )
        return ()


def _verified(site: Site, rescue: Rescue, image: Image) -> bool:
    try:
        site.checkpointers[rescue.method].verify(image)
    except Exception as error:  # noqa: BLE001 - whatever it is, that image is not to be trusted
        site.state.forget(image)
        text = f"save {image.number} is not used: {error}"
        say(site, rescue, "ckpt-bad-image", text, level=logging.WARNING)
        return False
    return True


# requeueing


def _requeue(site: Site, rescue: Rescue) -> Rescue:
    """Have Slurm put it back into its queue, unless it has begun anew or ended by itself."""
    run = rescue.run
    try:
        job = site.jobs.look(run.job)
    except SlurmError as error:
        return _not_yet(site, rescue, str(error))
    if job is None:
        return over(site, rescue, Step.ENDED, "Slurm does not know it any more")
    if job.restarts > run.attempt:
        return to(site, rescue, Step.REQUEUED)
    if job.states & ENDED and not ended_for_us(site, rescue, job):
        return over(site, rescue, Step.ENDED, f"it is {' '.join(sorted(job.states))}")
    if not job.requeue and not _may_be_requeued(site, rescue):
        return to(site, rescue, Step.WAITING, at=None, again=False)
    reach("rescue.before-requeue")
    try:
        site.slurm.requeue(run.job)
    except SlurmError as error:
        return _not_yet(site, rescue, str(error))
    reach("rescue.after-requeue")
    rescue = to(site, rescue, Step.REQUEUED)
    reach("rescue.requeued")
    source = "its start" if rescue.image is None else f"save {rescue.image.number}"
    say(site, rescue, "ckpt-requeued", f"it goes on from {source} on another node")
    return rescue


def ended_for_us(site: Site, rescue: Rescue, job: SlurmJob) -> bool:
    """It ended because it saved itself for this move, or as it does not catch our signal: it has
    not finished. That there is an older image says nothing of how it ended.
    """
    if rescue.method != "signal" or "CANCELLED" in job.states:
        return False
    if str(Step.SAVED) in rescue.reached:
        return True
    asked = rescue.newest is not None
    return asked and job.killed_by in save_signals(site.config.checkpoint.signal, rescue.run)


def _may_be_requeued(site: Site, rescue: Rescue) -> bool:
    """A ``--no-requeue`` job with an image does not begin anew, it goes on; without one its user's
    word stands.
    """
    if rescue.image is None:
        text = "it must not be requeued (--no-requeue) and has no image: it ends with its node"
        say(site, rescue, "ckpt-no-requeue", text, level=logging.WARNING)
        return False
    try:
        requeue_setting.lift_for_good(site.slurm, rescue.run.job)
    except SlurmError as error:
        say(site, rescue, "ckpt-no-requeue", str(error), level=logging.WARNING)
        return False
    say(site, rescue, "ckpt-requeue-lifted", "--no-requeue is lifted: there is an image")
    return True


def _not_yet(site: Site, rescue: Rescue, why: str) -> Rescue:
    """Slurm does not answer or refuses: again in a while, but nobody stays stopped for ever."""
    now = site.now()
    if rescue.note != why:
        say(site, rescue, "ckpt-not-yet", why, level=logging.WARNING)
    since = rescue.reached.get(str(Step.SAVED), now)
    late = now - since > site.config.checkpoint.patience
    rescue = replace(rescue, note=why, at=now + (LATER if late else AGAIN))
    if late and (rescue.held is None or now >= rescue.held.until):
        text = f"its requeue did not come in {now - since:.0f} s ({why}): it goes on where it is"
        return _release(site, rescue, text)
    site.state.put(rescue)
    return rescue


def over(site: Site, rescue: Rescue, end: Step, why: str) -> Rescue:
    """The last step."""
    done = to(site, rescue, end, note=why)
    say(site, done, f"ckpt-{end}", why)
    site.journal.count("ckpt_rescues_total", outcome=str(end), method=rescue.method)
    return done


def _release(site: Site, rescue: Rescue, why: str) -> Rescue:
    """A run that was stopped for a move that does not come goes on where it is."""
    method = site.checkpointers.get(rescue.method)
    try:
        if method is not None:
            method.release(rescue.run)
    except CheckpointError as error:
        return _hold(site, rescue, str(error))
    except Exception as error:  # noqa: BLE001 - a shared directory may fail in many ways
        return _hold(site, rescue, f"{type(error).__name__}: {error}")
    return over(site, rescue, Step.STAYED, why)


def _hold(site: Site, rescue: Rescue, why: str) -> Rescue:
    """Told once for each reason; its requeue is tried again sooner than this."""
    last = rescue.held or Held()
    pause = min(max(2 * last.pause, HELD), LONGEST_HELD)
    held = replace(rescue, held=Held(why=why, pause=pause, until=site.now() + pause))
    site.state.put(held)
    if last.why != why:
        say(site, held, "ckpt-not-released", why, level=logging.ERROR)
    return held
