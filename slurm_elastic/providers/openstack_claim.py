"""Whose machine it is, where several clouds of a site are one project. Pure; see aws_claim."""

from __future__ import annotations

from slurm_elastic.config import Cluster, Config, OpenStackCloud
from slurm_elastic.providers.aws_claim import UNCLEAR, Claim

__all__ = ["UNCLEAR", "Claim", "claim_of"]


def claim_of(settings: OpenStackCloud, cluster: Cluster, config: Config | None) -> Claim:
    """What a cloud shares its project with; without a ``config`` it is alone there.

    Entries of clouds.yaml do not tell which project they lead to (an application credential names
    none), so any other OpenStack may be this one: its machines are told by the cloud's name.
    """
    clouds = {settings.name}
    if config is not None:
        clouds |= {other.name for other in config.clouds if isinstance(other, OpenStackCloud)}
    pools = config.pools if config is not None else ()
    return Claim(
        cluster=cluster.uuid or "",
        clouds=frozenset(clouds),
        pools={pool.name: pool.cloud for pool in pools if pool.cloud in clouds},
    )
