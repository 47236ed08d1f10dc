"""Which clouds of a site are one front end of OpenNebula. Pure; see claim."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.clouds import AnyCloud, OpenNebulaCloud
from slurm_elastic.providers import claim
from slurm_elastic.providers import opennebula_request as request
from slurm_elastic.providers.claim import Claim

_KEYS = {
    claim.CLUSTER: request.CLUSTER,
    claim.CLOUD: request.CLOUD,
    claim.POOL: request.POOL,
}


def claim_of(settings: OpenNebulaCloud, cluster: Cluster, config: Config | None) -> Claim:
    """What a cloud shares its front end with; without a ``config`` it is alone there."""

    def there(other: AnyCloud) -> bool:
        return isinstance(other, OpenNebulaCloud) and other.endpoint == settings.endpoint

    return claim.claim_of(settings, cluster, config, there)


def owner(of: Claim, tags: Mapping[str, str]) -> str | None:
    """The cloud's name; UNCLEAR where the tags do not tell, None for another cluster's."""
    return of.owner(tags, _KEYS)
