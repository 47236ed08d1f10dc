"""The settings of a cloud of OpenStack, as frozen values."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from slurm_elastic.config.clouds import ONE_ZONE, CloudSettings, InstanceType, without_spot
from slurm_elastic.config.numbers import (
    Seconds,
)
from slurm_elastic.model.cluster import Market

NETWORK_WORDS = ("none", "auto")
"""nova's own, in the place of networks."""


class Flavor(InstanceType, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A type of machine of OpenStack: the flavor of this name, or ``flavor`` where names differ.

    ``cpus`` and ``memory`` are the least the flavor must have. ``price``: power, depreciation.
    """

    flavor: str | None = None
    price: float = 0.0


class OpenStackCloud(
    CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="openstack"
):
    """A project of an OpenStack. ``cloud`` is its name in clouds.yaml, which has the credentials:
    ``clouds_file``, or where openstacksdk looks for it. Images and networks by id or name; no
    ``networks`` leaves the choice to nova, ``none`` and ``auto`` are nova's own words. Without
    ``zones`` nova chooses one. ``schedule_wait`` is how long a launch waits for the scheduler to
    say that it has no place; ``threads``: calls at a time. ``listing_lag``: as OpenNebula's.
    """

    cloud: str
    image: str
    types: dict[str, Flavor] = field(default_factory=dict)
    catalogue: bool = False
    clouds_file: str | None = None
    region: str | None = None
    networks: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    key_name: str | None = None
    zones: tuple[str, ...] = ()
    user_data: str | None = None
    config_drive: bool = False
    schedule_wait: Seconds = 20.0
    listing_lag: Seconds | None = None
    threads: Annotated[int, Meta(ge=1, le=20)] = 8

    needs_types: ClassVar[bool] = True
    has_images: ClassVar[bool] = True
    by_user_data: ClassVar[bool] = True
    can_stop: ClassVar[bool] = True

    @property
    def type_class(self) -> type[InstanceType]:
        """The class of its types."""
        return Flavor

    @property
    def markets(self) -> frozenset[Market]:
        """No spot."""
        return without_spot(self.location)

    @property
    def known_zones(self) -> tuple[str, ...]:
        """The zones that the site uses; without any, nova chooses one."""
        return self.zones or (ONE_ZONE,)

    def shares_place(self, other: CloudSettings) -> bool:
        """Entries of clouds.yaml do not tell which project they lead to (an application credential
        names none), so any other OpenStack may be this one: its machines are told by the cloud's
        name.
        """
        return isinstance(other, OpenStackCloud)
