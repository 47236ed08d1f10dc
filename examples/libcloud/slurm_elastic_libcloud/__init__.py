"""Any cloud that Apache Libcloud has a driver for, on demand."""

from __future__ import annotations

from msgspec import field

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.basics.numbers import Seconds
from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.config.clouds import LISTING_LAG, CloudSettings, InstanceType, without_spot
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.protocols import Provider


class LibcloudCloud(
    CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="libcloud"
):
    """``driver`` as libcloud has it, ``credentials`` a JSON file of its arguments by name.
    ``types`` are libcloud's sizes. ``arguments``: more of ``create_node``, as ``ex_keyname``.
    """

    driver: str
    credentials: str
    image: str
    types: dict[str, InstanceType]
    arguments: dict[str, str] = field(default_factory=dict)
    listing_lag: Seconds = LISTING_LAG

    @property
    def markets(self) -> frozenset[Market]:
        """No spot: libcloud does not know it."""
        return without_spot(self.location) | self.reserved_market

    def shares_place(self, other: CloudSettings) -> bool:
        """Credentials do not tell which account they lead to."""
        return isinstance(other, LibcloudCloud)


def _open(settings: LibcloudCloud, cluster: Cluster, config: Config | None) -> Provider:
    from slurm_elastic_libcloud.provider import LibcloudProvider, driver_of

    return LibcloudProvider(settings, cluster, config, driver_of(settings))


CLOUD = CloudKind(settings=LibcloudCloud, open=_open, api=1)
