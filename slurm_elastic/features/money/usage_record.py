"""Records in the ledger which jobs use the machines, for ``cost``, because Slurm forgets a job
MinJobAge (300 s) after its end. Also updates the counters of use.

All times are Slurm's. If Slurm no longer lists a run, because its job was requeued or ended while
slurm-elasticd was down, the run ends at the time of the look that missed it. Slurm's record of a
requeued job does not contain the earlier run, so a look follows soon after each start of a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor

from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.money.cost_notes import note_costs
from slurm_elastic.features.money.usage_counters import CallTimes, record_reservations, settle
from slurm_elastic.model.gres import gres_requests
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.model.slurm import BOOTS, ENDED, SlurmJob
from slurm_elastic.policies.money.cost_split import share

PERIOD_S = 60.0
"""Seconds between two looks. It must be below MinJobAge, for which Slurm lists an ended job."""
PAUSE_PER_DURATION = 20.0
"""After a look the task pauses this many times as long as it took (see ``rest_after``)."""
RUNS = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "COMPLETING"})
"""States of a started job."""


def join(site: Site) -> Extensions:
    """Join at every site: each records who used its machines."""
    return Extensions(parts=[("usage", lambda worker: UsageRecord(site, worker))])


class UsageRecord(Part):
    """``task``: the periodic task that the daemon runs."""

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        self._calls = CallTimes()
        for name, provider in site.providers.items():
            self._calls.watch(name, provider)
        self.task = SiteTask(
            site, worker, self.look, "usage", period=PERIOD_S, pace=PAUSE_PER_DURATION,
            hurried=site.job_starts.are_due,
        )  # fmt: skip

    def look(self) -> None:
        """Update the ledger's runs and counters. Slurm is not read if there is no open run and no
        machine has existed lately.
        """
        site, now = self._site, self._site.now()
        # Note the time of the look before Slurm is read, because a job may start in between.
        site.job_starts.look(site.monotonic())
        record_reservations(site.config, site.ledger, now)
        settle(site.config, site.ledger, now)
        if calls := self._calls.take():
            site.ledger.usage.count(calls)
        before = site.ledger.usage.open_runs()
        if not before and not site.ledger.machines.live(ended_since=now - 3 * PERIOD_S):
            return
        jobs = site.slurm.jobs(ended=True)
        changed_runs = news(site, before, jobs, now)
        site.ledger.usage.write(changed_runs)
        if site.config.accounting.admin_comment:
            note_costs(site, changed_runs, jobs)


def news(
    site: Site, before: Sequence[ChargedRun], jobs: Iterable[SlurmJob], now: float
) -> list[ChargedRun]:
    """The runs that differ from the ledger's rows. ``before``: the ledger's open runs."""
    slurm_runs = [run for job in jobs if (run := run_of(site, job)) is not None]
    since = min((run.end for run in slurm_runs if run.end is not None), default=now)
    opened = {(run.job, run.begin): run for run in before}
    ledger_runs = {
        (run.job, run.begin): run for run in site.ledger.usage.runs(since - 1, now)
    } | opened
    for run in slurm_runs:
        opened.pop((run.job, run.begin), None)
    changed_runs = [run for run in slurm_runs if ledger_runs.get((run.job, run.begin)) != run]
    return changed_runs + [replace(run, end=max(run.begin, now)) for run in opened.values()]


def run_of(site: Site, job: SlurmJob) -> ChargedRun | None:
    """The present or last run of a job on nodes of ours; None if it has none."""
    has_ended = job.has_ended
    # Since 23.11 Slurm reports RUNNING beside CONFIGURING (25.11, measured). Such a job still waits
    # for its machines, and Slurm sets its start again when they are up.
    if BOOTS in job.states:
        return None
    if not job.start or not (job.states & RUNS or (has_ended and job.states & ENDED)):
        return None
    shares = _shares(site, job)
    if not shares:
        return None
    return ChargedRun(
        job=job.id,
        begin=job.start,
        end=max(job.end, job.start) if has_ended else None,
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
    shares = []
    for name, nodes in by_pool.items():
        pool = site.pools[name]
        node_share = share(
            _allocated(job), len(job.nodes), pool.cpus, pool.real_memory, pool.gres
        )  # fmt: skip
        shares.append((compress(nodes), node_share))
    return tuple(shares)


def _allocated(job: SlurmJob) -> str:
    """The job's resources on all nodes. Slurm reports gres only if AccountingStorageTRES names
    them, which needs slurmdbd (25.11, measured). Otherwise the gres that the job asks for count.
    """
    if not job.allocated or "gres/" in job.allocated:
        return job.allocated
    each = [f"gres/{name}={count * len(job.nodes)}" for name, count in gres_requests(job.gres)]
    together = [f"gres/{name}={count}" for name, count in gres_requests(job.job_gres)]
    return ",".join((job.allocated, *each, *together))
