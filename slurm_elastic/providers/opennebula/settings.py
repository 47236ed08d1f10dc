"""The settings of a cloud of OpenNebula, as frozen values."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from slurm_elastic.config.clouds import CloudSettings, InstanceType, without_spot
from slurm_elastic.config.numbers import (
    Seconds,
)
from slurm_elastic.model.cluster import Market


class OneTemplate(InstanceType, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A type of machine of OpenNebula: ``template`` is the id of a VM template.

    With ``resize`` its CPU, VCPU and MEMORY are set to ``cpus`` and ``memory``; else the template
    is taken to have them. ``price``: power, depreciation.
    """

    template: Annotated[int, Meta(ge=0)]
    price: float = 0.0
    resize: bool = False


class OpenNebulaCloud(
    CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="opennebula"
):
    """A front end's XML-RPC ``endpoint``. Credentials are in the file ``auth`` (``user:password``,
    mode 0600; default: the one that ONE_AUTH names, else ~/.one/one_auth), never in this file.

    ``pending_limit`` is how long the scheduler may place nothing of a launch and say that it has
    no place before that counts as "no capacity". ``threads``: calls at a time (oned serves 15
    clients by default).
    ``image_owners``: names of the accounts whose images pools may look for; ``self`` is our own.
    ``image_datastore``: into which images are uploaded, by its number.
    ``listing_lag``: how long after an order without an answer its machines may not be listed yet;
    a file that is read without it gets ``default_listing_lag``.
    """

    endpoint: str
    types: dict[str, OneTemplate] = field(default_factory=dict)
    catalogue: bool = False
    auth: str | None = None
    ca_file: str | None = None
    user_data: str | None = None
    pending_limit: Seconds = 60.0
    listing_lag: Seconds | None = None
    threads: Annotated[int, Meta(ge=1, le=10)] = 10
    image_owners: Annotated[tuple[str, ...], Meta(min_length=1)] = ("self", "oneadmin")
    image_datastore: Annotated[int, Meta(ge=0)] = 1

    needs_types: ClassVar[bool] = True
    has_images: ClassVar[bool] = True
    by_user_data: ClassVar[bool] = True
    can_stop: ClassVar[bool] = True
    shows_console: ClassVar[bool] = False

    @property
    def type_class(self) -> type[InstanceType]:
        """The class of its types."""
        return OneTemplate

    @property
    def markets(self) -> frozenset[Market]:
        """No spot."""
        return without_spot(self.location)

    @property
    def clock_url(self) -> str | None:
        """Oned's answers have a date."""
        return self.endpoint

    def shares_place(self, other: CloudSettings) -> bool:
        """One front end."""
        return isinstance(other, OpenNebulaCloud) and other.endpoint == self.endpoint

    def wrong_image_id(self, text: str) -> str | None:
        """Its ids are numbers."""
        if text.isascii() and text.isdecimal():
            return None
        return "the number of an image, such as '7': OpenNebula's ids are numbers"
