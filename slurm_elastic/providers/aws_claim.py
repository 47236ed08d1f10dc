"""Whose machine it is, where several clouds of a site are one account and region. Pure.

The tag ``slurm-elastic:cloud`` says so. A machine that an earlier version started has none, and a
cloud may have been renamed since: then it is the only cloud's there, or else that of its pool.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from slurm_elastic.config import AwsCloud, Cluster, Config
from slurm_elastic.providers.aws_tags import CLOUD, CLUSTER, POOL

UNCLEAR = ""
"""The owner of a machine of this cluster that might be any of several clouds'."""


class Claim(Struct, frozen=True, kw_only=True):
    """What of an account is whose. ``clouds``: all that are configured at this place, of which
    ``pools`` gives each pool's.
    """

    cluster: str
    clouds: frozenset[str]
    pools: Mapping[str, str] = field(default_factory=dict)

    def owner(self, tags: Mapping[str, str]) -> str | None:
        """The cloud's name; UNCLEAR where the tags do not tell, None for another cluster's."""
        if tags.get(CLUSTER) != self.cluster:
            return None
        named = tags.get(CLOUD)
        if named in self.clouds:
            return named
        if len(self.clouds) == 1:
            return next(iter(self.clouds))
        return self.pools.get(tags.get(POOL, ""), UNCLEAR)


def claim_of(settings: AwsCloud, cluster: Cluster, config: Config | None) -> Claim:
    """What a cloud shares its place with; without a ``config`` it is alone there."""
    clouds = {settings.name}
    if config is not None:
        clouds |= {
            other.name
            for other in config.clouds
            if isinstance(other, AwsCloud)
            and (other.region, other.endpoint) == (settings.region, settings.endpoint)
        }
    pools = config.pools if config is not None else ()
    return Claim(
        cluster=cluster.uuid or "",
        clouds=frozenset(clouds),
        pools={pool.name: pool.cloud for pool in pools if pool.cloud in clouds},
    )
