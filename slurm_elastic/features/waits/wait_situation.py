"""The facts from which a job's wait is judged (``policies/waits``), joined in one place.

Each service and command reads these facts in its own way, so they come as values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, blocked_clouds, domain_pools
from slurm_elastic.config.limit_changes import with_limits
from slurm_elastic.config.node_limits import max_cloud_nodes, max_pool_nodes
from slurm_elastic.features.growth.reserved_nodes import reserved_nodes
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.slurm import Reservation, SlurmNode
from slurm_elastic.model.slurm_words import partition_states
from slurm_elastic.policies.launch.verdict import PoolCase, PoolNodeCounts
from slurm_elastic.policies.waits.situation import Obstacles, Situation


class WaitFacts(Struct, frozen=True, kw_only=True):
    """The facts at ``now`` (Unix time). ``obstacles``: what the records know. ``nodes``: None if
    they are unknown. ``partition_states``, ``max_times``: by partition. ``hides_nodes``: users may
    not see how many nodes are in which state. ``fixed_arrays``: the arrays of which a task has
    started.

    The rest matters only for partitions that a job does not list: ``default``: the site's default
    partition. ``groups``: of the job's user (None: unknown). ``client_timeout_s``: how long srun
    waits for nodes. ``unlisted``: why the submit filter gives no job our partitions.
    """

    now: float
    obstacles: Obstacles = Obstacles()
    nodes: Mapping[str, SlurmNode] | None = None
    partition_states: Mapping[str, str] = {}
    max_times: Mapping[str, float | None] = {}
    reservations: Sequence[Reservation] = ()
    hides_nodes: bool = False
    fixed_arrays: frozenset[int] = frozenset()
    default: str = ""
    groups: frozenset[str] | None = None
    client_timeout_s: float = 0.0
    unlisted: str = ""


class ShutPartition(Struct, frozen=True, kw_only=True):
    """Why a partition does not take jobs or does not start them (``keeps_jobs``), and the command
    that opens it.
    """

    text: str
    do: str
    keeps_jobs: bool


def shut_partition(name: str, state: str) -> ShutPartition | None:
    """Return why the partition in that state is shut; None if it takes jobs and starts them."""
    row = partition_states.row_of(state)
    if row is None or not (row.keeps_jobs or row.refuses):
        return None
    return ShutPartition(
        text=f"partition {name} is {row.name}: {row.meaning}; Slurm does not record who set that",
        do=f"scontrol update partitionname={name} state=up",
        keeps_jobs=row.keeps_jobs,
    )


def situation_of(config: Config, facts: WaitFacts) -> Situation:
    """Return the situation. ``config``: without the limits that operators' orders change."""
    cases = tuple(_pool_cases(config, facts))
    return Situation(
        now=facts.now,
        cases=cases,
        max_times={case.partition: case.max_time for case in cases} | dict(facts.max_times),
        obstacles=facts.obstacles,
        fixed_arrays=facts.fixed_arrays,
        default=facts.default,
        groups=facts.groups,
    )


def _pool_cases(config: Config, facts: WaitFacts) -> Iterator[PoolCase]:
    blocked, nodes = blocked_clouds(config), facts.nodes or {}
    bars = {bar.pool: bar for bar in facts.obstacles.bars}
    ordered = with_limits(config, facts.obstacles.limits)
    ordered_pools = {pool.name: pool for pool in domain_pools(ordered, expand)}
    for pool in domain_pools(config, expand):
        cloud = config.cloud(pool.cloud)
        access = config.who_of(cloud)
        state = facts.partition_states.get(cloud.partition_name, "UP")
        shut = None if cloud.name in blocked else shut_partition(cloud.partition_name, state)
        of_pool = [nodes[name] for name in pool.nodes if name in nodes]
        yield PoolCase(
            pool=pool,
            partition=cloud.partition_name,
            accounts=access.accounts,
            groups=access.groups,
            qos=access.qos,
            site_partitions=access.partitions,
            no_requeue_on_spot=access.no_requeue_on_spot,
            # PartitionName=DEFAULT gives the partition a MaxTime if ``allow`` sets none.
            max_time=_smaller(access.max_time, facts.max_times.get(cloud.partition_name)),
            interactive=config.resume_timeout(cloud) <= facts.client_timeout_s,
            # An order is temporary: a job that fits the file's limits or the order's can start.
            most=max(
                max_pool_nodes(config, pool), max_pool_nodes(ordered, ordered_pools[pool.name])
            ),
            cloud_most=_larger(
                max_cloud_nodes(config, cloud), max_cloud_nodes(ordered, ordered.cloud(cloud.name))
            ),
            nodes=PoolNodeCounts.of(
                of_pool,
                config.slurm.drain_terms,
                hold=facts.obstacles.held.get(pool.name, ""),
                is_hidden=facts.hides_nodes,
            )
            if of_pool
            else None,
            stop=facts.obstacles.end_only,
            bar=bars.get(pool.name),
            is_public=cloud.location is Location.PUBLIC,
            unlisted=facts.unlisted,
            shut=f"{shut.text}; do: {shut.do}" if shut else "",
            reserved=reserved_nodes(facts.reservations, pool.nodes, facts.now),
        )


def _smaller(limit: float | None, other_limit: float | None) -> float | None:
    """Return the smaller limit; None is no limit."""
    return min((each for each in (limit, other_limit) if each is not None), default=None)


def _larger(limit: int | None, other_limit: int | None) -> int | None:
    """Return the larger limit; None is no limit."""
    return None if limit is None or other_limit is None else max(limit, other_limit)
