"""Which clouds of a site are one account and region of EC2. Pure; see claim."""

from __future__ import annotations

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.clouds import AnyCloud, AwsCloud
from slurm_elastic.providers import claim
from slurm_elastic.providers.claim import Claim


def claim_of(settings: AwsCloud, cluster: Cluster, config: Config | None) -> Claim:
    """What a cloud shares its place with; without a ``config`` it is alone there."""

    def there(other: AnyCloud) -> bool:
        place = (settings.region, settings.endpoint)
        return isinstance(other, AwsCloud) and (other.region, other.endpoint) == place

    return claim.claim_of(settings, cluster, config, there)
