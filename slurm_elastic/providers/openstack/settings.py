"""The settings of an OpenStack cloud as frozen values."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from slurm_elastic.config.basics.numbers import Seconds
from slurm_elastic.config.clouds import ONE_ZONE, CloudSettings, InstanceType, without_spot
from slurm_elastic.model.cluster import Market

NETWORK_WORDS = ("none", "auto")
"""nova's own words in place of networks."""


class Flavor(InstanceType, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine type of OpenStack. Its flavor has at least ``cpus`` and ``memory``."""

    flavor: str | None = None
    """Change it when the flavor has a name that cannot be written in Slurm, or changes its name."""
    price: float = 0.0


class OpenStackCloud(
    CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="openstack"
):
    """A project of an OpenStack. ``cloud`` is its name in clouds.yaml, which has the credentials.
    ``listing_lag`` is described in OpenNebula's settings.
    """

    cloud: str
    """Change it when the project has another entry in clouds.yaml."""
    image: str
    """Change it when a newer image is there for all pools that choose none."""
    types: dict[str, Flavor] = field(default_factory=dict)
    """Change it when other flavors are used, or their prices change."""
    catalogue: bool = False
    """Change it when flavors should come from nova instead of this file."""
    clouds_file: str | None = None
    """Change it when clouds.yaml is not where openstacksdk looks for it."""
    region: str | None = None
    """Change it when the entry of clouds.yaml has several regions."""
    networks: tuple[str, ...] = ()
    """Change it when the project has several networks, of which nova would take all."""
    security_groups: tuple[str, ...] = ()
    """Change it when the project's default group keeps head and machines from each other."""
    key_name: str | None = None
    """Change it when people should log in to machines by SSH."""
    zones: tuple[str, ...] = ()
    """Change it when machines should be in certain availability zones."""
    user_data: str | None = None
    """Change it when machines need a first boot of your own besides joining."""
    config_drive: bool = False
    """Change it when the cloud has no metadata service."""
    schedule_timeout: Seconds = 20.0
    """Change it when nova needs longer than 20 s to say that it has no host."""
    listing_lag: Seconds | None = None
    """Change it when nova's message bus or what is before it answers later than after a minute."""

    threads: ClassVar[int] = 8
    """Calls at the same time. nova creates machines in parallel; beyond this number it only queues
    them.
    """
    needs_types: ClassVar[bool] = True
    has_images: ClassVar[bool] = True
    by_user_data: ClassVar[bool] = True
    can_stop: ClassVar[bool] = True
    names_images: ClassVar[bool] = True
    machine_keys: ClassVar[frozenset[str]] = frozenset({"placement_group", "root_disk"})

    @property
    def type_class(self) -> type[InstanceType]:
        """The class of the cloud's types."""
        return Flavor

    @property
    def markets(self) -> frozenset[Market]:
        """All markets of the location except spot."""
        return without_spot(self.location) | self.reserved_market

    @property
    def known_zones(self) -> tuple[str, ...]:
        """The zones that the site uses. nova chooses a zone if there are none."""
        return self.zones or (ONE_ZONE,)

    def shares_place(self, other: CloudSettings) -> bool:
        """True for any OpenStack. Entries of clouds.yaml do not show which project they lead to (an
        application credential names none), so another entry may be the same project. The cloud's
        name in the tags tells their machines apart.
        """
        return isinstance(other, OpenStackCloud)
