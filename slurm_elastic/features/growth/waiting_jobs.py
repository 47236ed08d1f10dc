"""The jobs that wait for nodes of a group of pools, each with the nodes that it can use."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, MutableMapping, Sequence, Set

from slurm_elastic.base.grouping import group_by
from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.controller.context import Site
from slurm_elastic.features.growth.lasting import LastingMachines
from slurm_elastic.features.growth.pool_nodes import (
    Observation,
    PoolNodes,
    QueueFacts,
    is_fresh,
)
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.model.slurm_words import partition_states
from slurm_elastic.policies.growth import usable
from slurm_elastic.policies.growth.capacity import Slurm
from slurm_elastic.policies.growth.feature_counts import FeatureCount, Term, alternatives
from slurm_elastic.policies.growth.scaling import PendingJob
from slurm_elastic.policies.launch.verdict import could_run, features, need
from slurm_elastic.policies.launch.waiting import fixed_arrays, is_counted, is_limit_fixed
from slurm_elastic.policies.money.account_budgets import barring
from slurm_elastic.policies.nodes.node_state import Phase, phase

DEFAULT_LIMIT_S = 3600
"""The assumed time limit of a job if neither its user nor the site sets one."""
MAX_TASKS = 10_000
"""At most this many tasks of a pending array count; more would change no decision."""
_ANY_NODE = Term()


def queue_facts(site: Site, jobs: Sequence[SlurmJob], now: float) -> QueueFacts:
    """Read the restrictions of the waiting jobs, with as few commands as this queue needs."""
    if all(isinstance(rules.growth, Slurm) for rules in site.rules.values()):
        return QueueFacts()  # Slurm itself decides for which jobs it starts nodes
    waiting = [job for job in in_order(jobs) if _is_counted_now(job, now)]
    if not waiting:
        return QueueFacts()
    site_max_times = {
        cloud.partition_name: site.config.who_of(cloud).max_time for cloud in site.clouds.values()
    }
    may_be_over = any(
        name in site_max_times and _may_be_over(job, site_max_times[name])
        for job in waiting
        for name in job.partitions
    )
    licensed = [job for job in waiting if job.licenses]
    return QueueFacts(
        reservations=tuple(site.slurm.reservations()),
        excluded={j.id: j.excluded for j in waiting if j.excluded}
        | dict(site.slurm.excluded_by_job()),
        tasks=_licensed(licensed, site.slurm.free_licenses()) if licensed else {},
        max_times=site_max_times | (dict(site.slurm.max_times()) if may_be_over else {}),
        fixed_arrays=fixed_arrays(jobs),
        # slurmctld names an inactive partition as a job's reason only at its next look at the job.
        closed_partitions=partition_states.closed(site.slurm.partition_states()),
    )


def _may_be_over(job: SlurmJob, max_time: float | None) -> bool:
    """Whether the job's limit may be over MaxTime of a partition. ``max_time``: what ``allow``
    sets.
    """
    if max_time is None:
        # PartitionName=DEFAULT may set it. Only of a job in one partition Slurm's reason proves it.
        return len(job.partitions) > 1
    return job.limit is None or job.limit > max_time


def _is_counted_now(job: SlurmJob, now: float) -> bool:
    # Until slurmctld has examined a new job, its reason does not show that its begin time lies in
    # the future. So compare the time.
    return "PENDING" in job.states and job.eligible <= now and is_counted(job, now)


def untried_jobs(site: Site, view: Observation) -> frozenset[int]:
    """The new jobs that slurmctld may start at its first look without a purchase, because they
    list a partition of the site or a partition whose nodes Slurm itself powers up.
    """
    grown = _grown_partitions(site)
    return frozenset(
        job.id
        for job in view.jobs
        if "PENDING" in job.states
        and job.wait_reason.is_unseen
        # A job far down in a long queue may get no look for minutes.
        and is_fresh(max(job.submit, job.eligible), view.at)
        and not grown.issuperset(job.partitions)
    )


def _grown_partitions(site: Site) -> frozenset[str]:
    """The partitions in which a growth policy of ours starts every node."""
    by_slurm = {
        pool.cloud for pool in site.pools.values()
        if isinstance(site.rules[pool.name].growth, Slurm)
    }  # fmt: skip
    return frozenset(
        cloud.partition_name for cloud in site.clouds.values() if cloud.name not in by_slurm
    )


def _licensed(jobs: Iterable[SlurmJob], free_licenses: Mapping[str, int]) -> dict[int, int]:
    """By job: the number of its tasks that get licences, after the jobs before it got theirs."""
    tasks: dict[int, int] = {}
    for job in jobs:
        tasks[job.id], free_licenses = usable.licensed_tasks(
            job.licenses, job.tasks_at_a_time, free_licenses
        )
    return tasks


def in_order(jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    """Sort the jobs by priority, highest first."""
    return sorted(jobs, key=lambda j: (-j.priority, j.submit, j.id))


def coming(site: Site, view: Observation, pools: Sequence[Pool]) -> list[PendingJob]:
    """The jobs whose machines boot, each with the number of its booting nodes."""
    booting = {
        name
        for pool in pools
        for name in pool.nodes
        if name in view.nodes and phase(view.nodes[name]) is Phase.POWERING_UP
    }
    arriving = []
    for job in in_order(view.jobs):
        booting_nodes = (
            [n for n in job.nodes if n in booting] if "CONFIGURING" in job.states else []
        )
        if booting_nodes:
            pool = site.pool_of[booting_nodes[0]]
            arriving.append(
                _pending_job(site, job, pool, (pool.name,))._replace(
                    nodes=len(booting_nodes), times=1
                )
            )
    return arriving


def pending(
    site: Site,
    view: Observation,
    pool_nodes: Sequence[PoolNodes],
    unhelped: Set[int],
    lasting: LastingMachines,
) -> list[PendingJob]:
    """The jobs that wait for nodes, highest priority first. The ``unhelped`` jobs are left out, and
    jobs that may run longer than any machine stays, for which ``lasting`` then knows the cause.
    """
    rows: list[PendingJob] = []
    # A cache: thousands of waiting jobs usually have only a few different requests.
    rows_by_request: dict[tuple[object, ...], Sequence[PendingJob]] = {}
    for job in in_order(view.jobs):
        if _is_counted_now(job, view.at) and job.id not in unhelped:
            bar = barring(view.over, job.account, job.user)
            candidates = [
                candidate
                for candidate in pool_nodes
                if (bar is None or not site.is_public(candidate.pool))
                and _could_use(site, view, job, candidate.pool)
            ]
            candidates = _lasting(site, job, candidates, lasting) if candidates else []
            rows += _Wish(site, view, job, candidates).rows(rows_by_request) if candidates else ()
    return rows


def _lasting(
    site: Site, job: SlurmJob, candidates: Sequence[PoolNodes], lasting: LastingMachines
) -> list[PoolNodes]:
    """The candidates with machines that stay as long as the job may run."""
    row = _pending_job(site, job, candidates[0].pool, ())
    pools = [candidate.pool for candidate in candidates]
    names = {pool.name for pool in lasting.without_short(job.id, row.nodes, row.limit, pools)}
    return [candidate for candidate in candidates if candidate.pool.name in names]


def waiting(queue: Sequence[PendingJob], pools: Sequence[PoolNodes], now: int) -> list[PendingJob]:
    """The jobs that still need machines. Jobs that slurmctld is about to start are left out: it
    examines its queue only a moment after a machine or a job has come. Their machines are marked
    busy in ``pools``.
    """
    unserved: list[PendingJob] = []
    for job in queue:
        by_cloud = group_by(
            (pool for pool in pools if pool.pool.name in job.pools), lambda pool: pool.pool.cloud
        )
        avoids = frozenset(expand(job.avoids)) if job.avoids else frozenset()
        served = 0
        # A job never spans clouds.
        for candidates in by_cloud.values():
            while (
                served < job.times
                and sum(p.count_fresh(now, job.submit, avoids) for p in candidates) >= job.nodes
            ):
                lack = job.nodes
                for pool in candidates:
                    lack -= pool.give(lack, now, job.submit, avoids)
                served += 1
        if served < job.times:
            unserved.append(job._replace(times=job.times - served))
    return [row for job in unserved if (row := _without_up(job, pools))]


def _without_up(job: PendingJob, pools: Sequence[PoolNodes]) -> PendingJob | None:
    """Reduce a job that requires named nodes only to its nodes that are off. None if all are up."""
    named = expand(job.named) if job.named else []
    if not named or job.nodes > len(named):
        return job
    off = sum(node in pool_nodes.off for node in named for pool_nodes in pools)
    return job._replace(nodes=off) if off else None


class _Wish:
    """The nodes that one job can use in ``candidates``: pools whose partition and size suit it."""

    def __init__(
        self, site: Site, view: Observation, job: SlurmJob, candidates: Sequence[PoolNodes]
    ) -> None:
        self._site, self._view, self._job, self._candidates = site, view, job, candidates
        pool = candidates[0].pool
        self._row = _pending_job(
            site, job, pool, tuple(candidate.pool.name for candidate in candidates)
        )
        times = view.facts.tasks.get(job.id, self._row.times)
        self._row = self._row._replace(times=min(times, self._row.times))
        self._excluded = view.facts.excluded.get(job.id, ())
        # Slurm compares the job's end with reservations when the job starts, that is after the
        # machine's boot.
        end = view.at + site.rules[pool.name].boot + self._row.limit
        self._reservations = tuple(
            candidate
            for candidate in view.facts.reservations
            if usable.is_within(candidate, view.at, end)
        )

    @functools.cached_property
    def _avoids(self) -> frozenset[str]:
        """The nodes of the candidates that the job must not use."""
        if not (self._excluded or self._reservations or self._job.reservation):
            return frozenset()
        avoided = usable.avoided_nodes(self._job, self._excluded, self._reservations)
        allowed = usable.reserved_nodes(self._job, self._view.facts.reservations)
        nodes = frozenset(node for candidate in self._candidates for node in candidate.pool.nodes)
        return nodes & avoided if allowed is None else nodes & avoided | nodes - allowed

    def rows(
        self, rows_by_request: MutableMapping[tuple[object, ...], Sequence[PendingJob]]
    ) -> Sequence[PendingJob]:
        """The rows that growth counts for the job: one, or one for each kind of node. No rows if no
        machine helps the job. ``rows_by_request`` caches the rows of jobs with the same request.
        """
        if not self._row.times:
            return ()
        own_row, job = self._row, self._job
        key = (
            own_row.pools, own_row.nodes, job.features, job.required, job.reservation,
            self._excluded, tuple(reservation.name for reservation in self._reservations),
        )  # fmt: skip
        if key not in rows_by_request:
            rows_by_request[key] = self._new_rows()
        return [
            own_row._replace(nodes=row.nodes, pools=row.pools, avoids=row.avoids, named=row.named)
            for row in rows_by_request[key]
        ]

    def _new_rows(self) -> Sequence[PendingJob]:
        # A job never spans clouds, so machines of a cloud that cannot hold the whole job are
        # useless.
        clouds: dict[str, list[PoolNodes]] = {}
        for candidate in self._candidates:
            clouds.setdefault(candidate.pool.cloud, []).append(candidate)
        alternative_ways = alternatives(self._job.features, self._row.nodes)
        if not (alternative_ways or self._avoids or self._job.required):
            fitting = [
                candidate
                for cloud_pools in clouds.values()
                if self._fits(cloud_pools)
                for candidate in cloud_pools
            ]
            names = tuple(candidate.pool.name for candidate in fitting)
            return (self._row._replace(pools=names),) if names else ()
        alternative_ways = alternative_ways or ((FeatureCount(self._row.nodes, _ANY_NODE),),)
        rows_by_way = (
            self._rows_of_way(way, cloud_pools)
            for cloud_pools in clouds.values()
            for way in alternative_ways
        )
        return next((rows for rows in rows_by_way if rows), ())

    def _fits(self, candidates: Sequence[PoolNodes]) -> bool:
        return sum(len(candidate.reachable) for candidate in candidates) >= self._row.nodes

    def _rows_of_way(
        self, way: Sequence[FeatureCount], candidates: Sequence[PoolNodes]
    ) -> Sequence[PendingJob]:
        """A row for each part; no rows if a part has none, because a job gets all of its nodes or
        does not start.
        """
        rows = [
            row for node_part in way if (row := self._row_of(node_part, candidates)) is not None
        ]
        return rows if len(rows) == len(way) else ()

    def _row_of(
        self, node_part: FeatureCount, candidates: Sequence[PoolNodes]
    ) -> PendingJob | None:
        candidates = [
            candidate for candidate in candidates if node_part.term.holds(features(candidate.pool))
        ]
        usable_nodes = {n for candidate in candidates for n in candidate.reachable} - self._avoids
        named = frozenset(self._job.required)
        if not named <= usable_nodes or self._are_busy(named):
            return None
        nodes = max(node_part.nodes, len(named))
        avoids = self._avoids & {n for candidate in candidates for n in candidate.pool.nodes}
        if nodes == len(named):
            avoids = avoids | usable_nodes - named
            usable_nodes &= named
        if len(usable_nodes) < nodes:
            return None
        pools = tuple(
            candidate.pool.name
            for candidate in candidates
            if not usable_nodes.isdisjoint(candidate.pool.nodes)
        )
        return self._row._replace(
            nodes=nodes, pools=pools, avoids=_hostlist(avoids), named=_hostlist(named)
        )

    def _are_busy(self, named: frozenset[str]) -> bool:
        """Whether other jobs use nodes that this job names. It waits for these nodes, so no new
        machine helps it.
        """
        return any(not named.isdisjoint(candidate.busy) for candidate in self._candidates)


@functools.lru_cache(maxsize=256)
def _hostlist(nodes: frozenset[str]) -> str:
    return compress(nodes)


def _pending_job(site: Site, job: SlurmJob, pool: Pool, pool_names: tuple[str, ...]) -> PendingJob:
    accounting = site.config.who_of(site.clouds[pool.cloud])
    limit = job.limit or accounting.default_time or accounting.max_time or DEFAULT_LIMIT_S
    job_id = job.id
    times = min(job.tasks_at_a_time, MAX_TASKS)
    return PendingJob(job_id, need(job, pool), int(limit), int(job.submit), pool_names, times)


def _could_use(site: Site, view: Observation, job: SlurmJob, pool: Pool) -> bool:
    """Whether the job could use the pool's nodes: partition, resources and time limit."""
    partition, facts = site.clouds[pool.cloud].partition_name, view.facts
    if partition not in job.partitions or partition in facts.closed_partitions:
        return False
    if not could_run(job, pool):
        return False
    fixed = is_limit_fixed(job, facts.fixed_arrays)
    return not usable.exceeds_max_time(job, partition, facts.max_times, is_fixed=fixed)
