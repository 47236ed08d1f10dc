"""Whose machine it is, where several clouds of a site are one front end. Pure; see aws_claim."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_elastic.config import Cluster, Config, OpenNebulaCloud
from slurm_elastic.providers import aws_tags
from slurm_elastic.providers import opennebula_request as request
from slurm_elastic.providers.aws_claim import UNCLEAR, Claim

__all__ = ["UNCLEAR", "Claim", "claim_of", "owner"]


def claim_of(settings: OpenNebulaCloud, cluster: Cluster, config: Config | None) -> Claim:
    """What a cloud shares its front end with; without a ``config`` it is alone there."""
    clouds = {settings.name}
    if config is not None:
        clouds |= {
            other.name
            for other in config.clouds
            if isinstance(other, OpenNebulaCloud) and other.endpoint == settings.endpoint
        }
    pools = config.pools if config is not None else ()
    return Claim(
        cluster=cluster.uuid or "",
        clouds=frozenset(clouds),
        pools={pool.name: pool.cloud for pool in pools if pool.cloud in clouds},
    )


def owner(claim: Claim, tags: Mapping[str, str]) -> str | None:
    """The cloud's name; UNCLEAR where the tags do not tell, None for another cluster's."""
    keys = {
        request.CLUSTER: aws_tags.CLUSTER,
        request.CLOUD: aws_tags.CLOUD,
        request.POOL: aws_tags.POOL,
    }
    return claim.owner({keys[key]: value for key, value in tags.items() if key in keys})
