"""The section ``clouds`` of the configuration: what each provider is told, as frozen values.

Units are those of ``config``. No credentials are in here: each provider has its own place for them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

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
from slurm_elastic.model import Limits, Location
from slurm_elastic.policies.boot_breaker import given_up_after

NETWORK_WORDS = ("none", "auto")
"""nova's own, in the place of networks."""
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

    @property
    def partition_name(self) -> str:
        """The Slurm partition of this cloud."""
        return self.partition or self.name


class LocalCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="local"):
    """slurmd processes on this host, started by the root-owned ``slurm-elastic-local`` agent
    listening on the unix ``socket``. ``price``: dollars per machine-hour (power, depreciation).
    """

    socket: str = "/run/slurm-elastic/local.sock"
    capacity: Count | None = None
    price: float = 0.0


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


class FakeCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fake"):
    """A cloud in memory, for rehearsals and tests."""

    types: dict[str, InstanceType] = field(default_factory=dict)
    zones: tuple[str, ...] = ("zone-1",)
    spot_factor: float = 0.3
    stock: int | None = None


AnyCloud = LocalCloud | AwsCloud | OpenNebulaCloud | OpenStackCloud | DockerCloud | FakeCloud
