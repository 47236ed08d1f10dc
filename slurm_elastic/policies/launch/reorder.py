"""Finds waiting jobs that get another order of their partitions, because prices or stock have
changed since they were submitted. Pure.

Only a list that the submit filter has made is changed (``order_note``): a partition of the site,
the default one or one that the job named, then several of ours. All other lists are a user's
choice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.model.causes.composed import CloudsReordered
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.job_data import counted_data
from slurm_elastic.policies.launch.pool_order import (
    COSTS,
    DEFAULT_RUN_S,
    JobShape,
    PoolTerms,
    RankedPool,
    keys_of,
    partition_order,
)
from slurm_elastic.policies.launch.spot_use import bears_loss
from slurm_elastic.policies.launch.verdict import could_run, need

REORDER_THRESHOLD = 0.05
"""A job keeps its order unless another cloud costs at least this share less: prices change all the
time, and each change of a job is work for slurmctld.
"""
MAX_REORDERED_JOBS = 100
"""At most this many jobs change in one look."""


class Reorder(Struct, frozen=True, kw_only=True):
    """A new partition list of a job, and why."""

    job: int
    partitions: tuple[str, ...]
    cause: CloudsReordered


def shape_of(job: SlurmJob, pools: Sequence[Pool]) -> JobShape:
    """Return the facts about a job that decide its cost. ``pools``: the pools whose partitions the
    job lists.
    """
    return JobShape(
        machines={pool.name: need(job, pool) for pool in pools if could_run(job, pool)},
        seconds=float(job.limit or DEFAULT_RUN_S),
        data=counted_data(job.comment),
    )


def terms_for(
    job: SlurmJob, table: Sequence[PoolTerms], accounts_of: Mapping[str, Collection[str]]
) -> Sequence[PoolTerms]:
    """Return the terms on which the pools would serve this job, which may have to stay off spot
    machines. ``accounts_of``: by cloud, ``allow.no_requeue_on_spot``.
    """
    return [
        terms if bears_loss(job, accounts_of.get(terms.cloud, ())) else terms.without_spot()
        for terms in table
    ]


def may_be_ours(job: SlurmJob, site_partitions: Collection[str], ours: Collection[str]) -> bool:
    """Whether the job's list has the partitions of a list of the submit filter: a partition
    in ``site_partitions``, whose jobs may use clouds, and several of ``ours``.

    Their order says nothing: slurmctld shows the partition that it tried last at the front.
    """
    clouds = {*job.partitions} & {*ours}
    own_partitions = {*job.partitions} - clouds
    return len(clouds) > 1 and len(own_partitions) == 1 and own_partitions <= {*site_partitions}


def reorders(
    jobs: Sequence[SlurmJob],
    in_force: Mapping[int, tuple[str, ...]],
    table: Sequence[PoolTerms],
    pools: Mapping[str, Pool],
    ranking: Sequence[str],
    accounts_of: Mapping[str, Collection[str]],
) -> list[Reorder]:
    """Return the changes of this look, for at most ``MAX_REORDERED_JOBS`` jobs.

    ``jobs``: pending jobs, the most urgent first. ``in_force``: by job, the order of our partitions
    in its list, which has one partition of the site, too; jobs without an order keep their list.
    ``table``: the terms of all pools in the
    order of the file. ``accounts_of``: see ``terms_for``.
    """
    changes: list[Reorder] = []
    pools_by_partition: dict[str, list[Pool]] = {}
    for terms in table:
        pools_by_partition.setdefault(terms.partition, []).append(pools[terms.pool])
    for job in jobs:
        present = in_force.get(job.id)
        own_partitions = [name for name in job.partitions if name not in (present or ())]
        # An exhausted budget has taken clouds from the list. A new order must not put them back.
        if not present or len(own_partitions) != 1 or not {*present} <= {*job.partitions}:
            continue
        job_pools = [pool for name in present for pool in pools_by_partition.get(name, ())]
        job_table = terms_for(job, table, accounts_of)
        ranked = partition_order(shape_of(job, job_pools), job_table, ranking)
        cause = _why(present, ranked, ranking)
        if cause is not None:
            order = tuple(row.terms.partition for row in ranked)
            changes.append(Reorder(job=job.id, partitions=(*own_partitions, *order), cause=cause))
        if len(changes) == MAX_REORDERED_JOBS:
            break
    return changes


def growth_order(
    table: Sequence[PoolTerms], last: tuple[str, ...], ranking: Sequence[str]
) -> tuple[str, ...]:
    """Return the partitions in which growth policies start machines, best first, in the order for a
    job of one machine and one hour, because the machines serve many jobs.

    The ``last`` order stays unless another is much better. If prices that differ by a cent spread
    machines over several clouds, they serve no job that needs them together.
    """
    job = JobShape(machines=dict.fromkeys((terms.pool for terms in table), 1), seconds=3600.0)
    ranked = partition_order(job, table, ranking)
    order = tuple(row.terms.partition for row in ranked)
    is_kept = set(last) == set(order) and better_place(last, ranked, ranking) is None
    return last if is_kept else order


def better_place(
    present: Sequence[str], ranked: Sequence[RankedPool], ranking: Sequence[str]
) -> tuple[RankedPool, RankedPool] | None:
    """Return the pool of the ``present`` order and the much better pool that comes in its place;
    None if the order stays. ``present``: partitions; ``ranked``: the same ones, best first.

    The first place that differs decides: Slurm tries the later ones only if this one is full.
    """
    rows = {row.terms.partition: row for row in ranked}
    # Without a complete ranking the job would lose a partition.
    if set(rows) != set(present):
        return None
    pairs = zip(present, ranked, strict=True)
    place = next(((rows[name], best) for name, best in pairs if rows[name] is not best), None)
    if place is None:
        return None
    was, best = place
    return place if best.cost < math.inf and _is_much_better(was, best, ranking) else None


def _why(
    present: tuple[str, ...], ranked: Sequence[RankedPool], ranking: Sequence[str]
) -> CloudsReordered | None:
    """Return why the job gets another order; None if it keeps its order."""
    place = better_place(present, ranked, ranking)
    if place is None:
        return None
    was, best = place
    return CloudsReordered(
        cloud=best.terms.cloud,
        cost=best.cost,
        instead_of=was.terms.cloud,
        instead_cost=was.cost if was.cost < math.inf else None,
        unavailable=was.terms.unavailable,
    )


def _is_much_better(was: RankedPool, best: RankedPool, ranking: Sequence[str]) -> bool:
    """Whether the first key that differs is no cost, or costs differ by more than the threshold."""
    for name, old, new in zip(keys_of(ranking), was.keys, best.keys, strict=True):
        if old != new:
            return name not in COSTS or new < old * (1 - REORDER_THRESHOLD)
    return False
