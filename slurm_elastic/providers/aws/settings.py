"""The settings of a cloud of EC2, as frozen values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, field

from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.config.numbers import (
    PerHour,
    PerSecond,
)
from slurm_elastic.model.cluster import Location, Market
from slurm_elastic.policies.launch.next_launch import WORTH_A_CALL


class Strategy(StrEnum):
    """How EC2 is asked for machines."""

    RUN = "run"
    FLEET = "fleet"


class Allocation(StrEnum):
    """Who chooses among a fleet's offers: EC2 by price and capacity, or our ranking."""

    PRICE = "price"
    RANK = "rank"


class AwsCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="aws"):
    """EC2. Credentials come by boto3's own means (``profile``, environment, instance role), never
    from this file. ``subnets`` maps zone to subnet id. ``types`` gives shape and on-demand price of
    the instance types in use (the price list API needs other rights and only serves two regions).
    ``user_data`` is a file with cloud-init text. ``strategy``: RunInstances for one offer after the
    other, or CreateFleet for several of a market at once, chosen by ``allocation`` (EC2's ``price``
    and capacity, or our ``rank``). ``image_owners``: whose images pools may look for.
    ``image_bucket``: the bucket of S3 by which images are uploaded. ``launch_template`` is the
    site's own (id or name); all that is set here goes over it. ``interruption_rates``: how often an
    hour EC2 takes a spot machine of a type, for the ranking key ``risk``. ``launch_burst`` and
    ``launch_rate`` are what EC2 lets the account start: machines at once, and a second after that
    (providers.aws.rate_limit); None is EC2's published default, or with an ``endpoint`` no limit.
    """

    region: str
    image: str
    types: dict[str, InstanceType] = field(default_factory=dict)
    catalogue: bool = False
    profile: str | None = None
    endpoint: str | None = None
    subnets: dict[str, str] = field(default_factory=dict)
    zones: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    key_name: str | None = None
    instance_profile: str | None = None
    user_data: str | None = None
    interruption_rates: dict[str, PerHour] = field(default_factory=dict)
    strategy: Strategy = Strategy.RUN
    allocation: Allocation = Allocation.PRICE
    launch_template: str | None = None
    image_owners: Annotated[tuple[str, ...], Meta(min_length=1)] = ("self",)
    image_bucket: str | None = None
    launch_burst: Annotated[int, Meta(ge=WORTH_A_CALL)] | None = None
    launch_rate: PerSecond | None = None

    needs_types: ClassVar[bool] = True
    has_images: ClassVar[bool] = True
    tells_launch: ClassVar[bool] = False
    by_user_data: ClassVar[bool] = True
    can_stop: ClassVar[bool] = True

    @property
    def markets(self) -> frozenset[Market]:
        """Spot and on demand; an endpoint on the premises sells what all do there."""
        if self.endpoint is None or self.location is Location.PUBLIC:
            return frozenset({Market.SPOT, Market.ON_DEMAND})
        return super().markets

    @property
    def known_zones(self) -> tuple[str, ...]:
        """The zones that the site uses."""
        return self.zones or tuple(self.subnets)

    @property
    def metadata(self) -> str:
        """EC2's own, whatever the endpoint of its API; where there is none, nobody answers."""
        return "http://169.254.169.254/latest/"

    def shares_place(self, other: CloudSettings) -> bool:
        """One account and region."""
        place = (self.region, self.endpoint)
        return isinstance(other, AwsCloud) and (other.region, other.endpoint) == place
