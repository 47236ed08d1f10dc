"""Jobs that cannot be saved. Their first saves show it, and their users are notified in time."""

from __future__ import annotations

import logging
import sqlite3

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.ckptman.site import CheckpointSite, write_to_job_output
from slurm_elastic.config.job_checkpoint import MethodChoice
from slurm_elastic.model.admin_comment import NoteKind, with_note
from slurm_elastic.model.causes.checkpoints import (
    JobSavable,
    LedgerNotWritten,
    OutputNotWritten,
)
from slurm_elastic.model.causes.hindrances import JobUnsavable
from slurm_elastic.model.causes.refusals import NotSavable
from slurm_elastic.model.causes.threats import GoesOnDemand
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.exclusion import NO_SPOT, Exclusion
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.checkpoint.threat import ThreatCause
from slurm_elastic.policies.checkpoint.unsavable import LITTLE, Unsavable, obstacle
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep, UnsavableRun

log = logging.getLogger(__name__)

NO_SPOT_RULE_S = 30 * 86400.0
"""Seconds after which a rule against spot machines ends, unless it was removed before."""


def judge_run(site: CheckpointSite, run: JobRun, choice: MethodChoice, message: str) -> bool:
    """Decide, after several failed saves in a row, whether the job cannot be saved. ``message`` is
    the last error. The user is notified once per run, if the site wants that.
    """
    hindrance = obstacle(message)
    if hindrance is None:
        return False
    last_verdict = site.state.unsavable().get(run.job)
    # Once per run: the retries every ten minutes must not notify the user again.
    if last_verdict is not None and last_verdict.attempt == run.attempt:
        return True
    verdict = UnsavableRun(
        job=run.job,
        label=run.label,
        attempt=run.attempt,
        method=choice.method,
        at=site.now(),
        cause=hindrance,
        moved=last_verdict is not None and last_verdict.moved,
    )
    site.state.put_verdict(verdict)
    cause = JobUnsavable(cause=hindrance)
    site.recorder.record_run(run, "ckpt-unsavable", cause, level=logging.WARNING)
    # The verdict is stored in any case: ``ckpt list`` shows it also if nobody is notified.
    if choice.unsavable is Unsavable.STAY:
        return True
    will_move = choice.unsavable is Unsavable.ON_DEMAND and _may_move(site, run, verdict)
    _notify_user(site, run, verdict, will_move=will_move)
    if will_move:
        _move_to_on_demand(site, run, verdict)
    return True


def _notify_user(
    site: CheckpointSite, run: JobRun, verdict: UnsavableRun, *, will_move: bool
) -> None:
    outlook = (
        "it starts over on a machine that is not taken away"
        if will_move
        else "if its machine is taken away, it starts over"
    )
    lines = (
        f"slurm-elastic: this job cannot be saved: {verdict.cause}; {outlook}",
        f"slurm-elastic: it would help to {verdict.remedy}",
    )
    try:
        text = f"cannot be saved: {verdict.cause}; it would help to {verdict.remedy}"
        # The comment first: it needs no step of the job, which the job's output does.
        _comment(site, run.job, text)
        write_to_job_output(site, run.job, *lines)
    except SlurmError as error:
        cause = OutputNotWritten(error=str(error))
        site.recorder.record_run(run, "ckpt-not-told", cause, level=logging.WARNING)


def _comment(site: CheckpointSite, job: int, text: str) -> None:
    """Write the text as our part of the job's AdminComment, or remove our part ("").

    SlurmError if Slurm refuses.
    """
    comment = site.slurm.admin_comments([job]).get(job)
    if comment is None:  # the job has ended
        return
    new_comment = with_note(comment, NoteKind.UNSAVED, text)
    if new_comment != comment:
        site.slurm.set_admin_comment(job, new_comment)


def _may_move(site: CheckpointSite, run: JobRun, verdict: UnsavableRun) -> bool:
    """Whether the job runs on spot machines, loses little work, may be requeued, was not moved
    before, and can get another machine.
    """
    job = site.jobs.last.get(run.job)
    # ``moved`` is kept over the runs: without it a job could be moved at each new start.
    if job is None or not (job.requeue and job.batch) or verdict.moved:
        return False
    # A job without an image loses all its work by the move, so only a young one may lose it.
    is_on_spot = bool(set(spot_nodes(site)) & set(run.nodes))
    return site.now() - run.started <= LITTLE and is_on_spot and _has_lasting_nodes(site, run, job)


def _has_lasting_nodes(site: CheckpointSite, run: JobRun, job: SlurmJob) -> bool:
    """Whether enough nodes of the job's partitions are the site's own, or may get a machine that is
    not a spot machine and have no spot machine now. Otherwise the job, which runs well, would wait
    for as long as the rule stands, or until a spot machine of a busy pool ends.
    """
    try:
        nodes = site.slurm.nodes().values()
    except SlurmError as error:
        log.warning("the nodes for a job are not known job=%s error=%s", run.label, error)
        return False
    shared = {node.name for node in nodes if not set(node.partitions).isdisjoint(job.partitions)}
    if not shared:
        return any(_may_last(site, node) for node in run.nodes)
    lasting = [node for node in shared.difference(spot_nodes(site)) if _may_last(site, node)]
    return len(lasting) >= max(job.node_count, 1)


def _may_last(site: CheckpointSite, node: str) -> bool:
    pool = site.pool_of.get(node)
    return pool is None or bool(set(site.markets_of(pool)) - {Market.SPOT})


def spot_nodes(site: CheckpointSite) -> list[str]:
    """The nodes whose machines may be taken away; none if the ledger cannot be read."""
    try:
        machines = site.ledger.machines.live()
    except sqlite3.Error as error:
        log.warning("spot machines are not known, because the ledger cannot be read: %s", error)
        return []
    spot_instances = (
        machine.instance for machine in machines if machine.instance.market is Market.SPOT
    )
    return sorted({instance.node for instance in spot_instances if instance.node})


def _move_to_on_demand(site: CheckpointSite, run: JobRun, verdict: UnsavableRun) -> None:
    """First forbid spot machines for the job, then requeue it. Otherwise it could get a spot
    machine again.
    """
    now = site.now()
    rule = Exclusion(
        kind=NO_SPOT, scope=f"job:{run.job}", since=now, until=now + NO_SPOT_RULE_S,
        cause=NotSavable(cause=verdict.cause),
    )  # fmt: skip
    try:
        site.ledger.exclusions.add(rule)
    except sqlite3.Error as error:
        site.recorder.record_run(run, "ckpt-no-move", LedgerNotWritten(error=str(error)))
        return
    # Before the migration, so that no crash makes us move the job twice.
    site.state.put_verdict(replace(verdict, moved=True))
    cause = GoesOnDemand()
    site.state.put(
        Migration(
            run=run, method=verdict.method, threatened=(), reason=cause,
            step=MigrationStep.REQUEUEING,
            began=now, changed=now, cause=ThreatCause.UNSAVABLE, saves=False,
            reached={str(MigrationStep.PLANNED): now, str(MigrationStep.REQUEUEING): now},
        )
    )  # fmt: skip
    site.recorder.record_run(run, "ckpt-on-demand", cause)


def withdraw_verdict(site: CheckpointSite, run: JobRun) -> None:
    """Withdraw the verdict, because a save has succeeded."""
    if run.job not in site.state.unsavable():
        return
    forget(site, run.job)
    site.recorder.record_run(run, "ckpt-savable", JobSavable())
    try:
        _comment(site, run.job, "")
    except SlurmError as error:
        log.warning(
            "the admin comment of a job cannot be removed job=%s error=%s", run.label, error
        )


def forget(site: CheckpointSite, job: int) -> None:
    """Forget the verdict: the job is over, or can be saved."""
    # The verdict first: if the rule cannot be removed now, it ends by itself after NO_SPOT_RULE_S.
    site.state.forget_verdict(job)
    try:
        site.ledger.exclusions.readmit(NO_SPOT, f"job:{job}")
    except sqlite3.Error as error:
        log.warning("the rule against spot machines cannot be removed job=%d error=%s", job, error)
