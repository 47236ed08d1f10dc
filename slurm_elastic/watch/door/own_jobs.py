"""The jobs of one user with cost, expected start, reason and saves, from Slurm and the records.

slurm-elasticd must call ``read_own_jobs`` with ``run_bounded``: it imports the simulator.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.config import Config
from slurm_elastic.features.money.job_costs import costs_of_jobs, node_prices, rates_of_jobs
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import Reservation, SlurmJob
from slurm_elastic.policies.launch.habits import Habits
from slurm_elastic.policies.launch.time_limits import default_limits
from slurm_elastic.policies.launch.waiting import fixed_arrays, is_counted
from slurm_elastic.policies.money.account_budgets import Overdrawn, barring
from slurm_elastic.slurm.client.accounted_jobs import EndedJobsCli
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.door.pricing import (
    MOST_ASKED,
    Moment,
    prices_of,
    seen_now,
    sound_ask,
)
from slurm_elastic.watch.door.questions import (
    KNOWN_JOBS,
    OwnJobsAsk,
    PartitionPrice,
    PriceAsk,
)
from slurm_elastic.watch.door.records import LAST, opened
from slurm_elastic.watch.door.visibility import Viewer, own_ask
from slurm_elastic.watch.view import Facts, status_view
from slurm_elastic.watch.view.kept import waits_of
from slurm_elastic.watch.view.own_job_rows import OwnJobsReading, own_job_rows, place_of
from slurm_elastic.watch.view.own_jobs import MAX_ROWS, OwnJobs, StartForecast

LOOKED_AT_AFTER_S = 60.0
"""Slurm has tried to start a job in this time, because its main scheduler runs at least once a
minute.
"""
FORECASTS_FOR_S = 4.0
"""No further start is forecast after this time: one with a long queue takes a second."""


class SlurmReading(Struct, frozen=True, kw_only=True):
    """Slurm's part: ``jobs``, ended ones too, and the ``moment`` for forecasts (None: none waits).

    ``users``: the owners of all jobs, for users who may see them. ``default_times``,
    ``max_times``: time limits (s) by partition. ``reservations``, ``partition_states``: as in
    ``Facts``. ``fixed_arrays``: of all users, the arrays of which a task has started. ``error``:
    Slurm did not answer.
    """

    jobs: Sequence[SlurmJob] = ()
    users: tuple[str, ...] = ()
    moment: Moment | None = None
    default_times: Mapping[str, float | None] = field(default_factory=dict)
    max_times: Mapping[str, float | None] = field(default_factory=dict)
    reservations: Sequence[Reservation] = ()
    partition_states: Mapping[str, str] = field(default_factory=dict)
    fixed_arrays: frozenset[int] = frozenset()
    error: str = ""


class Subject(Struct, frozen=True, kw_only=True):
    """The user whose jobs are asked for: ``uid``, or else ``name`` ("": all users).

    ``viewer``: the rights of the user who asks (None: may see all jobs). ``job``: only this job.
    """

    name: str
    uid: int | None = None
    viewer: Viewer | None = None
    job: int | None = None

    def includes(self, row: SlurmJob | ChargedRun) -> bool:
        """Whether the question is about this job, or about the job of this run."""
        number = row.id if isinstance(row, SlurmJob) else row.job
        is_theirs = row.uid == self.uid if self.uid is not None else self.name in ("", row.user)
        return is_theirs and self.job in (None, number)


def subject_of(ask: OwnJobsAsk, uid: int, name: str, viewer: Viewer | None) -> Subject:
    """The subject of a question by the user ``uid``, who is called ``name``.

    SlurmElasticError if ``viewer`` may not see these jobs, or if there can be no such job.
    """
    if ask.job is not None and not 0 <= ask.job < MOST_ASKED:
        raise SlurmElasticError(f"job is {str(ask.job)[:40]}, expected the number of a job")
    is_own = not ask.everyone and ask.user in ("", name)
    if viewer is not None and not is_own:
        raise SlurmElasticError("only root, SlurmUser, operators and viewers see jobs of others")
    if ask.everyone or (viewer is None and ask.job is not None):
        return Subject(name="", job=ask.job)
    # Compare the uid, because the kernel vouches for it.
    own_uid = uid if is_own else None
    return Subject(name=ask.user or name, uid=own_uid, viewer=viewer, job=ask.job)


def slurm_reading(
    config: Config,
    slurm: Slurm,
    now: float,
    habits: Habits | None = None,
    subject: Subject | None = None,
) -> SlurmReading:
    """Read Slurm's part once, for one ``subject`` or (None) for all users."""
    try:
        jobs = slurm.jobs(ended=True)
        if subject is not None and not _any_waits(jobs, subject):
            return SlurmReading(jobs=jobs)  # the habits alone may take seconds
        live = [job for job in jobs if not job.has_ended]
        return SlurmReading(
            jobs=jobs, moment=seen_now(config, slurm, now, habits, live),
            default_times=slurm.default_times(), max_times=slurm.max_times(),
            reservations=slurm.reservations(), partition_states=slurm.partition_states(),
        )  # fmt: skip
    except SlurmError as error:
        return SlurmReading(error=str(error))


def _any_waits(jobs: Iterable[SlurmJob], subject: Subject) -> bool:
    return any("PENDING" in job.states and subject.includes(job) for job in jobs)


def narrowed(slurm: SlurmReading, facts: Facts, subject: Subject) -> tuple[SlurmReading, Facts]:
    """The parts of both readings that the subject's rows need.

    slurm-elasticd sends them to another process, which takes as long as they are large.
    """
    jobs = [job for job in slurm.jobs if subject.includes(job)]
    names = {job.user for job in slurm.jobs if job.user} if subject.viewer is None else ()
    slurm = replace(
        slurm, jobs=jobs, users=tuple(sorted(names)), fixed_arrays=fixed_arrays(slurm.jobs)
    )
    if slurm.error or _any_waits(jobs, subject):
        return slurm, facts
    nodes = {node for job in jobs for node in job.nodes}
    machines = tuple(m for m in facts.machines if m.instance.node in nodes)
    return replace(slurm, moment=None), replace(facts, machines=machines)


def read_own_jobs(
    config: Config, ask: OwnJobsAsk, subject: Subject, slurm: SlurmReading, facts: Facts
) -> OwnJobs:
    """The rows of the jobs that are asked for. SlurmElasticError if the ledger cannot be read, or
    for an impossible time.

    ``slurm`` and ``facts`` are ``narrowed``, and ``facts`` to the part that the user may see.
    """
    now = facts.now
    if not 0 <= ask.since <= LAST:
        raise SlurmElasticError(f"since is {ask.since:g}, expected a Unix time from 0 to {LAST}")
    jobs = [job for job in slurm.jobs if not job.has_ended or job.end >= ask.since]
    jobs += _accounted(config, ask, subject, {job.id for job in slurm.jobs})
    # A user may have tens of thousands of waiting jobs, and each row is work.
    jobs.sort(key=place_of)
    cut = {job.id for job in jobs[MAX_ROWS:]}
    del jobs[MAX_ROWS:]
    nodes = slurm.moment.nodes if slurm.moment else None
    error = slurm.error or None
    facts = replace(
        facts, jobs=jobs, nodes=nodes, slurm_error=error, reservations=slurm.reservations,
        partition_states=slurm.partition_states, max_times=slurm.max_times,
    )  # fmt: skip
    view = status_view(config, facts)
    with opened(config) as ledger:
        runs = [run for run in _runs(ledger, ask, subject, now) if run.job not in cut]
        numbers = {run.job: run.uid for run in runs} | {job.id: job.uid for job in jobs}
        affordable = [_affordable(config, job, facts.obstacles.payers) for job in jobs]
        ends = {job.id: job.end for job in jobs if job.has_ended and job.end}
        reading = OwnJobsReading(
            now=now, jobs=jobs, runs=runs,
            waits=waits_of(config, facts, slurm.fixed_arrays),
            costs=costs_of_jobs(config, ledger, numbers, now, ends),
            rates=rates_of_jobs(ledger, numbers, facts.machines),
            node_prices=node_prices(facts.machines),
            starts=_starts(config, slurm, subject, affordable),
        )  # fmt: skip
    rows = own_job_rows(config, reading, view)
    return OwnJobs(
        at=now, user=subject.name, since=ask.since, jobs=tuple(rows[:MAX_ROWS]),
        left_out=len(cut) + max(len(rows) - MAX_ROWS, 0), slurm_error=slurm.error,
        users=slurm.users, end_only=str(facts.end_only or ""),
    )  # fmt: skip


def _accounted(
    config: Config, ask: OwnJobsAsk, subject: Subject, listed: Collection[int]
) -> list[SlurmJob]:
    """The ended jobs that only slurmdbd still has; none without slurmdbd, or for all users."""
    if subject.job is not None or (subject.uid is None and not subject.name):
        return []
    user = subject.name if subject.uid is None else str(subject.uid)
    with contextlib.suppress(SlurmError):
        ended_jobs = EndedJobsCli(config.slurm).ended_jobs(user, ask.since)
        return [job for job in ended_jobs if job.id not in listed and subject.includes(job)]
    return []


def _runs(ledger: Ledger, ask: OwnJobsAsk, subject: Subject, now: float) -> tuple[ChargedRun, ...]:
    """The runs that ended after ``ask.since``. SlurmElasticError if the ledger cannot be read."""
    runs = ledger.usage.runs(ask.since, now) if ask.job is None else ledger.usage.runs_of(ask.job)
    return tuple(run for run in runs if subject.includes(run))


def _affordable(config: Config, job: SlurmJob, payers: Mapping[str, Overdrawn]) -> SlurmJob:
    """The job without public clouds, if its budget is spent: it does not start there."""
    if "PENDING" not in job.states or barring(payers, job.account, job.user) is None:
        return job
    public = {c.partition_name for c in config.clouds if c.location is Location.PUBLIC}
    return replace(job, partitions=tuple(name for name in job.partitions if name not in public))


def _starts(
    config: Config, slurm: SlurmReading, subject: Subject, jobs: Sequence[SlurmJob]
) -> dict[int, StartForecast]:
    """The forecasts of the waiting jobs, in Slurm's order, until FORECASTS_FOR_S are over."""
    moment, starts = slurm.moment, dict[int, StartForecast]()
    if moment is None:
        return starts
    until = time.monotonic() + FORECASTS_FOR_S
    waiting = [job for job in jobs if "PENDING" in job.states and is_counted(job, moment.now)]
    for job in sorted(waiting, key=lambda job: (-job.priority, job.submit, job.id)):
        if time.monotonic() > until:
            break
        with contextlib.suppress(SlurmElasticError, sqlite3.Error):
            ask = sound_ask(_price_ask(config, slurm, subject, job))
            start = _earliest(prices_of(config, ask, moment))
            if start is not None and not _is_refuted(job, start, moment.now):
                starts[job.id] = start
    return starts


def _is_refuted(job: SlurmJob, start: StartForecast, now: float) -> bool:
    """Whether the forecast says "now" of a job for which Slurm has found no nodes, or which it has
    left waiting for a while. Slurm sees what the forecast does not count: memory, features, nodes
    that the job excludes.
    """
    waited_s = now - max(job.submit, job.eligible)
    is_examined = job.wait_reason.is_for_nodes or waited_s > LOOKED_AT_AFTER_S
    return start.seconds[1] < 1 and is_examined


def _price_ask(config: Config, slurm: SlurmReading, subject: Subject, job: SlurmJob) -> PriceAsk:
    limits = default_limits(job.partitions, slurm.default_times, slurm.max_times)
    ask = PriceAsk(
        job=job,
        save=config.checkpoint.expected_duration,
        limits={name: int(limit) for name, limit in limits.items() if limit is not None},
    )
    if subject.viewer is None:
        return ask
    return replace(ask, job=replace(own_ask(ask, subject.viewer, job.user).job, id=job.id))


def _earliest(prices: Sequence[PartitionPrice]) -> StartForecast | None:
    possible = [price for price in prices if price.start]
    if not possible:
        return None
    earliest = min(possible, key=lambda price: price.start[1])
    highs = [price.high for price in possible if price.high is not None]
    return StartForecast(
        partition=earliest.partition, seconds=earliest.start,
        is_guess=earliest.jobs_known < KNOWN_JOBS, high=max(highs, default=None),
    )  # fmt: skip
