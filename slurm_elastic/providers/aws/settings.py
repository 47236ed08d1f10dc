"""The settings of an EC2 cloud as frozen values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from msgspec import Meta, field

from slurm_elastic.config.basics.metadata_service import EC2, MetadataService
from slurm_elastic.config.basics.numbers import PerHour, PerSecond
from slurm_elastic.config.basics.readable_url import is_readable_url
from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.model.cluster import Location, Market
from slurm_elastic.model.machine_options import MachineOptions
from slurm_elastic.policies.launch.next_launch import WORTH_A_CALL

_OF_AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
"""The ends of the names of AWS' own hosts."""


class Strategy(StrEnum):
    """How machines are requested from EC2."""

    RUN = "run"
    FLEET = "fleet"


class Allocation(StrEnum):
    """The chooser among the offers of a fleet: EC2 by price and capacity, or our ranking."""

    PRICE = "price"
    RANK = "rank"


class AwsCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="aws"):
    """EC2. boto3 finds the credentials (``profile``, environment, instance role); they are never in
    this file. If ``launch_burst`` or ``launch_rate`` is None, EC2's published default applies, or
    no limit with a ``foreign_endpoint`` (providers.aws.rate_limit).
    """

    region: str
    """Change it when machines should run elsewhere; images and subnets are of one region."""
    image: str
    """Change it when a newer image is there for all pools that choose none."""
    types: dict[str, InstanceType] = field(default_factory=dict)
    """Change it when other instance types are used, or their prices change."""
    catalogue: bool = False
    """Change it when types and prices should come from EC2 instead of this file."""
    profile: str | None = None
    """Change it when credentials are those of a profile of ~/.aws/config."""
    endpoint: str | None = None
    """Change it when another service speaks EC2's protocol, or calls go by a VPC endpoint."""
    subnets: dict[str, str] = field(default_factory=dict)
    """Change it when machines should be in subnets of your own."""
    zones: tuple[str, ...] = ()
    """Change it when fewer zones should be used than there are subnets."""
    security_groups: tuple[str, ...] = ()
    """Change it when the VPC's default group keeps head and machines from each other."""
    key_name: str | None = None
    """Change it when people should log in to machines by SSH."""
    instance_profile: str | None = None
    """Change it when jobs or the boot need rights in AWS, such as to read a bucket."""
    user_data: str | None = None
    """Change it when machines need a first boot of your own besides joining."""
    interruption_rates: dict[str, PerHour] = field(default_factory=dict)
    """Change it when `ranking` has `risk`: the rates are in AWS' Spot Instance Advisor."""
    strategy: Strategy = Strategy.RUN
    """Change it when large bursts on many types should be one call (`fleet`)."""
    allocation: Allocation = Allocation.PRICE
    """Change it when your ranking should decide in a fleet, not EC2's price and capacity."""
    launch_template: str | None = None
    """Change it when your site keeps disks, metadata options or tenancy in a template."""
    image_owners: Annotated[tuple[str, ...], Meta(min_length=1)] = ("self",)
    """Change it when images come from another account."""
    image_bucket: str | None = None
    """Change it when `image upload` is used: it goes through this bucket."""
    launch_burst: Annotated[int, Meta(ge=WORTH_A_CALL)] | None = None
    """Change it when AWS has raised the account's bucket of RunInstances."""
    launch_rate: PerSecond | None = None
    """Change it when AWS has raised the account's refill rate of RunInstances."""

    needs_types: ClassVar[bool] = True
    has_images: ClassVar[bool] = True
    tells_launch: ClassVar[bool] = False
    by_user_data: ClassVar[bool] = True
    can_stop: ClassVar[bool] = True
    names_images: ClassVar[bool] = True
    targets_reservations: ClassVar[bool] = True
    refuses_parts: ClassVar[bool] = True
    has_spot_prices: ClassVar[bool] = True
    has_queue: ClassVar[bool] = True
    machine_keys: ClassVar[frozenset[str]] = frozenset(MachineOptions.__struct_fields__)

    @property
    def foreign_endpoint(self) -> str | None:
        """The endpoint of another service that speaks EC2's protocol. None for EC2 itself, also if
        the endpoint is a VPC endpoint or another host of AWS.
        """
        # `check` reports an endpoint that cannot be read, after it has asked for this property.
        is_readable = is_readable_url(self.endpoint or "")
        host = (urlsplit(self.endpoint or "").hostname if is_readable else "") or ""
        return None if host.endswith(_OF_AWS) else self.endpoint

    def endpoint_of(self, service: str) -> str | None:
        """The endpoint for calls to a service; None leaves it to boto3. A host of AWS serves EC2
        alone, but a service that imitates EC2 imitates the others at the same place.
        """
        return self.endpoint if service == "ec2" else self.foreign_endpoint

    @property
    def markets(self) -> frozenset[Market]:
        """Spot and on-demand for EC2 itself. An endpoint on the premises has the same markets as
        other clouds there.
        """
        if self.foreign_endpoint is None or self.location is Location.PUBLIC:
            return frozenset({Market.SPOT, Market.ON_DEMAND}) | self.reserved_market
        return super().markets

    @property
    def known_zones(self) -> tuple[str, ...]:
        """The zones that the site uses."""
        return self.zones or tuple(self.subnets)

    @property
    def metadata(self) -> MetadataService:
        """EC2's metadata service, whatever the endpoint of EC2's API. An installation on the
        premises may have no such service.
        """
        return EC2

    def shares_place(self, other: CloudSettings) -> bool:
        """Whether both clouds are in one region of one service, and so may be in one account. Two
        VPC endpoints lead to the same machines.
        """
        place = (self.region, self.foreign_endpoint)
        return isinstance(other, AwsCloud) and (other.region, other.foreign_endpoint) == place
