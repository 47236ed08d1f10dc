"""The settings of an OpenNebula cloud as frozen values."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from slurm_elastic.config.basics.numbers import Seconds
from slurm_elastic.config.clouds import CloudSettings, InstanceType, without_spot
from slurm_elastic.model.cluster import Market


class OneTemplate(InstanceType, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine type of OpenNebula: a VM template. It must have ``cpus`` and ``memory``, unless
    ``resize`` sets them.
    """

    template: Annotated[int, Meta(ge=0)]
    """Change it when the type starts from another VM template."""
    price: float = 0.0
    resize: bool = False
    """Change it when one template serves several sizes."""


class OpenNebulaCloud(
    CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="opennebula"
):
    """A front end's XML-RPC ``endpoint``. Credentials are in ``auth_file``, never in this file.
    A file without ``listing_lag`` gets ``default_listing_lag``.
    """

    endpoint: str
    """Change it when the front end is elsewhere."""
    types: dict[str, OneTemplate] = field(default_factory=dict)
    """Change it when machines of other templates or sizes are used."""
    catalogue: bool = False
    """Change it when templates and costs should come from OpenNebula instead of this file."""
    auth_file: str | None = None
    """Change it when the user's credentials are in another file."""
    ca_file: str | None = None
    """Change it when the front end has a certificate of your own authority."""
    user_data: str | None = None
    """Change it when machines need a first boot of your own besides joining."""
    pending_timeout: Seconds = 60.0
    """Change it when the scheduler places machines in rounds longer than a minute."""
    listing_lag: Seconds | None = None
    """Change it when the front end, or what is before it, answers after more than a minute."""
    image_owners: Annotated[tuple[str, ...], Meta(min_length=1)] = ("self", "oneadmin")
    """Change it when images come from another account."""
    image_datastore: Annotated[int, Meta(ge=0)] = 1
    """Change it when `image upload` should bring images into another datastore."""

    threads: ClassVar[int] = 10
    """Calls at the same time. oned serves 15 clients by default, and others need some of them."""
    needs_types: ClassVar[bool] = True
    has_images: ClassVar[bool] = True
    by_user_data: ClassVar[bool] = True
    can_stop: ClassVar[bool] = True
    shows_console: ClassVar[bool] = False

    @property
    def type_class(self) -> type[InstanceType]:
        """The class of the cloud's types."""
        return OneTemplate

    @property
    def markets(self) -> frozenset[Market]:
        """All markets of the location except spot."""
        return without_spot(self.location) | self.reserved_market

    @property
    def clock_url(self) -> str | None:
        """The endpoint, because oned's answers contain a date."""
        return self.endpoint

    def shares_place(self, other: CloudSettings) -> bool:
        """Whether both clouds are at one front end."""
        return isinstance(other, OpenNebulaCloud) and other.endpoint == self.endpoint

    def wrong_image_id(self, text: str) -> str | None:
        """Why the text is no id of an image, with the expected form. None if it is a number, as ids
        are.
        """
        if text.isascii() and text.isdecimal():
            return None
        return "the number of an image, such as '7': OpenNebula's ids are numbers"
