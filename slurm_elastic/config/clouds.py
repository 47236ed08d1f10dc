"""The section ``clouds`` of the configuration: what each provider is told, as frozen values.

Units are those of ``config``. No credentials are in here: each provider has its own place for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from slurm_elastic.config.access import Who
from slurm_elastic.config.docker import DockerHost
from slurm_elastic.config.numbers import (
    Count,
    Cpus,
    Mebibytes,
    PerHour,
    PerSecond,
    Seconds,
    SlurmSeconds,
    SuspendSeconds,
)
from slurm_elastic.config.policies import CloudPolicies
from slurm_elastic.model import Limits, Location, Market
from slurm_elastic.policies.boot_breaker import given_up_after

NETWORK_WORDS = ("none", "auto")
"""nova's own, in the place of networks."""
LOCAL_AGENT = (
    "systemctl enable --now slurm-elastic-local; "
    "journalctl -u slurm-elastic-local says why it stopped"
)
LOCAL_ZONE = "local"
ONE_ZONE = "default"
"""The one zone of a cloud whose scheduler chooses by itself."""


class CloudSettings(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="provider"
):
    """What every cloud has. ``partition`` defaults to ``name``; ``node_address`` says who tells
    slurmctld a node's address: slurmd's own registration, or the provider (NAT, 22.05 w/o DNS).
    ``max_booting``: so many machines at most boot at once, the others wait for their turn.
    """

    name: str
    location: Location
    partition: str | None = None
    limits: Limits = field(default_factory=Limits)
    node_address: str = "registration"
    timeout: Seconds = 30.0
    max_booting: Count | None = None
    who: Who | None = None
    policies: CloudPolicies = field(default_factory=CloudPolicies)
    suspend_time: SuspendSeconds | None = None
    resume_timeout: SlurmSeconds | None = None
    suspend_timeout: SlurmSeconds | None = None

    needs_types: ClassVar[bool] = False
    """Whether its pools have to say which of its types they take."""
    has_images: ClassVar[bool] = False
    """Whether its pools may choose an image."""
    shows_console: ClassVar[bool] = True
    """Whether it shows what its machines print."""
    by_user_data: ClassVar[bool] = False
    """Whether its machines are told how to join by user data; others share a host or an image."""
    reach_advice: ClassVar[str] = "look at the endpoint, the network and the cloud's own state"
    """What doctor says where it does not answer."""

    @property
    def provider(self) -> str:
        """The name of its kind, as the key ``provider`` has it."""
        return str(self.__struct_config__.tag)

    @property
    def partition_name(self) -> str:
        """The Slurm partition of this cloud."""
        return self.partition or self.name

    @property
    def shapes(self) -> Mapping[str, InstanceType]:
        """Its types of machine by name; none where a machine is whatever its pool says."""
        types: Mapping[str, InstanceType] = getattr(self, "types", {})
        return types

    @property
    def flat_price(self) -> float | None:
        """What every machine costs ($/h), where types have no prices of their own."""
        return None

    @property
    def markets(self) -> frozenset[Market]:
        """What it sells."""
        if self.location is Location.ON_PREMISES:
            return frozenset({Market.RESERVED, Market.ON_DEMAND})
        return frozenset(Market)

    @property
    def known_zones(self) -> tuple[str, ...]:
        """All that it has; none where the cloud itself tells."""
        return (ONE_ZONE,)

    @property
    def room(self) -> int | None:
        """How many machines it can have by its own settings."""
        return None

    @property
    def metadata(self) -> str:
        """The URL of the service that tells a machine of its notices; empty without one."""
        return ""

    @property
    def clock_url(self) -> str | None:
        """A URL of it whose answers have a date, by which doctor compares the clocks."""
        return None

    def shares_place(self, other: CloudSettings) -> bool:
        """Whether that cloud may see machines of this one: one account, front end or host."""
        return other.name == self.name

    def wrong_image_id(self, text: str) -> str | None:
        """What was expected where that cannot be an id of its images."""
        del text
        return None


def without_spot(location: Location) -> frozenset[Market]:
    """What a cloud sells whose machines nobody takes back."""
    on_premises = {Market.RESERVED} if location is Location.ON_PREMISES else set()
    return frozenset({Market.ON_DEMAND} | on_premises)


class LocalCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="local"):
    """slurmd processes on this host, started by the root-owned ``slurm-elastic-local`` agent
    listening on the unix ``socket``. ``price``: dollars per machine-hour (power, depreciation).
    """

    socket: str = "/run/slurm-elastic/local.sock"
    capacity: Count | None = None
    price: float = 0.0

    reach_advice: ClassVar[str] = LOCAL_AGENT

    @property
    def flat_price(self) -> float | None:
        """Machines of one host cost alike."""
        return self.price

    @property
    def known_zones(self) -> tuple[str, ...]:
        """The host."""
        return (LOCAL_ZONE,)

    @property
    def room(self) -> int | None:
        """``capacity``."""
        return self.capacity


class InstanceType(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine of this name has, where the provider does not tell; ``price``: on-demand."""

    cpus: Cpus
    memory: Mebibytes
    price: float
    gres: dict[str, Count] = field(default_factory=dict)


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
    and capacity, or our ``rank``). ``image_owners``: whose images pools may look
    for. ``launch_template`` is the site's own (id or name); all that is
    set here goes over it. ``interruption_rates``: how often an hour EC2 takes a spot machine of a
    type, for the ranking key ``risk``. ``launch_burst`` and ``launch_rate`` are what EC2
    lets the account start: machines at once, and a second after that (providers.aws.rate_limit);
    None is EC2's published default, or with an ``endpoint`` no limit.
    """

    region: str
    image: str
    types: Annotated[dict[str, InstanceType], Meta(min_length=1)]
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
    launch_burst: Count | None = None
    launch_rate: PerSecond | None = None

    needs_types: ClassVar[bool] = True
    has_images: ClassVar[bool] = True
    by_user_data: ClassVar[bool] = True

    @property
    def markets(self) -> frozenset[Market]:
        """Spot and on demand; an endpoint on the premises sells what all do there."""
        if self.endpoint is None or self.location is Location.PUBLIC:
            return frozenset({Market.SPOT, Market.ON_DEMAND})
        return super().markets

    @property
    def known_zones(self) -> tuple[str, ...]:
        """Those that the site uses."""
        return self.zones or tuple(self.subnets)

    @property
    def metadata(self) -> str:
        """EC2's own; an emulated one has none."""
        return "http://169.254.169.254/latest/" if self.endpoint is None else ""

    def shares_place(self, other: CloudSettings) -> bool:
        """One account and region."""
        place = (self.region, self.endpoint)
        return isinstance(other, AwsCloud) and (other.region, other.endpoint) == place


LISTING_LAG = 60.0
"""Seconds for which a fresh machine may be missing from the lists of a cloud that takes no token
with an order. nova and oned list what their database holds, whose replicas lag for seconds at most.
But an order that we have given up may be on its way for as long as what is in between waits for an
answer: 60 s by default in oslo.messaging (``rpc_response_timeout``) and nginx
(``proxy_read_timeout``).
"""


def default_listing_lag(resume_timeout: float) -> float:
    """What ``listing_lag`` is where the site names none (s): at most half of the time after which a
    node is given up, so that an order that was lost is repeated before.
    """
    return round(min(LISTING_LAG, given_up_after(resume_timeout) / 2), 2)


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
    ``listing_lag``: how long after an order without an answer its machines may not be listed yet;
    a file that is read without it gets ``default_listing_lag``.
    """

    endpoint: str
    types: Annotated[dict[str, OneTemplate], Meta(min_length=1)]
    auth: str | None = None
    ca_file: str | None = None
    user_data: str | None = None
    pending_limit: Seconds = 60.0
    listing_lag: Seconds | None = None
    threads: Annotated[int, Meta(ge=1, le=10)] = 10
    image_owners: Annotated[tuple[str, ...], Meta(min_length=1)] = ("self", "oneadmin")

    needs_types: ClassVar[bool] = True
    has_images: ClassVar[bool] = True
    by_user_data: ClassVar[bool] = True
    shows_console: ClassVar[bool] = False

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


class DockerType(InstanceType, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A size of container; both numbers are its limits. ``price``: power, depreciation."""

    price: float = 0.0


class DockerCloud(
    CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="docker"
):
    """Containers on ``hosts``, whose names are the cloud's zones; each has the ``image`` and the
    ``network``. Without ``command`` the image's own program runs; it has to start slurmd.

    ``mounts`` (``/there:/here:ro``) bring the munge key and what jobs share. ``environment`` is
    seen by everybody: nothing secret. ``threads``: calls at a time on one host.
    """

    hosts: Annotated[dict[str, DockerHost], Meta(min_length=1)]
    image: str
    network: str
    types: Annotated[dict[str, DockerType], Meta(min_length=1)]
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    tmpfs: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    security_options: tuple[str, ...] = ()
    threads: Annotated[int, Meta(ge=1, le=20)] = 4

    needs_types: ClassVar[bool] = True

    @property
    def markets(self) -> frozenset[Market]:
        """No spot."""
        return without_spot(self.location)

    @property
    def known_zones(self) -> tuple[str, ...]:
        """The hosts."""
        return tuple(self.hosts)

    def shares_place(self, other: CloudSettings) -> bool:
        """One engine is enough."""
        urls = {host.url for host in self.hosts.values()}
        hosts = other.hosts.values() if isinstance(other, DockerCloud) else ()
        return not urls.isdisjoint(host.url for host in hosts)


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
    types: Annotated[dict[str, Flavor], Meta(min_length=1)]
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

    @property
    def markets(self) -> frozenset[Market]:
        """No spot."""
        return without_spot(self.location)

    @property
    def known_zones(self) -> tuple[str, ...]:
        """Those that the site uses; else nova chooses one."""
        return self.zones or (ONE_ZONE,)

    def shares_place(self, other: CloudSettings) -> bool:
        """Entries of clouds.yaml do not tell which project they lead to (an application credential
        names none), so any other OpenStack may be this one: its machines are told by the cloud's
        name.
        """
        return isinstance(other, OpenStackCloud)


class FakeCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fake"):
    """A cloud in memory, for rehearsals and tests."""

    types: dict[str, InstanceType] = field(default_factory=dict)
    zones: tuple[str, ...] = ("zone-1",)
    spot_factor: float = 0.3
    stock: int | None = None

    @property
    def known_zones(self) -> tuple[str, ...]:
        """``zones``."""
        return self.zones
