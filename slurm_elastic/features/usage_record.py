"""Who uses the machines, kept in the ledger for ``cost``: Slurm forgets a job MinJobAge (300 s)
after its end. And counters of what machines and jobs came to.

Times are Slurm's own. A run that Slurm does not tell any more ended by the look that missed it: one
that was requeued, or that ended while slurm-elasticd was away. Slurm's record of a requeued job has
no word of the run before, so a look follows soon after each start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor

from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.cost_notes import note_costs
from slurm_elastic.features.usage_counters import CallTimes, settle
from slurm_elastic.model.memory import Run
from slurm_elastic.model.slurm import ENDED, SlurmJob
from slurm_elastic.policies.money.cost_split import share

PERIOD = 60.0
"""Seconds between two looks; a job is told for MinJobAge after its end."""
PACE = 20.0
"""A look at most takes one part in so many and one of the time."""
RUNS = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "COMPLETING"})
"""States of a job whose start is settled; one that is CONFIGURING waits for its machines."""


def join(site: Site) -> Extensions:
    """Every site records who used its machines."""
    return Extensions(parts=[("usage", lambda worker: UsageRecord(site, worker))])


class UsageRecord(Part):
    """``looks`` is the daemon's task."""

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        self._calls = CallTimes()
        for name, provider in site.providers.items():
            self._calls.watch(name, provider)
        self.looks = SiteTask(
            site, worker, self.look, "usage", period=PERIOD, pace=PACE,
            hurried=site.job_starts.are_due,
        )  # fmt: skip

    def look(self) -> None:
        """Bring the ledger's runs up to date; Slurm is not asked while there is no machine, nor was
        one since the look before.
        """
        site, now = self._site, self._site.now()
        # Before Slurm is read: a job may start in between.
        site.job_starts.look(site.monotonic())
        settle(site.config, site.ledger, now)
        if calls := self._calls.take():
            site.ledger.usage.count(calls)
        before = site.ledger.usage.open_runs()
        if not before and not site.ledger.machines.live(ended_since=now - 3 * PERIOD):
            return
        jobs = site.slurm.jobs(ended=True)
        fresh = news(site, before, jobs, now)
        site.ledger.usage.write(fresh)
        if site.config.books.admin_comment:
            note_costs(site, fresh, jobs)


def news(site: Site, before: Sequence[Run], jobs: Iterable[SlurmJob], now: float) -> list[Run]:
    """The rows that differ from what the ledger has: ``before`` are its open ones."""
    told = [run for job in jobs if (run := run_of(site, job)) is not None]
    since = min((run.end for run in told if run.end is not None), default=now)
    opened = {(run.job, run.begin): run for run in before}
    known = {(run.job, run.begin): run for run in site.ledger.usage.runs(since - 1, now)} | opened
    for run in told:
        opened.pop((run.job, run.begin), None)
    found = [run for run in told if known.get((run.job, run.begin)) != run]
    return found + [replace(run, end=max(run.begin, now)) for run in opened.values()]


def run_of(site: Site, job: SlurmJob) -> Run | None:
    """The run that a job has, or had last, on nodes of ours; None without any."""
    over = job.has_ended
    if not job.start or not (job.states & RUNS or (over and job.states & ENDED)):
        return None
    shares = _shares(site, job)
    if not shares:
        return None
    return Run(
        job=job.id,
        begin=job.start,
        end=max(job.end, job.start) if over else None,
        label=job.label,
        user=job.user,
        uid=job.uid,
        account=job.account,
        partition=job.partitions[0] if job.partitions else "",
        shares=shares,
    )


def _shares(site: Site, job: SlurmJob) -> tuple[tuple[str, int], ...]:
    by_pool: dict[str, list[str]] = {}
    for node in job.nodes:
        pool = site.pool_of.get(node)
        if pool is not None:
            by_pool.setdefault(pool.name, []).append(node)
    found = []
    for name, nodes in by_pool.items():
        pool = site.pools[name]
        part = share(
            job.allocated, len(job.nodes), pool.cpus, pool.real_memory, pool.gres
        )  # fmt: skip
        found.append((compress(nodes), part))
    return tuple(found)
