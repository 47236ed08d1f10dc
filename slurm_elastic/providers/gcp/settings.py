"""The settings of a Google Cloud as frozen values."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from slurm_elastic.config.basics.metadata_service import GCE, MetadataService
from slurm_elastic.config.basics.numbers import Seconds
from slurm_elastic.config.clouds import CloudSettings, InstanceType, SpotType
from slurm_elastic.model.cluster import Market

ENDPOINT = "https://compute.googleapis.com"
"""Compute Engine's own address."""


class GcpCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="gcp"):
    """A region of a project of Google Cloud. google-auth finds the credentials (``credentials``,
    GOOGLE_APPLICATION_CREDENTIALS, the service account of the head); they are never in this file.
    """

    project: str
    """Change it when machines should be paid by another project."""
    region: str
    """Change it when machines should run elsewhere; subnetworks are of one region."""
    zones: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Change it when other zones of the region should be used."""
    image: str
    """Change it when a newer image is there for all pools that choose none."""
    types: dict[str, SpotType] = field(default_factory=dict)
    """Change it when other machine types are used, or their prices change."""
    published_prices: bool = False
    """Change it when spot machines should be ranked by Google's spot prices of now."""
    credentials: str | None = None
    """Change it when the head has a key file of a service account."""
    endpoint: str | None = None
    """Change it when calls go by a private endpoint."""
    subnetwork: str | None = None
    """Change it when machines should not be in the project's default network."""
    external_ip: bool = False
    """Change it when machines need an address of the Internet, and there is no Cloud NAT."""
    network_tags: tuple[str, ...] = ()
    """Change it when the network's firewall rules are for machines with a tag."""
    service_account: str | None = None
    """Change it when jobs or the boot need rights in Google Cloud, such as to read a bucket."""
    labels: dict[str, str] = field(default_factory=dict)
    """Change it when bills should be split by labels of your own."""
    secure_boot: bool = False
    """Change it when the site's rules ask for it, and the image's kernel is signed."""
    user_data: str | None = None
    """Change it when machines need a first boot of your own besides joining."""
    launch_wait: Seconds = 20.0
    """Change it when Google needs longer than 20 s to say whether it has room."""

    threads: ClassVar[int] = 8
    """Calls at the same time."""
    needs_types: ClassVar[bool] = True
    has_images: ClassVar[bool] = True
    by_user_data: ClassVar[bool] = True
    can_stop: ClassVar[bool] = True
    names_images: ClassVar[bool] = True
    targets_reservations: ClassVar[bool] = True
    refuses_parts: ClassVar[bool] = True
    machine_keys: ClassVar[frozenset[str]] = frozenset(
        {"root_disk", "placement_group", "disk_price"}
    )

    @property
    def type_class(self) -> type[InstanceType]:
        """The class of the cloud's types."""
        return SpotType

    @property
    def markets(self) -> frozenset[Market]:
        """Spot and on-demand, wherever the site counts the cloud."""
        return frozenset({Market.SPOT, Market.ON_DEMAND}) | self.reserved_market

    @property
    def known_zones(self) -> tuple[str, ...]:
        """The zones that the site uses."""
        return self.zones

    @property
    def metadata(self) -> MetadataService:
        """Google's metadata server."""
        return GCE

    def shares_place(self, other: CloudSettings) -> bool:
        """Whether both clouds are in one region of one project."""
        place = (self.project, self.region)
        return isinstance(other, GcpCloud) and (other.project, other.region) == place
