"""Watches a requeued job until it runs again, and removes what prevents its start."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Mapping
from functools import partial

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.faults import reach
from slurm_elastic.checkpointers.signal import saves_by_ending
from slurm_elastic.ckptman.decide import NO_DEADLINE
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.losses import is_costly, notify_user, start_of
from slurm_elastic.ckptman.moves.requeueing import ended_for_move, stay_if_late
from slurm_elastic.ckptman.moves.steps import RETRY_AFTER_S, enter_step, finish, record_step
from slurm_elastic.ckptman.origins import read_started_run
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.verdicts import spot_nodes
from slurm_elastic.model.causes.moves import (
    AvoidsSpotNodes,
    HoldOfSlurmReleased,
    JobOver,
    JobRunsAgain,
    JobUnlisted,
    NamedNodesGo,
    NoLongerThreatened,
    RequeueSeen,
    StillPending,
)
from slurm_elastic.model.causes.requeues import RequeueIgnored, RequeueRepeated
from slurm_elastic.model.causes.waits import BeginsLater, CommandHelps, HoldReturns, WaitHint
from slurm_elastic.model.slurm import ENDED, SlurmJob
from slurm_elastic.model.slurm_words.rows import Actor, Fate
from slurm_elastic.policies.checkpoint.threat import OF_MACHINES, ThreatCause
from slurm_elastic.policies.launch.exclusions import no_spot
from slurm_elastic.policies.repair.requeue import may_hurry
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep

log = logging.getLogger(__name__)

REQUEUE_EFFECT_S = 10.0
"""Seconds in which Slurm may still list a requeued job as before. After that it is requeued again.
"""
MISSING_JOB_TIMEOUT_S = 60.0
"""Seconds for which a job must be missing from Slurm's list before we believe that it is gone."""
MAX_HOLD_RELEASES = 5
"""The number of times that we release the hold of one requeued job. A hold that comes back more
often has another cause.
"""


def check_job(site: CheckpointSite, move: Migration, job: SlurmJob | None) -> Migration:
    """Check the job of a migration that the crew is not working on. Returns the migration after
    this.
    """
    run, now = move.run, site.now()
    if job is None:
        if now - move.changed > MISSING_JOB_TIMEOUT_S:
            return finish(site, move, MigrationStep.ENDED, JobUnlisted())
        return move
    # The restart count proves the requeue, also after a crash between the command and our record.
    if job.restarts > run.attempt:
        if move.step is not MigrationStep.REQUEUED:
            move = enter_step(site, move, MigrationStep.REQUEUED)
            record_step(site, move, "ckpt-restarted", RequeueSeen())
        return _check_next_run(site, move, job)
    if move.step is MigrationStep.REQUEUED:
        return _requeue_again(site, move, job)
    if move.step is not MigrationStep.WAITING or not job.states & ENDED:
        return move
    if _may_have_saved_late(site, move):
        return move
    if not ended_for_move(site, move, job):
        return finish(site, move, MigrationStep.ENDED, JobOver(states=tuple(sorted(job.states))))
    # No requeue was planned, so that the run could continue. Now the run is over.
    if move.at is None and job.requeue:
        return enter_step(site, move, MigrationStep.WAITING, at=now)
    return move


def _may_have_saved_late(site: CheckpointSite, move: Migration) -> bool:
    """Whether the end of the run may be its answer to a save that has just timed out. Only the next
    try, which is seconds away, reads the answer.
    """
    is_try_near = move.at is not None and move.at - site.now() <= RETRY_AFTER_S
    is_requested = move.again and move.newest is not None and move.method == "signal"
    return is_try_near and is_requested and saves_by_ending(site.config.checkpoint.signal, move.run)


def stay_if_waiting(site: CheckpointSite, move: Migration, job: SlurmJob | None) -> None:
    """End the move if the job was not requeued yet, because nothing threatens the job now."""
    checked_move = check_job(site, move, job)
    if checked_move.step is MigrationStep.WAITING:
        finish(site, checked_move, MigrationStep.STAYED, NoLongerThreatened())


def _check_next_run(site: CheckpointSite, move: Migration, job: SlurmJob) -> Migration:
    states = job.states
    if states & ENDED and "PENDING" not in states:
        # The run was shorter than our poll interval, or the job never got a node.
        cause = JobOver(states=tuple(sorted(states)), is_unnoticed=bool(job.nodes))
        return finish(site, move, MigrationStep.ENDED, cause)
    if job.is_suspended or ("RUNNING" in states and "CONFIGURING" not in states):
        return _finish_running(site, move, job)
    if _is_pending(job):
        return _help_to_start(site, move, job)
    return move


def _finish_running(site: CheckpointSite, move: Migration, job: SlurmJob) -> Migration:
    """End the move of a job that runs again, as soon as we know from which image it continues."""
    run = read_started_run(site, move, job)
    if run is None:
        return move
    node_list, duration_s = ",".join(job.nodes), site.now() - move.began
    moved_from = replace(move, image=run.image)
    start = start_of(moved_from, run)
    cause = JobRunsAgain(nodes=tuple(job.nodes), took_s=duration_s, start=start)
    level = logging.WARNING if run.doubt or is_costly(moved_from) else logging.INFO
    finished_move = finish(site, moved_from, MigrationStep.BACK, cause, level=level)
    notify_user(site, finished_move, node_list, run)
    return finished_move


def _is_pending(job: SlurmJob) -> bool:
    """Whether the job is pending and its last run has ended completely."""
    if "COMPLETING" in job.states:
        return False
    # Slurm 22.05 may show a pending job as STOPPED, without nodes, if it was stopped just before
    # its requeue (measured).
    return "PENDING" in job.states or ("STOPPED" in job.states and not job.nodes)


def _requeue_again(site: CheckpointSite, move: Migration, job: SlurmJob) -> Migration:
    """Repeat the requeue if it had no effect although Slurm accepted it."""
    if site.now() - move.changed <= REQUEUE_EFFECT_S or "COMPLETING" in job.states:
        return move
    if (stayed := stay_if_late(site, move, RequeueIgnored())) is not None:
        return stayed
    record_step(site, move, "ckpt-not-yet", RequeueRepeated())
    # With the note: if the run continues before our next look, it must not be stopped once more.
    return enter_step(site, move, MigrationStep.REQUEUEING, note=RequeueIgnored())


def _help_to_start(site: CheckpointSite, move: Migration, job: SlurmJob) -> Migration:
    """Remove what prevents the start, unless Slurm has just refused that."""
    if not site.refused_starts.may_ask(job.id, site.monotonic()):
        return move
    try:
        helped_move = _remove_obstacles(site, move, job)
    except SlurmError as error:
        if site.refused_starts.put_off(job.id, str(error), site.monotonic()):
            log.warning(
                "a requeued job cannot be changed, it is retried job=%d error=%s", job.id, error
            )
        return move
    site.refused_starts.clear(job.id)
    return helped_move


def _remove_obstacles(site: CheckpointSite, move: Migration, job: SlurmJob) -> Migration:
    """Remove obstacles to the start: the begin time that Slurm gives a requeued job, a list of
    nodes that its user named if some of them go away, and a hold that Slurm itself has set. Raises
    SlurmError.
    """
    if job.required and not set(move.threatened).isdisjoint(job.required):
        site.slurm.any_nodes(job.id)
        named = NamedNodesGo(nodes=tuple(job.required))
        record_step(site, move, "ckpt-any-nodes", named)
    if job.id in site.state.jobs_with_exclusions():
        _renew_exclusions(site, job)
    # Before the begin time is removed: the job could start on a spot machine at once.
    if move.cause is ThreatCause.UNSAVABLE:
        move = _avoid_spot(site, move, job)
    # Other people's drains may end at any moment, so only our own drained nodes count.
    drained = move.threatened if move.cause in OF_MACHINES else ()
    if not may_hurry(move.run.nodes, drained, move.changed, site.now()):
        return move
    if job.is_requeue_hold(site.now()) and move.helped < MAX_HOLD_RELEASES:
        site.slurm.start_now(job.id)
        reach("migration.hurried")
        return _count_release(site, move)
    if _is_slurms_hold(job) and move.helped < MAX_HOLD_RELEASES:
        site.slurm.release(job.id)
        hold = HoldOfSlurmReleased(reason=job.description or job.reason)
        record_step(site, move, "ckpt-freed", hold)
        return _count_release(site, move)
    return _report_wait(site, move, job)


def _avoid_spot(site: CheckpointSite, move: Migration, job: SlurmJob) -> Migration:
    """Keep the job off nodes that have spot machines now and off nodes that its user excluded."""
    spot_names = spot_nodes(site)
    user_excluded = site.slurm.excluded_nodes(job.id) if move.avoids is None else move.avoids
    # Compute the list each time: a node whose spot machine has ended may get another one for this
    # job.
    excluded = tuple(sorted({*user_excluded, *spot_names}))
    if move.avoids is not None and excluded == move.excluded:
        return move
    if move.avoids is None:
        move = replace(move, avoids=user_excluded)
        # Before the change, because afterwards Slurm's list is no longer the user's alone.
        site.state.put(move)
    if not set(excluded).isdisjoint(job.required):
        site.slurm.any_nodes(job.id)
    site.slurm.exclude_nodes(job.id, excluded)
    move = replace(move, excluded=excluded)
    site.state.put(move)
    record_step(site, move, "ckpt-no-spot", AvoidsSpotNodes(nodes=tuple(spot_names)))
    return move


def renew_exclusions(
    site: CheckpointSite,
    jobs: Mapping[int, SlurmJob],
    moving_jobs: Collection[int],
    crew: KeyedExecutor,
) -> None:
    """Submit new lists of excluded nodes for jobs that were moved to on-demand machines and are
    pending again. Their old lists name the spot machines at the time of the move. For
    ``moving_jobs`` the next step of their move renews the list.
    """
    for number in site.state.jobs_with_exclusions() - set(moving_jobs):
        # Slurm refuses to change the list of a running job (measured on 22.05).
        job = jobs.get(number)
        if job is not None and _is_pending(job):
            crew.submit(number, (NO_DEADLINE, 0.0), partial(_renew_exclusions, site, job))


def _renew_exclusions(site: CheckpointSite, job: SlurmJob) -> None:
    if not site.refused_exclusions.may_ask(job.id, site.monotonic()):
        return
    moves = site.state.migrations_of(job.id)
    is_moved_again = any(move.cause is ThreatCause.UNSAVABLE and not move.is_over for move in moves)
    try:
        # A new move to on-demand machines reads the user's list from Slurm, so restore it before.
        keeps_off = not is_moved_again and _may_not_be_on_spot(site, job)
        for move in moves:
            if move.has_left_exclusions and keeps_off:
                _avoid_spot(site, move, job)
            elif move.has_left_exclusions:
                _restore_exclusions(site, move, job)
    except (SlurmError, sqlite3.Error) as error:
        if site.refused_exclusions.put_off(job.id, str(error), site.monotonic()):
            log.warning(
                "the excluded nodes of a job cannot be changed, it is retried job=%d error=%s",
                job.id, error,
            )  # fmt: skip
        return
    site.refused_exclusions.clear(job.id)


def _may_not_be_on_spot(site: CheckpointSite, job: SlurmJob) -> bool:
    """Whether the rule against spot machines for the job stands."""
    # The rule only prevents purchases. Slurm may still start the job on a spot machine that was
    # bought for another job, so the job must exclude its node.
    return no_spot((job.id,), site.ledger.exclusions.all(), site.now()) is not None


def _restore_exclusions(site: CheckpointSite, move: Migration, job: SlurmJob) -> None:
    """Give the job the list of excluded nodes back that it had before its move."""
    user_excluded = move.avoids or ()
    # If the list is not ours, the user has set it since.
    if set(site.slurm.excluded_nodes(job.id)) == set(move.excluded):
        site.slurm.exclude_nodes(job.id, user_excluded)
        log.info("a job excludes only its user's nodes again job=%s nodes=%s",
                 job.label, ",".join(user_excluded))  # fmt: skip
    # After the command: if we crash before this, the list differs from ours and stays.
    site.state.put(replace(move, avoids=None, excluded=()))


def _count_release(site: CheckpointSite, move: Migration) -> Migration:
    # On the disk: after a restart the number of releases must not start over.
    counted = replace(move, helped=move.helped + 1)
    site.state.put(counted)
    return counted


def _is_slurms_hold(job: SlurmJob) -> bool:
    """Whether Slurm holds the job, and not a person. Slurm holds a job by its own rules if it
    requeued it for the exit code of a run that we stopped.
    """
    return job.is_held_by_slurm or job.wait_reason.row.may_free


def _report_wait(site: CheckpointSite, move: Migration, job: SlurmJob) -> Migration:
    """Record once why the job waits, if that may not pass by itself."""
    is_held_by_slurm = _is_slurms_hold(job)
    has_later_begin = job.begin > site.now()
    is_recorded = isinstance(move.note, StillPending) and move.note.reason == job.reason
    if is_recorded or (_passes_by_itself(job) and not has_later_begin and not is_held_by_slurm):
        return move
    hint = HoldReturns() if is_held_by_slurm else _hint(job)
    if has_later_begin and hint is None:
        hint = BeginsLater(left_s=job.begin - site.now())
    cause = StillPending(reason=job.reason, hint=hint)
    record_step(site, move, "ckpt-pending", cause, level=logging.WARNING)
    # Without the hint: a decision has its time, but the note is shown for as long as the job waits,
    # and the seconds until its begin would be those of now.
    noted = replace(move, note=replace(cause, hint=None))
    site.state.put(noted)
    return noted


def _passes_by_itself(job: SlurmJob) -> bool:
    """Whether the wait ends by itself, or is in the hands of the job's user."""
    row = job.wait_reason.row
    if job.is_held:
        return row.actor is Actor.USER
    return row.fate is Fate.STARTS and row.actor is not Actor.OPERATOR


def _hint(job: SlurmJob) -> WaitHint | None:
    """The command that helps a job that does not start by itself; None for other jobs."""
    if job.wait_reason.row.fate is Fate.STARTS:
        return None
    return CommandHelps(reason=job.reason, description=job.description, job=job.shell_label)
