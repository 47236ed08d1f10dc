"""Waiting jobs dealt out to the pools that they may use, before a growth policy is asked. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.policies.growth.capacity import Slurm
from slurm_elastic.policies.growth.scaling import (
    GroupSnapshot,
    PendingJob,
    PoolSnapshot,
    ScaleUp,
    ScalingPlan,
    decide,
    head_start,
)


class _Narrow(NamedTuple):
    """Which nodes the jobs of one class can use: not those of ``avoids``, and ``named`` first."""

    avoids: str = ""
    named: str = ""


def split_demand(group: GroupSnapshot) -> list[tuple[GroupSnapshot, ScalingPlan]]:
    """Each moment that the policies are asked for, and what they say. ``running`` and
    ``head_start`` of ``group`` are not read: each moment has its own, by its pools.
    """
    left = {pool.name: pool for pool in group.pools}
    classes: dict[tuple[tuple[str, ...], _Narrow], list[PendingJob]] = {}
    for job in group.queue:
        able = tuple(name for name in left if name in job.pools)
        classes.setdefault((able, _Narrow(job.avoids, job.named)), []).append(job)
    found: list[tuple[GroupSnapshot, ScalingPlan]] = []
    for (able, narrow), jobs in classes.items():
        pools = [left[name] for name in able]
        moment = _moment(group, [_narrowed(pool, narrow) for pool in pools], jobs)
        plan = _placed(moment, decide(moment), narrow)
        found.append((moment, plan))
        for whole, rest in zip(pools, _remaining(moment, plan), strict=True):
            left[whole.name] = _widened(whole, rest, narrow, plan) if any(narrow) else rest
    # Jobs that can use only some nodes of a pool see neither to its warm machines nor to idle ones.
    wanted = {name for able, narrow in classes if not any(narrow) for name in able}
    others = [pool for name, pool in left.items() if name not in wanted]
    if others and not any(plan.failed for _, plan in found):
        # Where jobs wait elsewhere nothing is started here for its own sake.
        alone = group if not classes else replace(group, growth=Slurm())
        moment = _moment(alone, others, ())
        found.append((moment, decide(moment)))
    return found


@functools.lru_cache(maxsize=256)
def _names(hostlist: str) -> frozenset[str]:
    return frozenset(_listed(hostlist))


def _listed(hostlist: str) -> list[str]:
    return expand(hostlist) if hostlist else []


def _narrowed(pool: PoolSnapshot, narrow: _Narrow) -> PoolSnapshot:
    """The part of the pool that such jobs can use."""
    if not any(narrow):
        return pool
    avoids = _names(narrow.avoids)
    off = [node for node in _listed(pool.off) if node not in avoids]
    total = pool.room if pool.total_room is None else pool.total_room
    return replace(
        pool,
        # Warm machines and idle ones are seen to in a moment of the whole pool.
        rules=replace(pool.rules, min_idle=0, release=None),
        room=min(pool.room, len(off)),
        total_room=min(total, len(off)),
        off=compress(off),
        idle=tuple(one for one in pool.idle if one.node not in avoids),
    )


def _placed(moment: GroupSnapshot, plan: ScalingPlan, narrow: _Narrow) -> ScalingPlan:
    """The plan with the nodes that it starts, for jobs that can use only some."""
    if not any(narrow):
        return plan
    named, off = _names(narrow.named), {pool.name: _listed(pool.off) for pool in moment.pools}
    starts: list[ScaleUp] = []
    gone: set[str] = set()
    for start in plan.starts:
        free = [node for node in off[start.pool] if node not in gone]
        nodes = sorted(free, key=lambda node: node not in named)[: start.machines]
        gone.update(nodes)
        starts.append(start._replace(nodes=tuple(nodes)))
    return replace(plan, starts=tuple(starts))


def _widened(
    whole: PoolSnapshot, rest: PoolSnapshot, narrow: _Narrow, plan: ScalingPlan
) -> PoolSnapshot:
    """The whole pool without what the narrow class has taken of it."""
    started = {node for start in plan.starts for node in start.nodes if start.pool == whole.name}
    avoids, unused = _names(narrow.avoids), {one.node for one in rest.idle}
    total = whole.total_room
    return replace(
        rest,
        rules=whole.rules,
        room=whole.room - len(started),
        total_room=None if total is None else total - len(started),
        off=compress(node for node in _listed(whole.off) if node not in started),
        idle=tuple(one for one in whole.idle if one.node in avoids | unused),
    )


def _moment(
    group: GroupSnapshot, pools: Sequence[PoolSnapshot], jobs: Sequence[PendingJob]
) -> GroupSnapshot:
    free = (when for pool in pools for when in pool.free)
    return replace(
        group,
        pools=tuple(pools),
        queue=tuple(jobs),
        running=sum(pool.running for pool in pools),
        head_start=head_start(jobs[0].nodes, group.now, free) if jobs else None,
    )


def _remaining(moment: GroupSnapshot, plan: ScalingPlan) -> Iterable[PoolSnapshot]:
    """The machines that these jobs leave to the next ones."""
    need = sum(job.nodes * max(job.times, 1) for job in moment.queue)
    gone = {leave.node for leave in plan.leaves}
    for pool in moment.pools:
        started = sum(start.machines for start in plan.starts if start.pool == pool.name)
        idle = tuple(one for one in pool.idle if one.node not in gone)
        of_idle = min(need, len(idle))
        of_booting = min(need - of_idle, pool.booting)
        need -= of_idle + of_booting
        yield replace(
            pool,
            # Warm machines are seen to once, with the first jobs.
            rules=replace(pool.rules, min_idle=0),
            room=pool.room - started,
            total_room=None if pool.total_room is None else pool.total_room - started,
            idle=idle[of_idle:],
            taken=tuple(node for node in pool.taken if node not in gone),
            booting=pool.booting - of_booting,
            promised=pool.promised + of_idle + of_booting + started,
        )
