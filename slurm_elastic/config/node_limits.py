"""How many nodes may be up together under the limits of the configuration. Pure."""

from __future__ import annotations

from slurm_elastic.config import Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.pool_rules import cheapest
from slurm_elastic.model.cluster import Pool
from slurm_elastic.policies.launch.verdict import most_nodes


def max_pool_nodes(config: Config, pool: Pool) -> int:
    """The pool's maximum: its nodes, or fewer by the limits on dollars per hour."""
    cloud = config.cloud(pool.cloud)
    caps = (config.limits.dollars_per_hour, cloud.limits.dollars_per_hour)
    return most_nodes(pool, cheapest(cloud, pool), caps)


def max_cloud_nodes(config: Config, cloud: CloudSettings) -> int | None:
    """The cloud's maximum by its own limit and the cluster's. None without either."""
    limits = (config.limits.nodes, cloud.limits.nodes)
    return min((limit for limit in limits if limit is not None), default=None)
