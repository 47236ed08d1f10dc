"""Jobs of accounts and users over their budget: kept from the public clouds until that ends.

Nodes cannot be held for one account or user alone, so its pending jobs are changed instead. One
that may start elsewhere, too, loses the public clouds' partitions from its list; any other gets the
end of the day or month as its begin time, which Slurm keeps to by itself, should no daemon run
then. The values that it had before are put back when its account and user may spend again. Machines
that slurmctld asks for in between are refused (``admit``), and the jobs requeued.

Measured on 22.05.8: both can be changed on a pending job only ("Job is no longer pending execution"
else, with exit 1); of an array's base id all pending tasks are changed and running ones complained
of, so the error says nothing. The next look finds what is left to do.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.context import Site
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.memory import Deferral
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.money.account_budgets import Overdrawn, barring
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)

CORRELATION = "budget"
NEAR = 60.0
"""Seconds by which a begin time may differ from what we asked for."""


# At each look.


def enforce(
    site: Site, jobs: Sequence[SlurmJob], over: Mapping[str, Overdrawn], now: float
) -> None:
    """Let back whose payers may spend again, set aside whose may not. ``over``: by scope."""
    rows = {row.job: row for row in site.ledger.deferred.jobs()}
    queue = {job.id: job for job in jobs}
    gone = [job for job in rows if job not in queue]
    if gone:
        site.ledger.deferred.let_back(gone)
    found = [(row, queue[row.job]) for row in rows.values() if row.job in queue]
    # By the account that it has now: its user may have changed it.
    bars = {job.id: barring(over, job.account, job.user) for job in jobs}
    _restore(site, [(row, job) for row, job in found if bars[job.id] is None], now)
    public = {c.partition_name for c in site.config.clouds if c.location is Location.PUBLIC}
    for why in over.values():
        mine = [j for j in jobs if bars[j.id] == why and _is_to_go(j, public, why, now)]
        if mine:
            _defer(site, mine, rows, public, why, now)


def _is_to_go(job: SlurmJob, public: set[str], why: Overdrawn, now: float) -> bool:
    """Whether slurmctld might give the job a node of a public cloud."""
    if "PENDING" not in job.states or "COMPLETING" in job.states:
        return False
    late = job.begin > now and job.begin >= why.until - NEAR
    return not public.isdisjoint(job.partitions) and not late


def _defer(
    site: Site,
    jobs: Sequence[SlurmJob],
    rows: Mapping[int, Deferral],
    public: set[str],
    why: Overdrawn,
    now: float,
) -> None:
    ours = {n for n, p in site.pool_of.items() if site.is_public(p)}
    by_list: dict[tuple[str, ...], list[SlurmJob]] = {}
    for job in jobs:
        rest = tuple(p for p in job.partitions if p not in public)
        # One that names nodes of a public cloud keeps its partition: Slurm finds them in no other.
        by_list.setdefault(rest if ours.isdisjoint(job.required) else (), []).append(job)
    for rest, some in by_list.items():
        # Before the change: after it nobody else knows what the jobs had.
        site.ledger.deferred.defer([_deferral(rows.get(j.id), j, rest, why, now) for j in some])
        words = f"it may start in {', '.join(rest)}" if rest else "it begins then"
        subjects = [job_subject(job.id) for job in some]
        site.record(CORRELATION, "set-aside", subjects, f"{why.reason}; {words}")
        log.info("set aside jobs=%s reason=%s", [job.label for job in some], why.reason)
        if rest:
            _narrow(site, some, rows, rest, why, now)
        else:
            _change(site, some, begin_in=why.until - now)


def _deferral(
    old: Deferral | None, job: SlurmJob, rest: Sequence[str], why: Overdrawn, now: float
) -> Deferral:
    """The values to put back: as it was before the first change."""
    # A requeue hold is Slurm's own: to put it back would have the job wait for nothing.
    own = job.begin if job.begin > now and not job.is_requeue_hold(now) else 0.0
    return Deferral(
        job=job.id,
        account=job.account,
        partitions=(old.partitions if old else ()) or (job.partitions if rest else ()),
        begin=old.begin if old else own,
        until=0.0 if rest else why.until,
    )


def _narrow(
    site: Site,
    jobs: Sequence[SlurmJob],
    rows: Mapping[int, Deferral],
    rest: Sequence[str],
    why: Overdrawn,
    now: float,
) -> None:
    """Where a partition refuses a job (its limits, with EnforcePartLimits), that one waits; what it
    had before an earlier change (``rows``) stays in mind.
    """
    refused = _change(site, jobs, partitions=rest)
    for job in jobs:
        if job.id in refused:
            _change(site, [job], begin_in=why.until - now)
            site.ledger.deferred.defer([_deferral(rows.get(job.id), job, (), why, now)])
    # They start elsewhere, and need not wait out their requeue.
    held = [job for job in jobs if job.is_requeue_hold(now) and job.id not in refused]
    if held:
        _change(site, held, begin_in=0.0)


def _restore(site: Site, found: Sequence[tuple[Deferral, SlurmJob]], now: float) -> None:
    """All of it in as few commands as there are different jobs. One that Slurm refuses to change is
    tried again.
    """
    # A running one may be requeued, and would find no other place: its partitions stay in mind.
    started = [row.job for row, job in found if "PENDING" not in job.states and not row.partitions]
    if started:
        site.ledger.deferred.let_back(started)
    pending = [(row, job) for row, job in found if "PENDING" in job.states]
    lists: dict[tuple[str, ...], list[SlurmJob]] = {}
    begins: dict[float, list[SlurmJob]] = {}
    for row, job in pending:
        # A list or a begin time that its user has changed since is left as it is.
        if row.partitions and set(job.partitions) < set(row.partitions):
            lists.setdefault(row.partitions, []).append(job)
        if row.until and job.begin > now and abs(job.begin - row.until) <= NEAR:
            begins.setdefault(max(row.begin - now, 0.0), []).append(job)
    refused: set[int] = set()
    for names, some in lists.items():
        refused |= _change(site, some, partitions=names)
    for seconds, some in begins.items():
        refused |= _change(site, some, begin_in=seconds)
    jobs = [job for _, job in pending if job.id not in refused]
    if jobs:
        site.ledger.deferred.let_back([job.id for job in jobs])
        why = "its account and user may start new machines again"
        site.record(CORRELATION, "let-back", [job_subject(job.id) for job in jobs], why)
        log.info("let back jobs=%s reason=%s", [job.label for job in jobs], why)


def _change(
    site: Site,
    jobs: Sequence[SlurmJob],
    *,
    partitions: Sequence[str] = (),
    begin_in: float | None = None,
) -> set[int]:
    """In one command, or one by one if that fails. Returns the jobs that Slurm refuses to change;
    one that does not answer at all ends the look (SlurmError).
    """
    ids = [job.id for job in jobs]
    try:
        site.slurm.change_pending(ids, partitions=partitions, begin_in=begin_in)
    except SlurmError as error:
        if error.unanswered:
            raise
        if len(jobs) > 1:
            alone = (_change(site, [j], partitions=partitions, begin_in=begin_in) for j in jobs)
            return set().union(*alone)
        log.warning("job not changed job=%s error=%s", jobs[0].label, error)
        return set(ids)
    return set()
