"""Keep the pending jobs of accounts and users over their budget out of the public clouds.

A node cannot be held for a single account or user, so we change the pending jobs instead. A job
that can also start elsewhere loses the public clouds' partitions from its list. Any other job gets
the end of the day or month as its begin time; Slurm then starts the job by itself even if no daemon
runs. The job has its own values again when the account and user may spend again, or when its list
has no public partition any more (``controller.changed_jobs``). If slurmctld requests a machine for
such a job in between, the request is refused (``admit``) and the job requeued.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.controller.changed_jobs import (
    Evaluate,
    JobChange,
    change_jobs,
    public_partitions,
)
from slurm_elastic.controller.context import Site
from slurm_elastic.model.causes.composed import JobSetAside
from slurm_elastic.model.causes.stops import PayerMaySpend
from slurm_elastic.model.changed_jobs import Barred, ChangedJob
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.changed_jobs import is_waiting, without
from slurm_elastic.policies.money.account_budgets import Overdrawn, barring
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)

CORRELATION = "budget"


def enforce(site: Site, jobs: Sequence[SlurmJob], over: Mapping[str, Overdrawn]) -> None:
    """Restore the jobs whose payers may spend again; defer the pending jobs of the others.
    ``over``: the exhausted budgets by scope. SlurmError if Slurm does not answer.
    """
    public = public_partitions(site)
    candidates = {
        job.id
        for job in jobs
        if over
        and is_waiting(job)
        and not public.isdisjoint(job.partitions)
        and barring(over, job.account, job.user) is not None
    }

    def say(job: SlurmJob, record: ChangedJob, evaluate: Evaluate) -> ChangedJob:
        del evaluate
        others = without(record.wishes, Barred)
        # Use the job's present account, because its user may have changed it.
        limit = barring(over, job.account, job.user)
        wishes = others if limit is None else (*others, Barred(until=limit.until))
        return replace(record, wishes=wishes)

    def report(changes: Sequence[JobChange]) -> None:
        for limit in over.values():
            _report_barred(site, [c for c in changes if _is_barred_by(c, over, limit)], limit)
        _report_restored(site, [c for c in changes if c.is_changed and not c.error and _is_over(c)])

    change_jobs(site, say, candidates=candidates, report=report)


def is_enforcing(site: Site) -> bool:
    """Whether some job has other values because of a budget."""
    return site.ledger.changed_jobs.has_wish(Barred)


def _is_barred_by(change: JobChange, over: Mapping[str, Overdrawn], limit: Overdrawn) -> bool:
    job = change.job
    is_new = any(isinstance(wish, Barred) for wish in change.gained())
    return is_new and change.is_changed and barring(over, job.account, job.user) == limit


def _is_over(change: JobChange) -> bool:
    has_ended = any(isinstance(wish, Barred) for wish in change.lost())
    return has_ended and not any(isinstance(wish, Barred) for wish in change.record.wishes)


def _report_barred(site: Site, changes: Sequence[JobChange], limit: Overdrawn) -> None:
    by_list: dict[tuple[str, ...], list[SlurmJob]] = {}
    for change in changes:
        waits = change.values.begin >= limit.until
        by_list.setdefault(() if waits else change.values.partitions, []).append(change.job)
    for partitions, jobs in by_list.items():
        cause = JobSetAside(limit=limit.cause, partitions=partitions)
        site.record(CORRELATION, "set-aside", [job_subject(job.id) for job in jobs], cause)
        log.info("jobs deferred jobs=%s reason=%s", [job.label for job in jobs], limit.cause)


def _report_restored(site: Site, changes: Sequence[JobChange]) -> None:
    if jobs := [change.job for change in changes]:
        cause = PayerMaySpend()
        site.record(CORRELATION, "let-back", [job_subject(job.id) for job in jobs], cause)
        log.info("deferred jobs restored jobs=%s reason=%s", [job.label for job in jobs], cause)
