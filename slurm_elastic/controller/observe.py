"""Facts for a growth policy, measured: queue, nodes, leases, group by group of pools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.controller.budget import barred, limits_now, stop_of
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.covered_jobs import CoveredJobs, counted_id
from slurm_elastic.controller.holds import is_held
from slurm_elastic.controller.snapshot import all_nodes
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.exclusion import CAPACITY, POLICY, Exclusion
from slurm_elastic.model.slurm import ON_NODES, SlurmJob, SlurmNode
from slurm_elastic.policies.growth.capacity import AnyGrowth, OwnGrowth, SemiElastic
from slurm_elastic.policies.growth.release import Flagged
from slurm_elastic.policies.growth.scaling import (
    GroupSnapshot,
    IdleInstance,
    PendingJob,
    PoolSnapshot,
)
from slurm_elastic.policies.launch.verdict import could_run, need
from slurm_elastic.policies.launch.waiting import is_counted
from slurm_elastic.policies.money.account_budgets import Overdrawn, barring
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, is_down, is_drained, phase
from slurm_elastic.state.ledger import Machine

DEFAULT_LIMIT = 3600
"""Seconds that a job counts for which neither its user nor the site gives a limit."""
ABOUT_TO_START = 30
"""Seconds for which a job and an idle machine may be there before they count as not for each other
(memory, reservations, limits: slurmctld knows why).
"""
FAR = 10 * 365 * 86400
"""Seconds in which a job without a limit is taken to end."""
MOST_TASKS = 10_000
"""The tasks told of one pending array: more say no more."""


class PoolGroup(Struct, frozen=True, kw_only=True):
    """Pools under one growth policy. ``now`` is what its policies are asked with.

    By pool, in the site's order: ``startable`` nodes; ``unheld`` ones, powered down or on their
    way, that no policy holds yet; ``held`` ones, with the reason that they are held for. ``loose``
    ones are held although they are up or coming. ``idle`` machines count here also while slurmctld
    is about to give them to a job, which goes by their weights.
    """

    name: str
    now: GroupSnapshot
    startable: Mapping[str, tuple[str, ...]]
    unheld: Mapping[str, tuple[str, ...]]
    held: Mapping[str, Mapping[str, str]]
    loose: tuple[str, ...]
    idle: Mapping[str, tuple[IdleInstance, ...]]


class Observation(Struct, frozen=True, kw_only=True):
    """The reading, at ``at``. Machines by node; holds of either kind by node; ``over`` has the
    accounts that get no new machine of a public cloud; ``pool_nodes``: ``max_nodes`` by pool, as it
    is now.
    """

    at: int
    nodes: Mapping[str, SlurmNode]
    jobs: Sequence[SlurmJob]
    machines: Mapping[str, Machine]
    policy: Mapping[str, Exclusion]
    capacity: frozenset[str]
    stops: Mapping[str, str]
    over: Mapping[str, Overdrawn]
    pool_nodes: Mapping[str, int | None]


def observe(site: Site) -> Observation:
    """Slurm's nodes and queue, the ledger's machines and holds. SlurmError passes through."""
    nodes, jobs, state = all_nodes(site), site.slurm.jobs(), site.ledger.state()
    now, rows = site.now(), state.exclusions
    return Observation(
        at=int(now),
        nodes=nodes,
        jobs=jobs,
        machines={m.instance.node: m for m in site.serving(state.machines)},
        policy={row.scope: row for row in rows if row.kind == POLICY},
        capacity=frozenset(row.scope for row in rows if row.kind == CAPACITY),
        stops=_shut(site) | stop_of(site.config, site.ledger, site.rules, now),
        over=barred(site.config, site.ledger, now),
        pool_nodes={p.name: p.max_nodes for p in limits_now(site.config, site.ledger, now).pools},
    )


def _shut(site: Site) -> dict[str, str]:
    """Pools of clouds where nothing may be started before the site allows it."""
    blocked = site.blocked
    return {name: blocked[p.cloud] for name, p in site.pools.items() if p.cloud in blocked}


def pool_groups(
    site: Site, view: Observation, counted: Mapping[str, CoveredJobs]
) -> list[PoolGroup]:
    """All pools, those of one growth policy together, in the order in which they are used."""
    by_growth: dict[AnyGrowth, list[Pool]] = {}
    for pool in site.pools.values():
        by_growth.setdefault(site.rules[pool.name].growth, []).append(pool)
    return [
        _pool_group(
            site, view, growth, pools, counted[pools[0].name].remaining(view.jobs, view.nodes)
        )
        for growth, pools in by_growth.items()
    ]


def _pool_group(
    site: Site,
    view: Observation,
    growth: AnyGrowth,
    pools: Sequence[Pool],
    covered: Sequence[int],
) -> PoolGroup:
    found = [PoolNodes(site, view, pool) for pool in pools]
    idle = {one.pool.name: one.idle for one in found}
    mine = {node for pool in pools for node in pool.nodes}
    left = _waiting(_pending(site, view, pools), found, view.at)
    coming = _coming(site, view, pools)
    boots = {job.id for job in coming}
    running = [
        job
        for job in view.jobs
        if job.states & ON_NODES and job.id not in boots and not mine.isdisjoint(job.nodes)
    ]
    return PoolGroup(
        name=pools[0].name,
        now=GroupSnapshot(
            now=view.at,
            growth=growth,
            pools=tuple(one.now(running) for one in found),
            queue=(*coming, *left),
            covered=tuple(sorted({*covered, *(job.id for job in coming)})),
        ),
        startable={one.pool.name: tuple(one.off) for one in found},
        unheld={one.pool.name: tuple(one.unheld) for one in found},
        held={one.pool.name: one.held for one in found},
        loose=tuple(node for one in found for node in one.loose),
        idle=idle,
    )


class PoolNodes:
    """One pool's nodes, each in the class that it is in."""

    def __init__(self, site: Site, view: Observation, pool: Pool) -> None:
        self.pool, self._view, self._rules = pool, view, site.rules[pool.name]
        self.off: list[str] = []
        self.unheld: list[str] = []
        self.held: dict[str, str] = {}
        self.loose: list[str] = []
        self.booting: list[str] = []
        self.taken: list[str] = []
        self._idle: list[IdleInstance] = []
        self._starting = 0
        self._young: int | None = None
        for name in pool.nodes:
            if name in view.nodes:
                self._sort(view.nodes[name])

    def now(self, running: Sequence[SlurmJob]) -> PoolSnapshot:
        """As the policies may know it."""
        stop = self._view.stops.get(self.pool.name)
        mine = set(self.pool.nodes)
        here = sum(not mine.isdisjoint(job.nodes) for job in running) + self._starting
        asks = isinstance(self._rules.growth, SemiElastic | OwnGrowth)
        flags = isinstance(self._rules.release, Flagged)
        return PoolSnapshot(
            name=self.pool.name,
            rules=self._rules,
            room=self._room(),
            total_room=None if self.pool.max_booting is None else self._total_room(),
            stop=stop,
            idle=self.idle,
            # The journal names no more nodes than a policy could ask for.
            taken=tuple(self.taken) if flags else (),
            promised=0 if flags else len(self.taken),
            booting=len(self.booting),
            # A node that is still completing has no job any more, but it is no rest either.
            running=max(here, int(bool(self.taken))),
            free=tuple(sorted(self.free(running))) if asks else (),
        )

    @property
    def idle(self) -> tuple[IdleInstance, ...]:
        """Machines that are promised to no job."""
        return tuple(self._idle)

    def free(self, running: Iterable[SlurmJob]) -> Iterable[int]:
        """When each machine is expected to be free, by its jobs' limits."""
        now, machines = self._view.at, self._view.machines
        yield from (now for _ in self._idle)
        for name in self.booting:
            launched = machines[name].instance.launched if name in machines else now
            yield int(launched) + self._rules.boot
        ends = dict.fromkeys(self.taken, now)
        for job in running:
            end = int(job.start) + (FAR if job.limit is None else job.limit)
            ends.update({n: max(ends[n], end) for n in job.nodes if n in ends})
        yield from ends.values()

    def fresh(self, at: int, submit: int) -> int:
        """Idle machines that slurmctld may be about to give to a job submitted then."""
        if at - submit < ABOUT_TO_START:
            return len(self._idle)
        if self._young is None:
            self._young = sum(at - r.since < ABOUT_TO_START for r in self._idle)
        return self._young

    def give(self, count: int, at: int, submit: int) -> int:
        """Up to ``count`` idle machines to a job that slurmctld is about to start on them."""
        able = [r for r in self._idle if at - max(r.since, submit) < ABOUT_TO_START]
        taken = able[: max(count, 0)]
        gone = {r.node for r in taken}
        self._idle = [r for r in self._idle if r.node not in gone]
        self._young = None
        self.taken += [r.node for r in taken]
        self._starting += bool(taken)
        return len(taken)

    def _room(self) -> int:
        total, at_once = self._total_room(), self.pool.max_booting
        return total if at_once is None else max(min(total, at_once - len(self.booting)), 0)

    def _total_room(self) -> int:
        most = self._view.pool_nodes.get(self.pool.name, self.pool.max_nodes)
        there = len(self._idle) + len(self.taken) + len(self.booting)
        return max(len(self.off) if most is None else min(len(self.off), most - there), 0)

    def _sort(self, node: SlurmNode) -> None:
        name, where = node.name, phase(node)
        row = self._view.policy.get(name)
        full = name in self._view.capacity
        ours = is_held(node) and (row is not None or full)
        if is_down(node) or (is_drained(node) and not ours):
            return  # Slurm has given it up, or an admin has drained it
        if where in (Phase.POWERED_DOWN, Phase.POWERING_DOWN):
            if row is None:
                self.unheld.append(name)
            else:
                self.held[name] = row.cause
            if where is Phase.POWERED_DOWN and not full:
                self.off.append(name)
        elif "POWER_DOWN" not in node.states:  # else it gets no job any more
            self._sort_up(node, where)
            if row is not None:
                self.loose.append(name)

    def _sort_up(self, node: SlurmNode, where: Phase) -> None:
        if where is Phase.POWERING_UP:
            self.booting.append(node.name)
        elif is_busy(node):
            self.taken.append(node.name)
        else:
            self._rest(node)

    def _rest(self, node: SlurmNode) -> None:
        machine = self._view.machines.get(node.name)
        if machine is None:
            return
        started = machine.instance.launched
        since = min(max(node.last_busy, node.boot_time, started), self._view.at)
        self._idle.append(IdleInstance(node.name, min(int(started), self._view.at), int(since)))


def _coming(site: Site, view: Observation, pools: Sequence[Pool]) -> list[PendingJob]:
    """Jobs whose machines boot, each with so many nodes as do."""
    booting = {
        name
        for pool in pools
        for name in pool.nodes
        if name in view.nodes and phase(view.nodes[name]) is Phase.POWERING_UP
    }
    found = []
    for job in _in_order(view.jobs):
        mine = [n for n in job.nodes if n in booting] if "CONFIGURING" in job.states else []
        if mine:
            own = (site.pool_of[mine[0]].name,)
            found.append(_asked(site, job, pools, own)._replace(nodes=len(mine), times=1))
    return found


def _pending(site: Site, view: Observation, pools: Sequence[Pool]) -> list[PendingJob]:
    """Jobs that wait for nodes, the one that comes first first."""
    found = []
    for job in _in_order(view.jobs):
        if "PENDING" in job.states and is_counted(job, view.at):
            bar = barring(view.over, job.account, job.user)
            mine = [p for p in pools if bar is None or not site.is_public(p)]
            able = tuple(pool.name for pool in mine if _could(site, job, pool))
            if able:
                found.append(_asked(site, job, pools, able))
    return found


def _in_order(jobs: Sequence[SlurmJob]) -> list[SlurmJob]:
    return sorted(jobs, key=lambda j: (-j.priority, j.submit, j.id))


def _waiting(queue: Sequence[PendingJob], pools: Sequence[PoolNodes], at: int) -> list[PendingJob]:
    """The jobs for which there is no machine yet, without those that slurmctld is about to start:
    it looks at its queue a moment after a machine or a job has come.
    """
    left: list[PendingJob] = []
    for job in queue:
        able = [pool for pool in pools if pool.pool.name in job.pools]
        served = 0
        while served < job.times and sum(p.fresh(at, job.submit) for p in able) >= job.nodes:
            need = job.nodes
            for pool in able:
                need -= pool.give(need, at, job.submit)
            served += 1
        if served < job.times:
            left.append(job._replace(times=job.times - served))
    return left


def _asked(site: Site, job: SlurmJob, pools: Sequence[Pool], able: tuple[str, ...]) -> PendingJob:
    pool = next(pool for pool in pools if pool.name in able)
    who = site.config.who_of(site.clouds[pool.cloud])
    limit = job.limit or who.default_time or who.max_time or DEFAULT_LIMIT
    own = counted_id(job)
    return PendingJob(
        own, need(job, pool), int(limit), int(job.submit), able, min(job.tasks, MOST_TASKS)
    )


def _could(site: Site, job: SlurmJob, pool: Pool) -> bool:
    """Whether the pool's nodes could be the job's: its partition, and what a node has."""
    partition = site.clouds[pool.cloud].partition_name
    return partition in job.partitions and could_run(job, pool)
