"""The jobs that wait for nodes of a group of pools, each with the nodes that it can use."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, MutableMapping, Sequence, Set

from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.controller.context import Site
from slurm_elastic.features.covered_jobs import counted_id
from slurm_elastic.features.pool_nodes import ABOUT_TO_START, Observation, PoolNodes, QueueFacts
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.model.slurm_words import partition_states
from slurm_elastic.policies.growth import usable
from slurm_elastic.policies.growth.capacity import Slurm
from slurm_elastic.policies.growth.feature_counts import Part, Term, alternatives
from slurm_elastic.policies.growth.scaling import PendingJob
from slurm_elastic.policies.launch.verdict import could_run, features, need
from slurm_elastic.policies.launch.waiting import fixed_arrays, is_counted, is_limit_fixed
from slurm_elastic.policies.money.account_budgets import barring
from slurm_elastic.policies.nodes.node_state import Phase, phase

DEFAULT_LIMIT = 3600
"""Seconds that a job counts for which neither its user nor the site gives a limit."""
MOST_TASKS = 10_000
"""The tasks told of one pending array: more say no more."""
_ANY_NODE = Term()


def queue_facts(site: Site, jobs: Sequence[SlurmJob], at: float) -> QueueFacts:
    """What keeps waiting jobs from nodes, with as few commands as this queue needs."""
    if all(isinstance(rules.growth, Slurm) for rules in site.rules.values()):
        return QueueFacts()  # Slurm itself decides for which jobs it starts nodes
    waiting = [job for job in in_order(jobs) if _waits(job, at)]
    if not waiting:
        return QueueFacts()
    own = {
        cloud.partition_name: site.config.who_of(cloud).max_time for cloud in site.clouds.values()
    }
    may_be_over = any(
        own.get(name) is not None and (job.limit is None or job.limit > (own[name] or 0))
        for job in waiting
        for name in job.partitions
    )
    licensed = [job for job in waiting if job.licenses]
    return QueueFacts(
        reservations=tuple(site.slurm.reservations()),
        excluded={j.id: j.excluded for j in waiting if j.excluded}
        | dict(site.slurm.excluded_by_job()),
        tasks=_licensed(licensed, site.slurm.free_licenses()) if licensed else {},
        max_times=own | (dict(site.slurm.max_times()) if may_be_over else {}),
        fixed_arrays=fixed_arrays(jobs),
        # slurmctld names an inactive partition as a job's reason only at its next look at the job.
        closed_partitions=partition_states.closed(site.slurm.partition_states()),
    )


def _waits(job: SlurmJob, at: float) -> bool:
    # Until slurmctld has looked at a new job, its reason does not tell that it may start later.
    return "PENDING" in job.states and job.eligible <= at and is_counted(job, at)


def untried_jobs(site: Site, view: Observation) -> frozenset[int]:
    """The new jobs that slurmctld may start at its first look without a purchase, because they
    list a partition of the site or a partition whose nodes Slurm itself powers up.
    """
    grown = _grown_partitions(site)
    return frozenset(
        counted_id(job)
        for job in view.jobs
        if "PENDING" in job.states
        and job.wait_reason.is_unseen
        # A job far down in a long queue may get no look for minutes.
        and view.at - max(job.submit, job.eligible) < ABOUT_TO_START
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


def _licensed(jobs: Iterable[SlurmJob], free: Mapping[str, int]) -> dict[int, int]:
    """The tasks of each job for which licences are left by the jobs before it."""
    tasks: dict[int, int] = {}
    for job in jobs:
        tasks[job.id], free = usable.licensed_tasks(job.licenses, job.tasks, free)
    return tasks


def in_order(jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    """The one that comes first first."""
    return sorted(jobs, key=lambda j: (-j.priority, j.submit, j.id))


def coming(site: Site, view: Observation, pools: Sequence[Pool]) -> list[PendingJob]:
    """Jobs whose machines boot, each with so many nodes as do."""
    booting = {
        name
        for pool in pools
        for name in pool.nodes
        if name in view.nodes and phase(view.nodes[name]) is Phase.POWERING_UP
    }
    found = []
    for job in in_order(view.jobs):
        mine = [n for n in job.nodes if n in booting] if "CONFIGURING" in job.states else []
        if mine:
            pool = site.pool_of[mine[0]]
            found.append(_asked(site, job, pool, (pool.name,))._replace(nodes=len(mine), times=1))
    return found


def pending(
    site: Site, view: Observation, found: Sequence[PoolNodes], unhelped: Set[int]
) -> list[PendingJob]:
    """Jobs that wait for nodes, the one that comes first first, without the ``unhelped`` ones."""
    rows: list[PendingJob] = []
    # Thousands of waiting jobs ask for few different things.
    known: dict[tuple[object, ...], Sequence[PendingJob]] = {}
    for job in in_order(view.jobs):
        if _waits(job, view.at) and counted_id(job) not in unhelped:
            bar = barring(view.over, job.account, job.user)
            able = [
                one
                for one in found
                if (bar is None or not site.is_public(one.pool))
                and _could(site, view, job, one.pool)
            ]
            rows += _Wish(site, view, job, able).rows(known) if able else ()
    return rows


def waiting(queue: Sequence[PendingJob], pools: Sequence[PoolNodes], at: int) -> list[PendingJob]:
    """The jobs for which there is no machine yet, without those that slurmctld is about to start:
    it looks at its queue a moment after a machine or a job has come.
    """
    left: list[PendingJob] = []
    for job in queue:
        able = [pool for pool in pools if pool.pool.name in job.pools]
        avoids = frozenset(expand(job.avoids)) if job.avoids else frozenset()
        served = 0
        while (
            served < job.times and sum(p.fresh(at, job.submit, avoids) for p in able) >= job.nodes
        ):
            lack = job.nodes
            for pool in able:
                lack -= pool.give(lack, at, job.submit, avoids)
            served += 1
        if served < job.times:
            left.append(job._replace(times=job.times - served))
    return [row for job in left if (row := _without_up(job, pools))]


def _without_up(job: PendingJob, pools: Sequence[PoolNodes]) -> PendingJob | None:
    """A job that waits for named nodes alone asks for those that are off; none, if all are up."""
    named = expand(job.named) if job.named else []
    if not named or job.nodes > len(named):
        return job
    off = sum(node in one.off for node in named for one in pools)
    return job._replace(nodes=off) if off else None


class _Wish:
    """The nodes that one job can use in the pools ``able``, which suit it otherwise."""

    def __init__(
        self, site: Site, view: Observation, job: SlurmJob, able: Sequence[PoolNodes]
    ) -> None:
        self._site, self._view, self._job, self._able = site, view, job, able
        pool = able[0].pool
        self._row = _asked(site, job, pool, tuple(one.pool.name for one in able))
        times = view.facts.tasks.get(job.id, self._row.times)
        self._row = self._row._replace(times=min(times, self._row.times))
        self._excluded = view.facts.excluded.get(job.id, ())
        # The job starts when the machine is up, and Slurm then compares its end with reservations.
        end = view.at + site.rules[pool.name].boot + self._row.limit
        self._reservations = tuple(
            one for one in view.facts.reservations if usable.is_within(one, view.at, end)
        )

    @functools.cached_property
    def _avoids(self) -> frozenset[str]:
        """The nodes of its pools that it may not have."""
        if not (self._excluded or self._reservations or self._job.reservation):
            return frozenset()
        avoided = usable.avoided_nodes(self._job, self._excluded, self._reservations)
        own = usable.reserved_nodes(self._job, self._view.facts.reservations)
        nodes = frozenset(node for one in self._able for node in one.pool.nodes)
        return nodes & avoided if own is None else nodes & avoided | nodes - own

    def rows(
        self, known: MutableMapping[tuple[object, ...], Sequence[PendingJob]]
    ) -> Sequence[PendingJob]:
        """What counts for the growth: one row, or one for each kind of nodes; none, if no machine
        helps the job. ``known`` has the rows of the jobs before it.
        """
        if not self._row.times:
            return ()
        own, job = self._row, self._job
        key = (
            own.pools, own.nodes, job.features, job.required, job.reservation, self._excluded,
            tuple(one.name for one in self._reservations),
        )  # fmt: skip
        if key not in known:
            known[key] = self._new_rows()
        return [
            own._replace(nodes=row.nodes, pools=row.pools, avoids=row.avoids, named=row.named)
            for row in known[key]
        ]

    def _new_rows(self) -> Sequence[PendingJob]:
        # A job never spans clouds. Machines of a cloud that cannot hold all of it help nobody.
        clouds: dict[str, list[PoolNodes]] = {}
        for one in self._able:
            clouds.setdefault(one.pool.cloud, []).append(one)
        ways = alternatives(self._job.features, self._row.nodes)
        if not (ways or self._avoids or self._job.required):
            fitting = [one for own in clouds.values() if self._fits(own) for one in own]
            names = tuple(one.pool.name for one in fitting)
            return (self._row._replace(pools=names),) if names else ()
        ways = ways or ((Part(self._row.nodes, _ANY_NODE),),)
        found = (self._parts(parts, own) for own in clouds.values() for parts in ways)
        return next((rows for rows in found if rows), ())

    def _fits(self, able: Sequence[PoolNodes]) -> bool:
        return sum(len(one.reachable) for one in able) >= self._row.nodes

    def _parts(self, parts: Sequence[Part], able: Sequence[PoolNodes]) -> Sequence[PendingJob]:
        """A row for each part, or none: a job gets all of its nodes or does not start."""
        rows = [row for part in parts if (row := self._row_of(part, able)) is not None]
        return rows if len(rows) == len(parts) else ()

    def _row_of(self, part: Part, able: Sequence[PoolNodes]) -> PendingJob | None:
        able = [one for one in able if part.term.holds(features(one.pool))]
        usable_nodes = {n for one in able for n in one.reachable} - self._avoids
        named = frozenset(self._job.required)
        if not named <= usable_nodes or self._are_taken(named):
            return None
        nodes = max(part.nodes, len(named))
        avoids = self._avoids & {n for one in able for n in one.pool.nodes}
        if nodes == len(named):
            avoids = avoids | usable_nodes - named
            usable_nodes &= named
        if len(usable_nodes) < nodes:
            return None
        pools = tuple(one.pool.name for one in able if not usable_nodes.isdisjoint(one.pool.nodes))
        return self._row._replace(
            nodes=nodes, pools=pools, avoids=_hostlist(avoids), named=_hostlist(named)
        )

    def _are_taken(self, named: frozenset[str]) -> bool:
        """Whether other jobs have nodes that this one names: it waits for these, on no machine."""
        return any(not named.isdisjoint(one.taken) for one in self._able)


@functools.lru_cache(maxsize=256)
def _hostlist(nodes: frozenset[str]) -> str:
    return compress(nodes)


def _asked(site: Site, job: SlurmJob, pool: Pool, able: tuple[str, ...]) -> PendingJob:
    who = site.config.who_of(site.clouds[pool.cloud])
    limit = job.limit or who.default_time or who.max_time or DEFAULT_LIMIT
    own = counted_id(job)
    return PendingJob(
        own, need(job, pool), int(limit), int(job.submit), able, min(job.tasks, MOST_TASKS)
    )


def _could(site: Site, view: Observation, job: SlurmJob, pool: Pool) -> bool:
    """Whether the pool's nodes could be the job's: its partition, and what a node has."""
    partition, facts = site.clouds[pool.cloud].partition_name, view.facts
    if partition not in job.partitions or partition in facts.closed_partitions:
        return False
    if not could_run(job, pool):
        return False
    fixed = is_limit_fixed(job, facts.fixed_arrays)
    return not usable.exceeds_max_time(job, partition, facts.max_times, is_fixed=fixed)
