"""After the requeue: until the job runs again elsewhere, and what is in its way."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from slurm_elastic.ckptman import migration
from slurm_elastic.ckptman.context import Site
from slurm_elastic.ckptstate import Migration, Step
from slurm_elastic.errors import SlurmError
from slurm_elastic.faults import reach
from slurm_elastic.model_slurm import ENDED, SlurmJob
from slurm_elastic.policies.requeue import may_hurry

REFUSED = 10.0
"""Seconds that a requeued job may be seen as it was before, until it is requeued once more."""
UNKNOWN = 60.0
"""Seconds that a job may be missing from Slurm's list before that is believed."""
MOST_HELP = 5
"""Times that a hold is taken off one requeued job: what comes back that often has another cause."""
_WAITS = frozenset({"", "None", "Priority", "Resources", "BeginTime", "Dependency", "Cleaning",
                    "QOSMaxCpuPerUserLimit", "JobArrayTaskLimit"})  # fmt: skip
"""Reasons of a pending job that pass by themselves, or that its user has a hand in."""
_USERS = frozenset({"JobHeldUser", "Dependency"})
_LAUNCH_FAILED = "launch failed requeued held"
"""Slurm's reasons for a job that it holds because a node could not start it."""
_HINTS = {
    "JobHeldAdmin": "an administrator holds it, `scontrol release` lets it go on",
    "JobHoldMaxRequeue": "Slurm holds it after too many failed starts, `scontrol release` lets it"
    " go on",
}


def watch(site: Site, move: Migration, job: SlurmJob | None) -> Migration:
    """Look at the job of a migration that is not at work."""
    run, now = move.run, site.now()
    if job is None:
        if now - move.changed > UNKNOWN:
            return migration.over(site, move, Step.ENDED, "Slurm does not know it any more")
        return move
    if job.restarts > run.attempt:
        if move.step is not Step.REQUEUED:
            move = migration.to(site, move, Step.REQUEUED)
            migration.say(site, move, "ckpt-restarted", "Slurm has put it back into its queue")
        return _again(site, move, job)
    if move.step is Step.REQUEUED:
        return _as_before(site, move, job)
    ended = move.step is Step.WAITING and job.states & ENDED
    if ended and not migration.ended_for_us(site, move, job):
        return migration.over(site, move, Step.ENDED, f"it is {' '.join(sorted(job.states))}")
    return move


def _again(site: Site, move: Migration, job: SlurmJob) -> Migration:
    states = job.states
    if states & ENDED and "PENDING" not in states:
        return migration.over(site, move, Step.ENDED, f"it is {' '.join(sorted(states))}")
    if "RUNNING" in states and "CONFIGURING" not in states:
        where = ",".join(job.nodes)
        took = site.now() - move.began
        source = "its start" if move.image is None else f"save {move.image.number}"
        return migration.over(
            site, move, Step.BACK, f"it runs on {where}, from {source}, after {took:.1f} s"
        )
    if _waits(job):
        return _pending(site, move, job)
    return move


def _waits(job: SlurmJob) -> bool:
    """22.05 may show a job that was stopped just before its requeue as STOPPED, without nodes, as
    long as it is pending (measured).
    """
    if "COMPLETING" in job.states:
        return False
    return "PENDING" in job.states or ("STOPPED" in job.states and not job.nodes)


def _as_before(site: Site, move: Migration, job: SlurmJob) -> Migration:
    """Slurm took the command, but nothing came of it."""
    if site.now() - move.changed <= REFUSED or "COMPLETING" in job.states:
        return move
    migration.say(site, move, "ckpt-not-yet", "its requeue had no effect: once more")
    return migration.to(site, move, Step.REQUEUEING)


def _pending(site: Site, move: Migration, job: SlurmJob) -> Migration:
    """Lift what holds it: the time that Slurm gives a requeued job, the nodes that its user named
    if one of them is taken away, and a hold that nobody has put on it.
    """
    try:
        if job.required and not set(move.threatened).isdisjoint(job.required):
            site.slurm.any_nodes(job.id)
            named = ",".join(job.required)
            migration.say(site, move, "ckpt-any-nodes", f"it asked for {named}, which goes")
        if not may_hurry(move.run.nodes, move.threatened, move.changed, site.now()):
            return move
        if job.is_requeue_hold(site.now()) and move.helped < MOST_HELP:
            site.slurm.start_now(job.id)
            reach("rescue.hurried")
            return _helped(site, move)
        if _is_slurms_hold(job) and move.helped < MOST_HELP:
            site.slurm.release(job.id)
            why = job.description or job.reason
            migration.say(site, move, "ckpt-freed", f"Slurm held it: {why}")
            return _helped(site, move)
    except SlurmError as error:
        logging.getLogger(__name__).warning("job cannot be helped job=%d error=%s", job.id, error)
        return move
    return _report(site, move, job)


def _helped(site: Site, move: Migration) -> Migration:
    counted = replace(move, helped=move.helped + 1)
    site.state.put(counted)
    return counted


def _is_slurms_hold(job: SlurmJob) -> bool:
    """Whether Slurm holds it by itself, not a person. 22.05 gives a failed launch the reason
    JobHeldUser and these words beside it, which stay when an administrator holds that job, too: the
    reason is JobHeldAdmin then (both measured).
    """
    if job.reason == "JobHeldAdmin":
        return False
    words = (job.reason.replace("_", " "), job.description.replace("_", " "))
    return job.reason == "BadConstraints" or _LAUNCH_FAILED in words


def _report(site: Site, move: Migration, job: SlurmJob) -> Migration:
    """A reason that may not pass by itself is told once."""
    reason, own = job.reason, _is_slurms_hold(job)
    late = job.begin > site.now()
    if move.note == reason or (reason in _WAITS | _USERS and not late and not own):
        return move
    hint = _HINTS.get(reason, "its hold comes back" if own else "")
    if late and not hint:
        hint = f"it may not begin for {job.begin - site.now():.0f} s"
    text = f"it waits: {reason}{': ' if hint else ''}{hint}"
    migration.say(site, move, "ckpt-pending", text, level=logging.WARNING)
    noted = replace(move, note=reason)
    site.state.put(noted)
    return noted
