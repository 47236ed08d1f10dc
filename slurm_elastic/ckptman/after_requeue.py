"""A requeued job until it runs again elsewhere, and what is in its way."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.faults import reach
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.units import brief
from slurm_elastic.ckptman.losses import describe_start, is_costly, notify_user
from slurm_elastic.ckptman.origins import read_started_run
from slurm_elastic.ckptman.requeueing import ended_for_move
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.steps import enter_step, finish, record_step
from slurm_elastic.ckptman.verdicts import spot_nodes
from slurm_elastic.model.slurm import ENDED, SlurmJob
from slurm_elastic.model.slurm_words.rows import Actor, Fate
from slurm_elastic.policies.checkpoint.threat import OF_MACHINES, Cause
from slurm_elastic.policies.repair.requeue import may_hurry
from slurm_elastic.state.ckptstate.facts import Migration, Step

REQUEUE_EFFECT_S = 10.0
"""Seconds that a requeued job may be seen as it was before, until it is requeued once more."""
MISSING_JOB_TIMEOUT_S = 60.0
"""Seconds that a job may be missing from Slurm's list before that is believed."""
MAX_HOLD_RELEASES = 5
"""Times that a hold is taken off one requeued job: what comes back that often has another cause."""


def check_job(site: CheckpointSite, move: Migration, job: SlurmJob | None) -> Migration:
    """Look at the job of a migration that is not at work."""
    run, now = move.run, site.now()
    if job is None:
        if now - move.changed > MISSING_JOB_TIMEOUT_S:
            return finish(site, move, Step.ENDED, "Slurm does not know it any more")
        return move
    if job.restarts > run.attempt:
        if move.step is not Step.REQUEUED:
            move = enter_step(site, move, Step.REQUEUED)
            record_step(site, move, "ckpt-restarted", "Slurm has put it back into its queue")
        return _check_next_run(site, move, job)
    if move.step is Step.REQUEUED:
        return _requeue_again(site, move, job)
    ended = move.step is Step.WAITING and job.states & ENDED
    if ended and not ended_for_move(site, move, job):
        return finish(site, move, Step.ENDED, f"it is {' '.join(sorted(job.states))}")
    return move


def stay_if_waiting(site: CheckpointSite, move: Migration, job: SlurmJob | None) -> None:
    """Nothing threatens it any more, and it was not requeued yet."""
    after = check_job(site, move, job)
    if after.step is Step.WAITING:
        finish(site, after, Step.STAYED, "nothing threatens it any more")


def _check_next_run(site: CheckpointSite, move: Migration, job: SlurmJob) -> Migration:
    states = job.states
    if states & ENDED and "PENDING" not in states:
        return finish(site, move, Step.ENDED, f"it is {' '.join(sorted(states))}")
    if job.is_suspended or ("RUNNING" in states and "CONFIGURING" not in states):
        return _finish_running(site, move, job)
    if _is_pending(job):
        return _help_to_start(site, move, job)
    return move


def _finish_running(site: CheckpointSite, move: Migration, job: SlurmJob) -> Migration:
    """Over, once it is known what the run goes on from."""
    run = read_started_run(site, move, job)
    if run is None:
        return move
    where, took = ",".join(job.nodes), site.now() - move.began
    ran = replace(move, image=run.image)
    text = f"it runs on {where} after {took:.1f} s, from {describe_start(ran, run)}"
    told = bool(run.why) or is_costly(ran)
    level = logging.WARNING if told else logging.INFO
    done = finish(site, ran, Step.BACK, text, level=level)
    lost = run.image is None and move.image is not None
    if move.renewed or told or lost or move.cause is Cause.UNSAVABLE:
        notify_user(site, done, where, run)
    return done


def _is_pending(job: SlurmJob) -> bool:
    """Whether it is pending, and its run before has wholly ended."""
    if "COMPLETING" in job.states:
        return False
    # 22.05 may show a job that was stopped just before its requeue as STOPPED, without nodes, as
    # long as it is pending (measured).
    return "PENDING" in job.states or ("STOPPED" in job.states and not job.nodes)


def _requeue_again(site: CheckpointSite, move: Migration, job: SlurmJob) -> Migration:
    """Slurm took the command, but nothing came of it."""
    if site.now() - move.changed <= REQUEUE_EFFECT_S or "COMPLETING" in job.states:
        return move
    record_step(site, move, "ckpt-not-yet", "its requeue had no effect: once more")
    return enter_step(site, move, Step.REQUEUEING)


def _help_to_start(site: CheckpointSite, move: Migration, job: SlurmJob) -> Migration:
    """Lift what holds it: the time that Slurm gives a requeued job, the nodes that its user named
    if one of them is taken away, and a hold that nobody has put on it.
    """
    try:
        if job.required and not set(move.threatened).isdisjoint(job.required):
            site.slurm.any_nodes(job.id)
            named = ",".join(job.required)
            record_step(site, move, "ckpt-any-nodes", f"it asked for {named}, which goes")
        if move.cause is Cause.UNSAVABLE:
            move = _avoid_spot(site, move, job)
        # What others drain they may give back at any moment.
        drained = move.threatened if move.cause in OF_MACHINES else ()
        if not may_hurry(move.run.nodes, drained, move.changed, site.now()):
            return move
        if job.is_requeue_hold(site.now()) and move.helped < MAX_HOLD_RELEASES:
            site.slurm.start_now(job.id)
            reach("migration.hurried")
            return _count_release(site, move)
        if _is_slurms_hold(job) and move.helped < MAX_HOLD_RELEASES:
            site.slurm.release(job.id)
            why = job.description or job.reason
            record_step(site, move, "ckpt-freed", f"Slurm held it: {why}")
            return _count_release(site, move)
    except SlurmError as error:
        logging.getLogger(__name__).warning("job cannot be helped job=%d error=%s", job.id, error)
        return move
    return _report_wait(site, move, job)


def _avoid_spot(site: CheckpointSite, move: Migration, job: SlurmJob) -> Migration:
    """Keep it off the nodes that have spot machines now, beside those its user keeps it off."""
    spot = spot_nodes(site)
    own = site.slurm.excluded_nodes(job.id) if move.avoids is None else move.avoids
    # Made anew each time: a node whose spot machine has ended may get another one for it.
    wanted = tuple(sorted({*own, *spot}))
    if move.avoids is not None and wanted == move.excluded:
        return move
    move = replace(move, avoids=own)
    site.state.put(move)  # first: what is excluded then is no longer its user's word alone
    if not set(wanted).isdisjoint(job.required):
        site.slurm.any_nodes(job.id)
    site.slurm.exclude_nodes(job.id, wanted)
    move = replace(move, excluded=wanted)
    site.state.put(move)
    record_step(site, move, "ckpt-no-spot", f"it avoids {compress(spot)}, which may be taken away")
    return move


def _count_release(site: CheckpointSite, move: Migration) -> Migration:
    counted = replace(move, helped=move.helped + 1)
    site.state.put(counted)
    return counted


def _is_slurms_hold(job: SlurmJob) -> bool:
    """Whether Slurm holds it by itself, not a person. A run that we stopped, and that Slurm itself
    requeued for its exit code, is held by its own rule.
    """
    return job.is_held_by_slurm or job.wait_reason.row.may_free


def _report_wait(site: CheckpointSite, move: Migration, job: SlurmJob) -> Migration:
    """A reason that may not pass by itself is told once."""
    reason, own = job.reason, _is_slurms_hold(job)
    late = job.begin > site.now()
    if move.note == reason or (_passes_by_itself(job) and not late and not own):
        return move
    hint = "its hold comes back" if own else _hint(job)
    if late and not hint:
        hint = f"it may not begin for {brief(job.begin - site.now())}"
    text = f"it waits: {reason}{': ' if hint else ''}{hint}"
    record_step(site, move, "ckpt-pending", text, level=logging.WARNING)
    noted = replace(move, note=reason)
    site.state.put(noted)
    return noted


def _passes_by_itself(job: SlurmJob) -> bool:
    """Whether the reason passes by itself, or the job's user has a hand in it."""
    row = job.wait_reason.row
    if job.is_held:
        return row.actor is Actor.USER
    return row.fate is Fate.STARTS and row.actor is not Actor.OPERATOR


def _hint(job: SlurmJob) -> str:
    """The command that helps a job that does not start by itself; "" for any other job."""
    reason = job.wait_reason
    if reason.row.fate is Fate.STARTS:
        return ""
    return f"{reason.row.meaning}; do: {reason.advice(job.label)}"
