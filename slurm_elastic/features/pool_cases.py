"""The facts about each pool by which a job's wait is judged (``policies.launch.verdict``).

``explain`` and the notes on waiting jobs are made of the same facts, so they say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, blocked_clouds, domain_pools
from slurm_elastic.config.node_limits import max_cloud_nodes, max_pool_nodes
from slurm_elastic.features.reserved_nodes import reserved_nodes
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.slurm import Reservation, SlurmNode
from slurm_elastic.model.slurm_words import partition_states
from slurm_elastic.policies.launch.verdict import PoolCase


class WaitFacts(Struct, frozen=True, kw_only=True):
    """The facts at ``now`` (Unix time). ``nodes``: None if they are unknown or hidden.
    ``partition_states``: by partition. ``bars``: by pool, why it starts no machines. ``barred``:
    why the job's account gets no machine of a public cloud. ``end_only``: why the daemon buys
    nothing. ``client_timeout_s``: how long srun waits for nodes. ``unlisted``: why the submit
    filter gives no job our partitions.
    """

    now: float
    nodes: Mapping[str, SlurmNode] | None = None
    partition_states: Mapping[str, str] = {}
    reservations: Sequence[Reservation] = ()
    bars: Mapping[str, str] = {}
    barred: str = ""
    end_only: str = ""
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


def pool_cases(config: Config, facts: WaitFacts) -> Iterator[PoolCase]:
    """Yield each pool with everything that may keep a job from it."""
    blocked, nodes = blocked_clouds(config), facts.nodes or {}
    for pool in domain_pools(config, expand):
        cloud = config.cloud(pool.cloud)
        access = config.who_of(cloud)
        account = facts.barred if cloud.location is Location.PUBLIC else ""
        state = facts.partition_states.get(cloud.partition_name, "UP")
        shut = None if cloud.name in blocked else shut_partition(cloud.partition_name, state)
        yield PoolCase(
            pool=pool,
            partition=cloud.partition_name,
            accounts=access.accounts,
            groups=access.groups,
            qos=access.qos,
            site_partitions=access.partitions,
            max_time=access.max_time,
            interactive=config.resume_timeout(cloud) <= facts.client_timeout_s,
            most=max_pool_nodes(config, pool),
            cloud_most=max_cloud_nodes(config, cloud),
            nodes={name: nodes[name] for name in pool.nodes if name in nodes} or None,
            bar=facts.end_only or account or facts.bars.get(pool.name, ""),
            unlisted=facts.unlisted,
            shut=f"{shut.text}; do: {shut.do}" if shut else "",
            reserved=reserved_nodes(facts.reservations, pool.nodes, facts.now),
        )
