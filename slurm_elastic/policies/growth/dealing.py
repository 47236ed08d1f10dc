"""Deals the pending jobs out to the pools that they may use, and asks the growth policy for each
group. Pure.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.policies.growth.capacity import Slurm
from slurm_elastic.policies.growth.counted_once import counts_by_nodes
from slurm_elastic.policies.growth.scaling import (
    Dealt,
    GroupSnapshot,
    IdleInstance,
    PendingJob,
    PoolRules,
    PoolSnapshot,
    ScaleUp,
    ScalingPlan,
    SharedRoom,
    by_cloud,
    decide,
    head_start,
    holds_back,
)
from slurm_elastic.policies.growth.unused_purchases import is_long_idle


class _Narrow(NamedTuple):
    """The nodes that the jobs of one class can use: none of ``avoids``, and ``named`` first."""

    avoids: str = ""
    named: str = ""


def split_demand(group: GroupSnapshot) -> list[tuple[GroupSnapshot, ScalingPlan]]:
    """Return each snapshot for which the policies were asked, and their plan.

    ``running`` and ``head_start`` of ``group`` are not read: each snapshot has its own, from its
    pools.
    """
    remaining_pools = {pool.name: pool for pool in group.pools}
    classes: dict[tuple[tuple[str, ...], _Narrow], list[PendingJob]] = {}
    # A dictionary keeps the order of the queue, so the class of the first job chooses first.
    for job in group.queue:
        able = tuple(name for name in remaining_pools if name in job.pools)
        classes.setdefault((able, _Narrow(job.avoids, job.named)), []).append(job)
    planned: list[tuple[GroupSnapshot, ScalingPlan]] = []
    for (able, narrow), jobs in classes.items():
        pools = [remaining_pools[name] for name in able]
        moment = _moment(group, [_narrowed(pool, narrow) for pool in pools], jobs)
        plan = _placed(moment, decide(moment), narrow)
        planned.append((moment, plan))
        group = replace(group, shared_rooms=take_shared(group.shared_rooms, plan.starts))
        for whole, remaining_pool in zip(pools, _remaining(moment, plan), strict=True):
            remaining_pools[whole.name] = (
                _widened(whole, remaining_pool, narrow, plan) if any(narrow) else remaining_pool
            )
    # A class of jobs that can use only some nodes of a pool handles neither its warm machines nor
    # its idle ones, so the whole pool is asked once more here.
    asked_names = {name for able, narrow in classes if not any(narrow) for name in able}
    unasked_pools = [pool for name, pool in remaining_pools.items() if name not in asked_names]
    if unasked_pools and not any(plan.failed for _, plan in planned):
        # If jobs wait in other pools, the policy must not grow these pools, for which no job waits.
        quiet_group = group if not classes else replace(group, growth=Slurm())
        moment = _moment(quiet_group, unasked_pools, ())
        planned.append((moment, decide(moment)))
    return planned


def needs_several_machines(now: GroupSnapshot) -> bool:
    """Whether a job needs several machines that a policy of ours would start."""
    covered = frozenset(now.covered)
    return holds_back(now.growth) and any(
        job.nodes > 1 and (counts_by_nodes(now.growth) or job.id not in covered)
        for job in now.queue
    )


def tasks_on_machines(now: GroupSnapshot) -> dict[int, int]:
    """Return by job how many of its tasks have all their machines among those that boot, or that
    came a moment ago.
    """
    pools = tuple(
        replace(
            pool, rules=PoolRules(growth=Slurm()), room=0, total_room=0,
            idle=pool.idle if _boots(now, pool) else _young(pool, now.now),
        )
        for pool in now.pools
    )  # fmt: skip
    tasks: dict[int, list[int]] = {}
    for moment, _ in split_demand(replace(now, growth=Slurm(), pools=pools, shared_rooms=())):
        dealt = Dealt(moment)
        served = Counter(
            job.id for job, share in zip(dealt.jobs, dealt.shares, strict=True) if share is not None
        )
        for job in moment.queue:
            tasks.setdefault(job.id, []).append(served[job.id])
    # A job with nodes of several kinds has a row for each kind, and needs all of them.
    return {job: min(counts) for job, counts in tasks.items() if min(counts)}


def _boots(now: GroupSnapshot, pool: PoolSnapshot) -> bool:
    """Whether machines boot in the pool's cloud. Idle machines there may wait for these."""
    cloud = pool.cloud or pool.name
    return any(other.booting for other in now.pools if (other.cloud or other.name) == cloud)


def _young(pool: PoolSnapshot, now: int) -> tuple[IdleInstance, ...]:
    """Return the machines that became idle a moment ago. Slurm evidently starts no job of ours on
    the others.
    """
    return tuple(machine for machine in pool.idle if not is_long_idle(machine.since, now))


@functools.lru_cache(maxsize=256)
def _names(hostlist: str) -> frozenset[str]:
    return frozenset(_listed(hostlist))


def _listed(hostlist: str) -> list[str]:
    return expand(hostlist) if hostlist else []


def _narrowed(pool: PoolSnapshot, narrow: _Narrow) -> PoolSnapshot:
    """Return the part of the pool that jobs of this class can use."""
    if not any(narrow):
        return pool
    avoids = _names(narrow.avoids)
    off = [node for node in _listed(pool.off) if node not in avoids]
    total = pool.room if pool.total_room is None else pool.total_room
    return replace(
        pool,
        # The snapshot of the whole pool handles warm and idle machines.
        rules=replace(pool.rules, min_idle=0, release=None),
        room=min(pool.room, len(off)),
        total_room=min(total, len(off)),
        off=compress(off),
        idle=tuple(machine for machine in pool.idle if machine.node not in avoids),
    )


def _placed(moment: GroupSnapshot, plan: ScalingPlan, narrow: _Narrow) -> ScalingPlan:
    """Return the plan with the nodes to start, for jobs that can use only some nodes."""
    if not any(narrow):
        return plan
    named, off = _names(narrow.named), {pool.name: _listed(pool.off) for pool in moment.pools}
    starts: list[ScaleUp] = []
    started_nodes: set[str] = set()
    for start in plan.starts:
        # Nodes that a job names come first, because it can start on no others.
        free = [node for node in off[start.pool] if node not in started_nodes]
        nodes = sorted(free, key=lambda node: node not in named)[: start.machines]
        started_nodes.update(nodes)
        starts.append(start._replace(nodes=tuple(nodes)))
    return replace(plan, starts=tuple(starts))


def _widened(
    whole: PoolSnapshot, narrow_pool: PoolSnapshot, narrow: _Narrow, plan: ScalingPlan
) -> PoolSnapshot:
    """Return the whole pool without the nodes that the narrow class has used."""
    started = {node for start in plan.starts for node in start.nodes if start.pool == whole.name}
    avoids, unused = _names(narrow.avoids), {machine.node for machine in narrow_pool.idle}
    total = whole.total_room
    return replace(
        narrow_pool,
        rules=whole.rules,
        room=whole.room - len(started),
        total_room=None if total is None else total - len(started),
        off=compress(node for node in _listed(whole.off) if node not in started),
        idle=tuple(machine for machine in whole.idle if machine.node in avoids | unused),
    )


def _moment(
    group: GroupSnapshot, pools: Sequence[PoolSnapshot], jobs: Sequence[PendingJob]
) -> GroupSnapshot:
    free = ([when for pool in of_cloud for when in pool.free] for of_cloud in by_cloud(pools))
    return replace(
        group,
        pools=tuple(pools),
        queue=tuple(jobs),
        running=sum(pool.running for pool in pools),
        head_start=head_start(jobs[0].nodes, group.now, free) if jobs else None,
    )


def _remaining(moment: GroupSnapshot, plan: ScalingPlan) -> Iterable[PoolSnapshot]:
    """Yield the pools with the machines that these jobs leave to the next class."""
    dealt = Dealt(moment)
    counts = Counter[str]()
    for share in dealt.shares:
        counts.update(dict(share.free) if share is not None else {})
    leaving_nodes = {leave.node for leave in plan.leaves}
    for pool in moment.pools:
        started = sum(start.machines for start in plan.starts if start.pool == pool.name)
        idle = tuple(machine for machine in pool.idle if machine.node not in leaving_nodes)
        # These jobs take idle machines, then booting ones; the next class must not count them.
        of_idle = min(counts[pool.name], len(idle))
        of_booting = min(counts[pool.name] - of_idle, pool.booting)
        yield replace(
            pool,
            # Warm machines are handled once, with the first class.
            rules=replace(pool.rules, min_idle=0),
            room=pool.room - started,
            total_room=None if pool.total_room is None else pool.total_room - started,
            idle=idle[of_idle:],
            taken=tuple(node for node in pool.taken if node not in leaving_nodes),
            booting=pool.booting - of_booting,
            promised=pool.promised + of_idle + of_booting + started,
        )


def take_shared(bounds: Sequence[SharedRoom], starts: Iterable[ScaleUp]) -> tuple[SharedRoom, ...]:
    """Return what these starts leave of the bounds that several pools share."""
    counts = Counter[str]()
    for start in starts:
        counts[start.pool] += start.machines
    return tuple(
        bound._replace(
            left=bound.left - sum(bound.costs.get(pool, 0.0) * n for pool, n in counts.items())
        )
        for bound in bounds
    )
