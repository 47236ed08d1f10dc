"""Measures the facts for the growth policies: queue, nodes and leases, for each group of pools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.controller.context import Site
from slurm_elastic.controller.holds import find_closed_nodes
from slurm_elastic.controller.launching.budget import (
    apply_directives,
    find_barred_payers,
    find_stops,
)
from slurm_elastic.controller.snapshot import read_all_nodes
from slurm_elastic.features.growth.covered_jobs import CoveredJobs
from slurm_elastic.features.growth.lasting import LastingMachines
from slurm_elastic.features.growth.pool_nodes import Observation, PoolNodes
from slurm_elastic.features.growth.waiting_jobs import (
    coming,
    pending,
    queue_facts,
    untried_jobs,
    waiting,
)
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.exclusion import CAPACITY, POLICY
from slurm_elastic.model.slurm import ON_NODES
from slurm_elastic.policies.growth.capacity import AnyGrowth
from slurm_elastic.policies.growth.release import IdleOrder
from slurm_elastic.policies.growth.scaling import GroupSnapshot, IdleInstance


class PoolGroup(Struct, frozen=True, kw_only=True):
    """The pools with the same growth policy. ``now``: the snapshot that the policy decides by.

    ``name``: of the group's first pool in the configuration.

    By pool: ``startable``: nodes that may be started. ``unheld``: nodes, powered down or powering
    down, that no policy holds yet. ``held``: held nodes, powered down or powering down, with the
    cause of the hold. ``needless_holds``: nodes held although they are up or coming. ``idle``: the
    idle machines, including machines that slurmctld is about to allocate, because it picks them by
    their weights. ``too_long``: by job that may run longer than any machine stays, the cause.

    ``served``: by waiting job, how many of its tasks slurmctld is about to start on machines of
    the group.
    """

    name: str
    now: GroupSnapshot
    startable: Mapping[str, tuple[str, ...]]
    unheld: Mapping[str, tuple[str, ...]]
    held: Mapping[str, Mapping[str, AnyCause]]
    needless_holds: tuple[str, ...]
    idle: Mapping[str, tuple[IdleInstance, ...]]
    too_long: Mapping[int, AnyCause]
    served: Mapping[int, int] = {}

    def without(self, tasks: Mapping[int, int]) -> PoolGroup:
        """Return the group without so many tasks of jobs, which get machines of other groups."""
        queue = [
            job._replace(times=max(job.times, 1) - tasks[job.id]) if job.id in tasks else job
            for job in self.now.queue
            if job.id not in tasks or max(job.times, 1) > tasks[job.id]
        ]
        return replace(self, now=replace(self.now, queue=tuple(queue)))


def observe(site: Site) -> Observation:
    """Read Slurm's nodes and queue, and the ledger's machines and holds. SlurmError if Slurm cannot
    be read.
    """
    nodes, jobs, state = read_all_nodes(site), site.slurm.jobs(), site.ledger.state()
    now, rows = site.now(), state.exclusions
    machines = {m.instance.node: m for m in site.serving_machines(state.machines)}
    # Once for each cloud: there may be ten thousand machines.
    counted_clouds = {cloud for cloud in site.clouds if _counts_hosts(site, cloud)}
    stops = _blocked_pools(site) | find_stops(site.config, site.ledger, site.rules, now)
    return Observation(
        at=int(now),
        nodes=nodes,
        jobs=jobs,
        machines=machines,
        machines_by_host=Counter(
            (m.instance.cloud, m.instance.zone)
            for m in machines.values()
            if m.instance.cloud in counted_clouds
        ),
        policy={row.scope: row for row in rows if row.kind == POLICY},
        capacity=frozenset(row.scope for row in rows if row.kind == CAPACITY),
        stops=stops,
        # The nodes of a stopped pool still count: its jobs must stay in the queue, because growth
        # records the stop as the reason why they wait.
        closed=frozenset(
            node for node in find_closed_nodes(site, state) if site.pool_of[node].name not in stops
        ),
        stopped=frozenset(machine.instance.node for machine in state.stopped),
        over=find_barred_payers(site.config, site.ledger, now),
        # With the operators' orders of now, not the file's limits alone.
        pool_nodes={
            p.name: p.max_nodes for p in apply_directives(site.config, site.ledger, now).pools
        },
        facts=queue_facts(site, jobs, now),
        # One more command at each look, which other sites do not need.
        reservations=tuple(site.slurm.reservations())
        if any(rules.min_idle for rules in site.rules.values())
        else (),
    )


def _counts_hosts(site: Site, cloud: str) -> bool:
    """Whether it matters which host of the cloud a machine is on: empty hosts are switched off, or
    a pool's ``machine_order`` asks for it.
    """
    settings = site.clouds[cloud]
    if not settings.zones_are_hosts or settings.switches_hosts:
        return settings.zones_are_hosts
    return any(
        site.rules[pool.name].order is IdleOrder.PACKED for pool in site.pools_of_cloud(cloud)
    )


def _blocked_pools(site: Site) -> dict[str, AnyCause]:
    """The pools of clouds in which nothing may start before the site allows it, with the cause."""
    blocked = site.blocked
    return {name: blocked[p.cloud] for name, p in site.pools.items() if p.cloud in blocked}


def pool_groups(
    site: Site, view: Observation, counted: Mapping[str, CoveredJobs]
) -> list[PoolGroup]:
    """Group all pools by growth policy, in the order in which machines are started. ``counted``: by
    group name.
    """
    by_growth: dict[AnyGrowth, list[Pool]] = {}
    for pool in site.pools.values():
        by_growth.setdefault(site.rules[pool.name].growth, []).append(pool)
    place_of = {
        pool.name: place for place, pool in enumerate(_in_use_order(site, [*site.pools.values()]))
    }
    by_use = sorted(by_growth.items(), key=lambda row: min(place_of[pool.name] for pool in row[1]))
    groups = []
    times_left: dict[int, int] = {}
    for growth, pools in by_use:
        group = _pool_group(site, view, growth, pools, times_left)
        memory = counted[pools[0].name]
        # A job whose machines boot has enough.
        covered = {*memory.remaining(view.jobs, view.nodes), *group.now.covered}
        begun = tuple(sorted(memory.begun))
        now = replace(group.now, covered=tuple(sorted(covered)), begun=begun)
        groups.append(replace(group, now=now))
    return groups


def _pool_group(
    site: Site,
    view: Observation,
    growth: AnyGrowth,
    pools: Sequence[Pool],
    times_left: dict[int, int],
) -> PoolGroup:
    """``times_left``: by job, how many of its tasks the idle machines of earlier groups leave
    waiting. The idle machines of this group are dealt to these alone, and reduce them.
    """
    name, pools = pools[0].name, _in_use_order(site, pools)
    pool_nodes = [PoolNodes(site, view, pool) for pool in pools]
    # Copy the idle machines first: `waiting` removes machines that slurmctld is about to allocate.
    idle = {group_pool.pool.name: group_pool.idle for group_pool in pool_nodes}
    node_names = {node for pool in pools for node in pool.nodes}
    lasting = LastingMachines(site, view.at)
    rows = [
        job._replace(times=min(job.times, times_left.get(job.id, job.times)))
        for job in pending(site, view, pool_nodes, view.unhelped, lasting)
        if times_left.get(job.id) != 0
    ]
    queue = waiting(rows, pool_nodes, view.at)
    times_left |= dict.fromkeys((job.id for job in rows), 0)
    times_left |= {job.id: job.times for job in queue}
    # A new job may get a machine that idles, but growth starts no machine for the job yet.
    untried = untried_jobs(site, view)
    unserved = [job for job in queue if job.id not in untried]
    arriving = coming(site, view, pools)
    boots = {job.id for job in arriving}
    is_narrow = any(job.avoids or job.named for job in unserved)
    running = [
        job
        for job in view.jobs
        if job.states & ON_NODES and job.id not in boots and not node_names.isdisjoint(job.nodes)
    ]
    snapshots = tuple(group_pool.now(running, named=is_narrow) for group_pool in pool_nodes)
    waiting_tasks = {job.id: job.times for job in queue}
    return PoolGroup(
        name=name,
        now=GroupSnapshot(
            now=view.at,
            growth=growth,
            pools=snapshots,
            queue=(*arriving, *unserved),
            covered=tuple(sorted(boots)),
        ),
        startable={group_pool.pool.name: tuple(group_pool.off) for group_pool in pool_nodes},
        unheld={group_pool.pool.name: tuple(group_pool.unheld) for group_pool in pool_nodes},
        held={group_pool.pool.name: group_pool.held for group_pool in pool_nodes},
        needless_holds=tuple(
            node for group_pool in pool_nodes for node in group_pool.needless_holds
        ),
        idle=idle,
        too_long=lasting.too_long,
        served={
            job.id: count for job in rows if (count := job.times - waiting_tasks.get(job.id, 0))
        },
    )


def _in_use_order(site: Site, pools: Sequence[Pool]) -> Sequence[Pool]:
    """Return the pools in the order in which machines are started. Pools of one partition, and
    pools without a known place, stay in the order of the configuration.
    """
    places = site.cloud_places.snapshot()
    partition_of = {pool.name: site.clouds[pool.cloud].partition_name for pool in pools}
    return sorted(pools, key=lambda pool: places.get(partition_of[pool.name], len(places)))
