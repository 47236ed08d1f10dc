"""Decides which cloud a machine belongs to, if several clouds of a site share an account, front end
or host. Pure.

The tag ``slurm-elastic:cloud`` names it. The tag is out of date if the cloud was renamed, and it is
missing if a person removed it. Then the machine belongs to the only cloud at this place, or else to
the cloud of its pool. Clouds that spell their tags differently translate
the keys first (``machine_tags.Spelling``).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.providers.base.tags import CLOUD, CLUSTER, POOL

AMBIGUOUS = ""
"""The owner of a machine of this cluster that could belong to any of several clouds."""


class Ownership(Struct, frozen=True, kw_only=True):
    """The owners at one place. ``clouds``: all clouds configured there. ``pools``: the cloud of
    each of their pools.
    """

    cluster: str
    clouds: frozenset[str]
    pools: Mapping[str, str] = field(default_factory=dict)

    def owner(self, tags: Mapping[str, str]) -> str | None:
        """The name of the cloud; AMBIGUOUS if the tags do not decide, None if it is not this
        cluster's machine.
        """
        if tags.get(CLUSTER) != self.cluster:
            return None
        cloud = tags.get(CLOUD)
        if cloud in self.clouds:
            return cloud
        # A renamed cloud still has its machines: without this line they would run unseen.
        if len(self.clouds) == 1:
            return next(iter(self.clouds))
        # Ambiguous machines are left alone: ending one could kill another cloud's jobs.
        return self.pools.get(tags.get(POOL, ""), AMBIGUOUS)


def ownership_of(settings: CloudSettings, cluster: Cluster, config: Config | None) -> Ownership:
    """The owners at the place of these settings. Without a ``config`` the cloud is the only one
    there.
    """
    clouds = {settings.name}
    if config is not None:
        clouds |= {other.name for other in config.clouds if settings.shares_place(other)}
    pools = config.pools if config is not None else ()
    return Ownership(
        cluster=cluster.uuid or "",
        clouds=frozenset(clouds),
        pools={pool.name: pool.cloud for pool in pools if pool.cloud in clouds},
    )
