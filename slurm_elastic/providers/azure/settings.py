"""The settings of an Azure cloud as frozen values."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlsplit

from msgspec import field

from slurm_elastic.config.basics.metadata_service import (
    AZURE,
    AZURE_MANAGER,
    MetadataService,
    azure_stop_command,
)
from slurm_elastic.config.basics.numbers import Seconds
from slurm_elastic.config.clouds import ONE_ZONE, CloudSettings, InstanceType, SpotType

LOGIN = "https://login.microsoftonline.com"
"""Where the public cloud issues tokens."""
_OF_MICROSOFT = (".azure.com", ".azure.cn", ".usgovcloudapi.net", ".chinacloudapi.cn")


class AzureCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="azure"):
    """A resource group of an Azure subscription. The group is for slurm-elastic's machines alone.
    ``credentials`` is a file; without it, the managed identity of the head's own VM is used.
    """

    subscription: str
    """Change it when another subscription pays for the machines."""
    resource_group: str
    """Change it when the machines belong in another resource group, which must be for them alone.
    """
    region: str
    """Change it when machines should start in another region."""
    image: str
    """Change it when a newer image is there for all pools that choose none."""
    subnet: str
    """Change it when the machines belong in another subnet."""
    ssh_public_key: str
    """Change it when people should log in to machines by another SSH key. Azure starts no Linux
    machine without one.
    """
    types: dict[str, SpotType] = field(default_factory=dict)
    """Change it when other sizes are used, or their prices change."""
    zones: tuple[str, ...] = ()
    """Change it when machines should be in certain availability zones."""
    security_group: str | None = None
    """Change it when the rules of the subnet are not enough for the machines."""
    machine_identity: str | None = None
    """Change it when machines should end themselves without the head, by this managed identity."""
    accelerated_networking: bool = False
    """Change it when all sizes in use have accelerated networking."""
    user_data: str | None = None
    """Change it when machines need a first boot of your own besides joining."""
    credentials: str | None = None
    """Change it when the head is no VM of Azure, or its identity should not have these rights."""
    launch_wait: Seconds = 20.0
    """Change it when Azure needs longer than 20 s to say that it has no capacity."""
    endpoint: str = AZURE_MANAGER
    """Change it when the subscription is in a national cloud of Azure."""
    login_endpoint: str = LOGIN
    """Change it when the subscription is in a national cloud of Azure."""
    price_endpoint: str | None = None
    """Change it when spot machines should be ranked by Azure's prices of now
    (https://prices.azure.com), and the prices under ``types`` checked by them.
    """

    threads: ClassVar[int] = 16
    """Calls at the same time. Each creates or ends one machine."""
    needs_types: ClassVar[bool] = True
    has_images: ClassVar[bool] = True
    by_user_data: ClassVar[bool] = True
    can_stop: ClassVar[bool] = True
    shows_console: ClassVar[bool] = False
    machine_keys: ClassVar[frozenset[str]] = frozenset({"root_disk", "disk_price"})

    @property
    def type_class(self) -> type[InstanceType]:
        """The class of the cloud's types."""
        return SpotType

    @property
    def known_zones(self) -> tuple[str, ...]:
        """The zones that the site uses. Without zones, Azure places machines in the region."""
        return self.zones or (ONE_ZONE,)

    @property
    def metadata(self) -> MetadataService:
        """Azure's metadata service and WireServer."""
        return AZURE

    @property
    def stop_command(self) -> str:
        """A machine that only shuts down goes on costing, so it deletes itself."""
        manager = self.endpoint.rstrip("/")
        return azure_stop_command(manager=manager, identity=self.machine_identity)

    @property
    def is_of_microsoft(self) -> bool:
        """Whether the endpoint is Azure itself, which throttles by known rates."""
        host = urlsplit(self.endpoint).hostname or ""
        return host.endswith(_OF_MICROSOFT)

    @property
    def group_path(self) -> str:
        """The path of the resource group."""
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"

    def shares_place(self, other: CloudSettings) -> bool:
        """Whether both clouds are in one resource group. Azure's names ignore case."""
        return (
            isinstance(other, AzureCloud)
            and other.endpoint == self.endpoint
            and other.group_path.lower() == self.group_path.lower()
        )

    def wrong_image_id(self, text: str) -> str | None:
        """See CloudSettings."""
        return None if is_image(text) else IMAGE_FORM


IMAGE_FORM = (
    "publisher:offer:sku:version, or the resource id of an image (/subscriptions/.../images/NAME)"
)


def is_image(text: str) -> bool:
    """Whether the text names an image: a URN of the marketplace, or a resource id."""
    if text.startswith("/"):
        return "/images/" in text.lower() and not set(text) & set(" \t\n?#")
    parts = text.split(":")
    return len(parts) == len(("publisher", "offer", "sku", "version")) and all(parts)
