"""Makes the rows of ``slurm-elastic mine`` from Slurm's jobs, their costs and saves. Pure."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic.base.billing import billed_dollars
from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.features.money.job_costs import JobCost
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.waits.wait import Waits
from slurm_elastic.watch.view import StatusView
from slurm_elastic.watch.view.job_saves import JobSaves
from slurm_elastic.watch.view.own_jobs import ENDED, RUNS, WAITS, OwnJob, StartForecast

_ORDER = (RUNS, WAITS, ENDED)


class OwnJobsReading(Struct, frozen=True, kw_only=True):
    """The sources of the rows.

    ``jobs``: the user's jobs that Slurm has. ``runs``: the user's runs on machines of ours, some of
    jobs that Slurm no longer has. ``costs``, ``rates`` ($/h now), ``starts``: by job.
    ``node_prices``: $/h of the machine of a node. ``waits``: answers why jobs wait.
    """

    now: float
    waits: Waits
    jobs: Sequence[SlurmJob] = ()
    runs: Sequence[ChargedRun] = ()
    costs: Mapping[int, JobCost] = field(default_factory=dict)
    rates: Mapping[int, float] = field(default_factory=dict)
    node_prices: Mapping[str, float] = field(default_factory=dict)
    starts: Mapping[int, StartForecast] = field(default_factory=dict)


def own_job_rows(config: Config, reading: OwnJobsReading, view: StatusView) -> list[OwnJob]:
    """All rows: running jobs, waiting jobs as Slurm orders them, then ended jobs, newest first."""
    rows = [*_Rows(config, reading, view).of_slurm(), *_of_ledger(config, reading)]
    return sorted(rows, key=_place)


def _place(row: OwnJob) -> tuple[int, float, int]:
    return _ORDER.index(row.state), -row.ended, row.id


def place_of(job: SlurmJob) -> tuple[int, float, int]:
    """The place of the job's row among all rows."""
    state = ENDED if job.has_ended else WAITS if "PENDING" in job.states else RUNS
    return _ORDER.index(state), -job.end if job.has_ended else 0.0, job.id


class _Rows:
    def __init__(self, config: Config, reading: OwnJobsReading, view: StatusView) -> None:
        self._config, self._reading = config, reading
        self._cloud_of = {n: p.cloud for p in domain_pools(config, expand) for n in p.nodes}
        has_error = view.checkpoints_error is not None
        self._saves = JobSaves(config, view.checkpoints, reading.now, has_error=has_error)
        self._waits = reading.waits

    def of_slurm(self) -> Iterator[OwnJob]:
        for job in self._reading.jobs:
            if "PENDING" in job.states:
                yield self._waiting(job)
            else:
                yield self._running_or_ended(job)

    def _row(self, job: SlurmJob, state: str, **fields: object) -> OwnJob:
        cost = self._reading.costs.get(job.id, JobCost())
        row = OwnJob(
            id=job.id, label=job.label, state=state, name=job.name, user=job.user,
            account=job.account, tasks=job.tasks, slurm_state=" ".join(sorted(job.states)),
            partitions=job.partitions, nodes=compress(job.nodes),
            clouds=_clouds(job.nodes, self._cloud_of),
            submitted=job.submit, limit=job.limit, micro=cost.micro,
        )  # fmt: skip
        return replace(row, **fields)

    def _running_or_ended(self, job: SlurmJob) -> OwnJob:
        if job.has_ended:
            return self._row(job, ENDED, started=job.start, ended=job.end, reason=_failed_by(job))
        return self._row(
            job, RUNS, started=job.start, at_most=self._at_most(job), save=self._saves.of(job)
        )

    def _at_most(self, job: SlurmJob) -> int | None:
        """The largest cost of a started job: its cost so far, and its share of its machines' price
        until its time limit. None if that is unknown.
        """
        micro = self._reading.costs.get(job.id, JobCost()).micro
        rate = self._reading.rates.get(job.id)
        if rate is None:
            return self._at_most_on_whole_machines(job, micro)
        if not rate:
            return micro
        if (ends_at := job.ends_at_latest) is None:
            return None
        left_s = max(ends_at - self._reading.now, 0.0)
        return micro + round(billed_dollars(rate, left_s) * 1e6)

    def _at_most_on_whole_machines(self, job: SlurmJob, micro: int) -> int | None:
        """The bound of a job whose run is not in the ledger yet, which takes up to a minute: its
        share of its machines is not known, so the whole price counts, from its start. Nodes of the
        site itself cost nothing.
        """
        prices = self._reading.node_prices
        nodes = set(job.nodes).intersection(self._cloud_of)
        if not nodes <= prices.keys():
            return None
        rate = sum(prices[node] for node in nodes)
        if not rate:
            return micro
        if (ends_at := job.ends_at_latest) is None:
            return None
        return micro + round(billed_dollars(rate, ends_at - job.start) * 1e6)

    def _waiting(self, job: SlurmJob) -> OwnJob:
        reading, wait = self._reading, self._waits.of(job)
        start = reading.starts.get(job.id)
        micro = reading.costs.get(job.id, JobCost()).micro
        save = self._saves.of(job)
        has_run = save.number is not None or job.restarts > 0
        at_most = None
        if start is not None and start.high is not None and job.limit is not None:
            at_most = micro + round(start.high * 1e6) * job.tasks
        return self._row(
            job, WAITS, start=start, reason=wait.reason, advice=wait.command, stuck=wait.is_stuck,
            # The start of a held job depends on its release, so its begin time promises nothing.
            begin=job.begin if job.begin > reading.now and not job.is_held else 0.0,
            at_most=at_most, retry_at=wait.retry_at if wait.obstacles else None,
            save=save if has_run else None,
        )  # fmt: skip


def _failed_by(job: SlurmJob) -> str:
    """How a failed job ended, such as ``by SIGKILL``. "" if Slurm's state says it, or if sacct is
    the source, which we do not ask for exit codes.
    """
    if "FAILED" not in job.states:
        return ""
    if job.died_of in set(signal.Signals):
        return f"by {signal.Signals(job.died_of).name}"
    return f"with exit code {job.exit_code}" if job.exit_code else ""


def _of_ledger(config: Config, reading: OwnJobsReading) -> Iterator[OwnJob]:
    """The jobs that only the ledger still knows. Slurm keeps ended jobs for MinJobAge (300 s)."""
    listed = {job.id for job in reading.jobs}
    cloud_of = {n: p.cloud for p in domain_pools(config, expand) for n in p.nodes}
    runs_of: defaultdict[int, list[ChargedRun]] = defaultdict(list)
    for run in reading.runs:
        if run.job not in listed:
            runs_of[run.job].append(run)
    for job, runs in runs_of.items():
        yield _of_runs(job, sorted(runs, key=lambda run: run.begin), cloud_of, reading)


def _of_runs(
    job: int, runs: Sequence[ChargedRun], cloud_of: Mapping[str, str], reading: OwnJobsReading
) -> OwnJob:
    last_run = runs[-1]
    nodes = [node for nodes, _ in last_run.shares for node in expand(nodes)]
    return OwnJob(
        id=job, label=last_run.label or str(job), user=last_run.user, account=last_run.account,
        state=RUNS if last_run.end is None else ENDED,
        partitions=(last_run.partition,) if last_run.partition else (),
        nodes=compress(nodes), clouds=_clouds(nodes, cloud_of),
        started=runs[0].begin, ended=last_run.end or 0.0,
        micro=reading.costs.get(job, JobCost()).micro,
    )  # fmt: skip


def _clouds(nodes: Iterable[str], cloud_of: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted({cloud_of[node] for node in nodes if node in cloud_of}))
