"""Keep the pending jobs of accounts and users over their budget out of the public clouds.

A node cannot be held for a single account or user, so we change the pending jobs instead. A job
that can also start elsewhere loses the public clouds' partitions from its list. Any other job gets
the end of the day or month as its begin time; Slurm then starts the job by itself even if no daemon
runs. The old values are restored when the account and user may spend again. If slurmctld requests a
machine for such a job in between, the request is refused (``admit``) and the job requeued.

Measured on Slurm 22.05.8: partitions and begin time can be changed only while a job is pending
(else exit 1, "Job is no longer pending execution"). A change of an array's base id changes all
pending tasks and reports an error for running ones, so the error does not show what was changed.
The next look finds the jobs that still need a change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.controller.context import Site
from slurm_elastic.features.job_changes import change_pending
from slurm_elastic.model.causes.composed import JobSetAside
from slurm_elastic.model.causes.stops import PayerMaySpend
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.memory import Deferral
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.money.account_budgets import Overdrawn, barring
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)

CORRELATION = "budget"
BEGIN_TOLERANCE_S = 60.0
"""Seconds by which a begin time may differ from the time that we set."""


def enforce(
    site: Site, jobs: Sequence[SlurmJob], over: Mapping[str, Overdrawn], now: float
) -> None:
    """Restore the jobs whose payers may spend again; defer the pending jobs of the others.
    ``over``: the exhausted budgets by scope. SlurmError if Slurm does not answer.
    """
    public = {c.partition_name for c in site.config.clouds if c.location is Location.PUBLIC}
    rows = {row.job: row for row in site.ledger.deferred.jobs()}
    # Before we forget or restore an array: after that, nothing shows the list of its tasks.
    task_rows = _rows_of_tasks(jobs, rows, public)
    if task_rows:
        site.ledger.deferred.defer(task_rows)
        rows |= {row.job: row for row in task_rows}
    queue = {job.id: job for job in jobs}
    missing_jobs = [job for job in rows if job not in queue]
    if missing_jobs:
        site.ledger.deferred.forget(missing_jobs)
    queued_rows = [(row, queue[row.job]) for row in rows.values() if row.job in queue]
    # Use the job's present account, because its user may have changed it since the deferral.
    bars = {job.id: barring(over, job.account, job.user) for job in jobs}
    _restore(site, [(row, job) for row, job in queued_rows if bars[job.id] is None], public, now)
    for limit in over.values():
        jobs_to_defer = [
            j for j in jobs if bars[j.id] == limit and _is_to_go(j, public, limit, now)
        ]
        if jobs_to_defer:
            _defer(site, jobs_to_defer, rows, public, limit, now)


def _rows_of_tasks(
    jobs: Sequence[SlurmJob], rows: Mapping[int, Deferral], public: set[str]
) -> list[Deferral]:
    """Return the rows of the tasks whose list was reduced as part of their array.

    slurmctld gives a task of an array a job id of its own when it starts. The id of the array stays
    with the tasks that still wait.
    """
    return [
        replace(rows[job.array], job=job.id)
        for job in jobs
        if job.id not in rows
        and job.array in rows
        and _is_reduced(job.partitions, rows[job.array], public)
    ]


def _is_reduced(partitions: Sequence[str], row: Deferral, public: set[str]) -> bool:
    """Whether the list may be the saved list without the public partitions, as we have set it. A
    cloud may have left the configuration since, so any shorter list without a public one counts.
    """
    return set(partitions) < set(row.partitions) and public.isdisjoint(partitions)


def _is_to_go(job: SlurmJob, public: set[str], limit: Overdrawn, now: float) -> bool:
    """Whether slurmctld might give the job a node of a public cloud."""
    if "PENDING" not in job.states or "COMPLETING" in job.states:
        return False
    late = job.begin > now and job.begin >= limit.until - BEGIN_TOLERANCE_S
    return not public.isdisjoint(job.partitions) and not late


def _defer(
    site: Site,
    jobs: Sequence[SlurmJob],
    rows: Mapping[int, Deferral],
    public: set[str],
    limit: Overdrawn,
    now: float,
) -> None:
    public_nodes = {n for n, p in site.pool_of.items() if site.is_public(p)}
    by_list: dict[tuple[str, ...], list[SlurmJob]] = {}
    for job in jobs:
        other_partitions = tuple(p for p in job.partitions if p not in public)
        # A job that requires nodes of a public cloud keeps its partitions, because no other
        # partition contains these nodes.
        by_list.setdefault(
            other_partitions if public_nodes.isdisjoint(job.required) else (), []
        ).append(job)
    for other_partitions, same_list_jobs in by_list.items():
        # Save the old values before the change: after a crash in between, they exist only here.
        site.ledger.deferred.defer(
            [_deferral(rows.get(j.id), j, other_partitions, limit, now) for j in same_list_jobs]
        )
        subjects = [job_subject(job.id) for job in same_list_jobs]
        cause = JobSetAside(limit=limit.cause, partitions=other_partitions)
        site.record(CORRELATION, "set-aside", subjects, cause)
        labels = [job.label for job in same_list_jobs]
        log.info("jobs deferred jobs=%s reason=%s", labels, limit.cause)
        if other_partitions:
            _narrow(site, same_list_jobs, rows, other_partitions, limit, now)
        else:
            change_pending(site, same_list_jobs, begin_in=limit.until - now)


def _deferral(
    earlier: Deferral | None,
    job: SlurmJob,
    other_partitions: Sequence[str],
    limit: Overdrawn,
    now: float,
) -> Deferral:
    """Return the values that the job gets back: its user's latest ones."""
    return Deferral(
        job=job.id,
        account=job.account,
        # The list has a public partition, so it is the user's, also if we have changed an earlier
        # list.
        partitions=job.partitions if other_partitions else (),
        begin=_user_begin(earlier, job, now),
        until=0.0 if other_partitions else limit.until,
    )


def _user_begin(earlier: Deferral | None, job: SlurmJob, now: float) -> float:
    """Return the begin time that the job's user has set, 0 if none."""
    # Slurm itself sets a begin time on a requeued job. To restore it would delay the job for
    # nothing.
    is_set = job.begin > now and not job.is_requeue_hold(now)
    if is_set and not (earlier and _is_ours(job.begin, earlier)):
        return job.begin
    return earlier.begin if earlier else 0.0


def _is_ours(begin: float, row: Deferral) -> bool:
    """Whether we have set this begin time."""
    return abs(begin - row.until) <= BEGIN_TOLERANCE_S


def _narrow(
    site: Site,
    jobs: Sequence[SlurmJob],
    rows: Mapping[int, Deferral],
    other_partitions: Sequence[str],
    limit: Overdrawn,
    now: float,
) -> None:
    """Reduce the jobs' partition lists. If Slurm refuses this for a job (EnforcePartLimits and the
    limits of the partitions), delay its begin time instead. ``rows``: the values from before
    earlier changes.
    """
    refused = change_pending(site, jobs, partitions=other_partitions)
    for job in jobs:
        if job.id in refused:
            # Save first: after a crash in between, the job would keep a begin time of ours.
            site.ledger.deferred.defer([_deferral(rows.get(job.id), job, (), limit, now)])
            change_pending(site, [job], begin_in=limit.until - now)
    # The jobs start in other partitions now, so they need not wait for the end of a requeue's
    # delay.
    held = [job for job in jobs if job.is_requeue_hold(now) and job.id not in refused]
    if held:
        change_pending(site, held, begin_in=0.0)


def _restore(
    site: Site, queued_rows: Sequence[tuple[Deferral, SlurmJob]], public: set[str], now: float
) -> None:
    """Restore the saved values, with one command for all jobs that get the same value. If Slurm
    refuses to change a job, the next look retries it.
    """
    # Keep the row of a started job with reduced partitions: after a requeue the job would still
    # have the reduced list.
    started = [
        row.job for row, job in queued_rows if "PENDING" not in job.states and not row.partitions
    ]
    if started:
        site.ledger.deferred.forget(started)
    pending = [(row, job) for row, job in queued_rows if "PENDING" in job.states]
    lists: dict[tuple[str, ...], list[SlurmJob]] = {}
    begins: dict[float, list[SlurmJob]] = {}
    for row, job in pending:
        # Do not overwrite a list or a begin time that the user has changed since our change.
        if _is_reduced(job.partitions, row, public):
            lists.setdefault(row.partitions, []).append(job)
        if job.begin > now and _is_ours(job.begin, row):
            begins.setdefault(max(row.begin - now, 0.0), []).append(job)
    refused: set[int] = set()
    for names, same_value_jobs in lists.items():
        refused |= change_pending(site, same_value_jobs, partitions=names)
    for seconds, same_value_jobs in begins.items():
        refused |= change_pending(site, same_value_jobs, begin_in=seconds)
    jobs = [job for _, job in pending if job.id not in refused]
    if jobs:
        site.ledger.deferred.forget([job.id for job in jobs])
        cause = PayerMaySpend()
        site.record(CORRELATION, "let-back", [job_subject(job.id) for job in jobs], cause)
        log.info("deferred jobs restored jobs=%s reason=%s", [job.label for job in jobs], cause)
