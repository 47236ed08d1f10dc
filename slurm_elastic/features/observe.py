"""Facts for a growth policy, measured: queue, nodes, leases, group by group of pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from slurm_elastic.controller.budget import apply_directives, find_barred_payers, find_stops
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.snapshot import read_all_nodes
from slurm_elastic.features.covered_jobs import CoveredJobs
from slurm_elastic.features.pool_nodes import Observation, PoolNodes
from slurm_elastic.features.waiting_jobs import (
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
from slurm_elastic.policies.growth.scaling import GroupSnapshot, IdleInstance


class PoolGroup(Struct, frozen=True, kw_only=True):
    """Pools under one growth policy. ``now`` is what its policies are asked with.

    By pool, in the site's order: ``startable`` nodes; ``unheld`` ones, powered down or on their
    way, that no policy holds yet; ``held`` ones, with the cause of their hold. ``loose``
    ones are held although they are up or coming. ``idle`` machines count here also while slurmctld
    is about to give them to a job, which goes by their weights.
    """

    name: str
    now: GroupSnapshot
    startable: Mapping[str, tuple[str, ...]]
    unheld: Mapping[str, tuple[str, ...]]
    held: Mapping[str, Mapping[str, AnyCause]]
    loose: tuple[str, ...]
    idle: Mapping[str, tuple[IdleInstance, ...]]


def observe(site: Site) -> Observation:
    """Slurm's nodes and queue, the ledger's machines and holds. SlurmError passes through."""
    nodes, jobs, state = read_all_nodes(site), site.slurm.jobs(), site.ledger.state()
    now, rows = site.now(), state.exclusions
    return Observation(
        at=int(now),
        nodes=nodes,
        jobs=jobs,
        machines={m.instance.node: m for m in site.serving_machines(state.machines)},
        policy={row.scope: row for row in rows if row.kind == POLICY},
        capacity=frozenset(row.scope for row in rows if row.kind == CAPACITY),
        stops=_shut(site) | find_stops(site.config, site.ledger, site.rules, now),
        over=find_barred_payers(site.config, site.ledger, now),
        pool_nodes={
            p.name: p.max_nodes for p in apply_directives(site.config, site.ledger, now).pools
        },
        facts=queue_facts(site, jobs, now),
    )


def _shut(site: Site) -> dict[str, AnyCause]:
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
    queue = waiting(pending(site, view, found, view.unhelped), found, view.at)
    # A new job may get a machine that idles, but growth starts no machine for the job yet.
    untried = untried_jobs(site, view)
    unserved = [job for job in queue if job.id not in untried]
    arriving = coming(site, view, pools)
    boots = {job.id for job in arriving}
    is_narrow = any(job.avoids or job.named for job in unserved)
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
            pools=tuple(one.now(running, named=is_narrow) for one in found),
            queue=(*arriving, *unserved),
            covered=tuple(sorted({*covered, *(job.id for job in arriving)})),
        ),
        startable={one.pool.name: tuple(one.off) for one in found},
        unheld={one.pool.name: tuple(one.unheld) for one in found},
        held={one.pool.name: one.held for one in found},
        loose=tuple(node for one in found for node in one.loose),
        idle=idle,
    )
