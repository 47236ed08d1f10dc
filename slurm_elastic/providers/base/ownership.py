"""Whose machine it is, where several clouds of a site are one account, front end or host. Pure.

The tag ``slurm-elastic:cloud`` says so. A machine that an earlier version started has none, and a
cloud may have been renamed since: then it is the only cloud's there, or else that of its pool.
Of clouds that spell their tags otherwise keys are translated before (``machine_tags.Spelling``).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.providers.base.tags import CLOUD, CLUSTER, POOL

AMBIGUOUS = ""
"""The owner of a machine of this cluster that might be any of several clouds'."""


class Ownership(Struct, frozen=True, kw_only=True):
    """The owners at one place. ``clouds``: all that are configured at this place, of which
    ``pools`` gives each pool's.
    """

    cluster: str
    clouds: frozenset[str]
    pools: Mapping[str, str] = field(default_factory=dict)

    def owner(self, tags: Mapping[str, str]) -> str | None:
        """The cloud's name; AMBIGUOUS where the tags do not tell, None for another cluster's."""
        if tags.get(CLUSTER) != self.cluster:
            return None
        cloud = tags.get(CLOUD)
        if cloud in self.clouds:
            return cloud
        if len(self.clouds) == 1:
            return next(iter(self.clouds))
        return self.pools.get(tags.get(POOL, ""), AMBIGUOUS)


def ownership_of(settings: CloudSettings, cluster: Cluster, config: Config | None) -> Ownership:
    """The place that a cloud shares with others; without a ``config`` it is alone there."""
    clouds = {settings.name}
    if config is not None:
        clouds |= {other.name for other in config.clouds if settings.shares_place(other)}
    pools = config.pools if config is not None else ()
    return Ownership(
        cluster=cluster.uuid or "",
        clouds=frozenset(clouds),
        pools={pool.name: pool.cloud for pool in pools if pool.cloud in clouds},
    )
