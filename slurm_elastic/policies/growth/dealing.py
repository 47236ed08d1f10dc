"""Waiting jobs dealt out to the pools that they may use, before a growth policy is asked. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from slurm_elastic.policies.growth.capacity import Slurm
from slurm_elastic.policies.growth.scaling import (
    GroupSnapshot,
    PendingJob,
    PoolSnapshot,
    ScalingPlan,
    decide,
    head_start,
)


def split_demand(group: GroupSnapshot) -> list[tuple[GroupSnapshot, ScalingPlan]]:
    """Each moment that the policies are asked for, and what they say. ``running`` and
    ``head_start`` of ``group`` are not read: each moment has its own, by its pools.
    """
    left = {pool.name: pool for pool in group.pools}
    classes: dict[tuple[str, ...], list[PendingJob]] = {}
    for job in group.queue:
        classes.setdefault(tuple(name for name in left if name in job.pools), []).append(job)
    found: list[tuple[GroupSnapshot, ScalingPlan]] = []
    for able, jobs in classes.items():
        moment = _moment(group, [left[name] for name in able], jobs)
        plan = decide(moment)
        found.append((moment, plan))
        for pool in _remaining(moment, plan):
            left[pool.name] = pool
    wanted = {name for able in classes for name in able}
    rest = [pool for name, pool in left.items() if name not in wanted]
    if rest and not any(plan.failed for _, plan in found):
        # Where jobs wait elsewhere nothing is started here for its own sake.
        alone = group if not classes else replace(group, growth=Slurm())
        moment = _moment(alone, rest, ())
        found.append((moment, decide(moment)))
    return found


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
