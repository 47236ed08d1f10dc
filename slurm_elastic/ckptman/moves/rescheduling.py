"""When a move acts next: its nodes may go earlier or later, and failed saves are tried again."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from msgspec.structs import replace

from slurm_elastic.ckptman.decide import MIN_FIRST_SAVE_S, verification_seconds
from slurm_elastic.ckptman.moves.steps import record_step
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.model.causes.moves import DeadlineLater, DeadlineSooner
from slurm_elastic.policies.checkpoint.checkpoint import fits
from slurm_elastic.policies.checkpoint.threat import LEAD, OF_JOBS, Threat, ThreatCause
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep

MIN_POSTPONEMENT_S = 30.0
"""Seconds by which a deadline must move to count as later, because clouds round their deadlines."""
SAVE_AGAIN_AFTER_S = 600.0
"""Seconds until a run is saved again after MAX_TRIES failed saves. The obstacle may have gone, as a
step of the job that ran.
"""
MIN_SAVE_AGAIN_S = 120.0
"""A later save is planned only if it can begin at least this much later (s)."""


def reschedule(site: CheckpointSite, move: Migration, leaving: Mapping[str, Threat]) -> Migration:
    """Adjust the move to the earliest end of its nodes. A node may be taken away sooner than
    announced, or another node of the run as well. If it is taken later, a failed save is tried
    again.
    """
    if move.step is MigrationStep.REQUEUED:
        return move
    move = _with_other_nodes(site, move, leaving)
    subjects = {*move.targets, *move.threatened}
    threats = [
        threat
        for subject in subjects
        if (threat := leaving.get(subject)) is not None and threat.until is not None
    ]
    earliest = min(threats, key=attrgetter("until"), default=None)
    if earliest is None or earliest.until is None:
        return move
    deadline = earliest.until
    if move.deadline is None or deadline < move.deadline:
        return _bring_forward(site, move, deadline)
    has_given_up = move.step is MigrationStep.WAITING and not (move.again or move.was_stopped)
    is_for_nodes = move.cause not in OF_JOBS and move.method in site.checkpointers
    if has_given_up and is_for_nodes and deadline >= move.deadline + MIN_POSTPONEMENT_S:
        return _try_again_later(site, move, earliest, deadline)
    return move


def _with_other_nodes(
    site: CheckpointSite, move: Migration, leaving: Mapping[str, Threat]
) -> Migration:
    """Add the nodes of the run that must be left as well since the move was planned. The run ends
    with the first of its nodes.
    """
    job = site.jobs.last.get(move.run.job)
    if job is None or job.restarts != move.run.attempt:
        return move
    now, slack = site.now(), site.config.checkpoint.deadline_margin
    check_s = verification_seconds(move.method, move.dump)
    other_nodes = tuple(
        node
        for node in move.run.nodes
        if node not in move.threatened
        and (threat := leaving.get(node)) is not None
        and threat.concerns(job)
        and now >= threat.answer_at(job, move.dump, slack, check_s)
    )
    if not other_nodes:
        return move
    widened = replace(move, threatened=(*move.threatened, *other_nodes))
    site.state.put(widened)
    return widened


def _bring_forward(site: CheckpointSite, move: Migration, deadline: float) -> Migration:
    act_at, now = move.at, site.now()
    if move.step is MigrationStep.WAITING and act_at is not None:
        slack = site.config.checkpoint.deadline_margin
        latest = latest_save_at(site, move, deadline) if move.again else deadline - slack
        act_at = min(act_at, max(latest, now))
    changed_move = replace(move, deadline=deadline, at=act_at)
    site.state.put(changed_move)
    record_step(site, changed_move, "ckpt-sooner", DeadlineSooner(left_s=deadline - now))
    return changed_move


def _try_again_later(
    site: CheckpointSite, move: Migration, threat: Threat, deadline: float
) -> Migration:
    """Plan another save for the time when a save for this threat would begin."""
    now, slack = site.now(), site.config.checkpoint.deadline_margin
    job = site.jobs.last.get(move.run.job)
    if job is None or not fits(deadline, now, MIN_FIRST_SAVE_S, slack):
        return move
    save_s = move.dump if site.state.images(move.run.job) else None
    check_s = verification_seconds(move.method, save_s)
    act_at = max(threat.answer_at(job, move.dump, slack, check_s), now)
    # The tries begin again: the earlier saves failed against the earlier deadline.
    changed_move = replace(move, deadline=deadline, at=act_at, again=True, tries=0)
    site.state.put(changed_move)
    record_step(site, changed_move, "ckpt-later", DeadlineLater(left_s=deadline - now))
    return changed_move


def latest_save_at(site: CheckpointSite, move: Migration, deadline: float) -> float:
    """When a save and its verification must begin to be over before the deadline (Unix time)."""
    check_s = verification_seconds(move.method, move.dump)
    return deadline - move.dump - check_s - site.config.checkpoint.deadline_margin - LEAD


def next_save_at(site: CheckpointSite, move: Migration) -> float | None:
    """When to save a run again after MAX_TRIES failed saves (Unix time); None if never. The
    deadline may be days away, and the run would lose all its work until then.
    """
    now = site.now()
    if move.deadline is not None:
        latest = latest_save_at(site, move, move.deadline)
        return min(now + SAVE_AGAIN_AFTER_S, latest) if latest - now >= MIN_SAVE_AGAIN_S else None
    # slurm-elasticd requeues a job that leaves by an order and cannot be saved. An older image
    # serves at once, because the node may go at any moment.
    if move.cause is ThreatCause.DEPARTURE or site.state.images(move.run.job):
        return None
    return now + SAVE_AGAIN_AFTER_S
