"""Which clouds of a site are one project of OpenStack. Pure; see claim."""

from __future__ import annotations

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.clouds import AnyCloud, OpenStackCloud
from slurm_elastic.providers import claim
from slurm_elastic.providers.claim import Claim


def claim_of(settings: OpenStackCloud, cluster: Cluster, config: Config | None) -> Claim:
    """What a cloud shares its project with; without a ``config`` it is alone there.

    Entries of clouds.yaml do not tell which project they lead to (an application credential names
    none), so any other OpenStack may be this one: its machines are told by the cloud's name.
    """

    def there(other: AnyCloud) -> bool:
        return isinstance(other, OpenStackCloud)

    return claim.claim_of(settings, cluster, config, there)
