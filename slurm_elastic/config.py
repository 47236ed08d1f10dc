"""The configuration as frozen values; defaults live here and nowhere else.

The file's form is described, key by key, in ``etc/slurm-elastic.yaml``. ``configfile.load`` reads
it and is the only place that raises ConfigError for it. Durations are seconds (the file also takes
``90s 15m 2h 7d`` and Slurm's ``D-HH:MM:SS``), sizes are MiB (the file also takes ``4G``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field

from slurm_elastic.configckpt import CheckpointSettings, PoolCheckpoint
from slurm_elastic.configdocker import DockerHost
from slurm_elastic.configjoin import Join
from slurm_elastic.confignumbers import (
    Count,
    Cpus,
    Dollars,
    Mebibytes,
    PerHour,
    PerSecond,
    Port,
    Seconds,
    SlurmSeconds,
    SlurmTime,
    SuspendSeconds,
)
from slurm_elastic.configpolicies import CloudPolicies, PoolPolicies, SitePolicies
from slurm_elastic.model import ImageChoice, Limits, Location, Market, Pool

PUBLIC_MAX_AGE = 7 * 86400.0
"""Seconds that a machine of a public cloud may live where its pool sets no ``max_age``."""


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose machines these are. ``name`` is slurm.conf's ClusterName.

    ``uuid`` is made once by ``conf install`` (kept in ``cluster-uuid`` beside the YAML file) and
    is on every machine's tags.
    """

    name: str
    uuid: str | None = None


class Client(StrEnum):
    """How the daemon talks to Slurm: its commands, or pyslurm where that is for this release."""

    CLI = "cli"
    PYSLURM = "pyslurm"
    AUTO = "auto"


class SlurmSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where Slurm is. ``programs_dir`` gets the programs that slurmctld runs.

    ``epilog_hook`` also installs the EpilogSlurmctld hook. It is off: on 22.05 any EpilogSlurmctld
    delays the next job on a static node to the next ``sched_interval`` (measured), and all it adds
    is that a waiting job hears of another's end a little earlier.
    """

    conf: str = "/etc/slurm/slurm.conf"
    user: str = "slurm"
    bin_dir: str = "/usr/bin"
    sbin_dir: str = "/usr/sbin"
    programs_dir: str = "/usr/local/libexec/slurm-elastic"
    command_timeout: Seconds = 60.0
    client: Client = Client.CLI
    epilog_hook: bool = False


class Who(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may burst, and for how long (Slurm partition limits). Empty everywhere: nobody, to a
    cloud that costs money.
    """

    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    max_time: SlurmTime | None = None
    default_time: SlurmTime | None = None

    @property
    def anybody(self) -> bool:
        """Whether some allow list is set."""
        return bool(self.accounts or self.groups or self.qos)


class Timings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds, all of them. ``misses`` is how many reads in a row must lack a machine before it
    counts as gone; ``grace`` how long a machine may lack its node's power-up before it is an
    orphan. After ``boot_failures`` machines in a row that booted but never registered, a pool is
    paused for ``boot_cooldown``.
    """

    suspend_time: SuspendSeconds = 600.0
    resume_timeout: SlurmSeconds = 420.0
    suspend_timeout: SlurmSeconds = 60.0
    reconcile: Seconds = 30.0
    capacity_cooldown: Seconds = 180.0
    quota_cooldown: Seconds = 1800.0
    cooldown_max: Seconds = 3600.0
    transient_deadline: Seconds = 60.0
    grace: Seconds = 120.0
    misses: Count = 3
    boot_failures: Count = 10
    boot_cooldown: Seconds = 3600.0
    heartbeat_stale: Seconds = 120.0


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
    lets the account start: machines at once, and a second after that (aws_pacing); None is EC2's
    published default, or with an ``endpoint`` no limit.
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

    ``pending_limit`` is how long the scheduler may say that it has no place for a machine before
    that counts as "no capacity". ``threads``: calls at a time (oned serves 15 clients by default).
    """

    endpoint: str
    types: Annotated[dict[str, OneTemplate], Meta(min_length=1)]
    auth: str | None = None
    ca_file: str | None = None
    user_data: str | None = None
    pending_limit: Seconds = 60.0
    threads: Annotated[int, Meta(ge=1, le=10)] = 10


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
    say that it has no place; ``threads``: calls at a time.
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
    threads: Annotated[int, Meta(ge=1, le=20)] = 8


class FakeCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fake"):
    """A cloud in memory, for rehearsals and tests."""

    types: dict[str, InstanceType] = field(default_factory=dict)
    zones: tuple[str, ...] = ("zone-1",)
    spot_factor: float = 0.3
    stock: int | None = None


AnyCloud = LocalCloud | AwsCloud | OpenNebulaCloud | OpenStackCloud | DockerCloud | FakeCloud


class PoolSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes of one cloud. ``nodes`` is a Slurm hostlist (``pub[1-8]``), all rendered once.

    ``memory`` is what a machine has (MiB); Slurm is told ``real_memory``, by default less a margin
    for kernel and firmware. ``slurmd_port`` is the first of consecutive ports, for several slurmd's
    on one host; None is slurm.conf's SlurmdPort on each. ``max_age`` None is PUBLIC_MAX_AGE in a
    public cloud, no bound on-premises. ``partial_jobs``: where not all nodes of a job can be had,
    the machines of the others stay for the next jobs, instead of being ended at once.
    """

    name: str
    cloud: str
    nodes: str
    cpus: Cpus
    memory: Mebibytes
    real_memory: Mebibytes | None = None
    gres: dict[str, Count] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    markets: Annotated[tuple[Market, ...], Meta(min_length=1)] = (Market.ON_DEMAND,)
    max_price: Dollars | None = None
    max_nodes: Count | None = None
    max_age: Seconds | None = None
    interruption_loss: Seconds = 1800.0
    partial_jobs: bool = False
    max_booting: Count | None = None
    slurmd_port: Port | None = None
    image: ImageChoice | None = None
    policies: PoolPolicies = field(default_factory=PoolPolicies)
    checkpoint: PoolCheckpoint = field(default_factory=PoolCheckpoint)

    @property
    def slurm_memory(self) -> int:
        """RealMemory for slurm.conf: less 5 % and at least 256 MiB, so that a slurmd that reports
        a little less than the data sheet is not drained for low memory.
        """
        if self.real_memory is not None:
            return self.real_memory
        return max(1, min(int(self.memory * 0.95), self.memory - 256))


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. The order of ``clouds`` and ``pools`` is the site's rank among equals."""

    cluster: Cluster
    clouds: Annotated[tuple[AnyCloud, ...], Meta(min_length=1)]
    pools: Annotated[tuple[PoolSettings, ...], Meta(min_length=1)]
    state_dir: str = "/var/lib/slurm-elastic"
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    who: Who = field(default_factory=Who)
    limits: Limits = field(default_factory=Limits)
    timings: Timings = field(default_factory=Timings)
    policies: SitePolicies = field(default_factory=SitePolicies)
    join: Join = field(default_factory=Join)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    ranking: Annotated[tuple[str, ...], Meta(min_length=1)] = (
        "location",
        "market",
        "price",
        "waste",
    )

    def cloud(self, name: str) -> AnyCloud:
        """The cloud of that name (KeyError where there is none)."""
        return next(c for c in self.clouds if c.name == name)

    def suspend_time(self, cloud: AnyCloud) -> float:
        """Seconds a machine of that cloud may be idle: the cloud's own timing, else the general."""
        return _own_or(cloud.suspend_time, self.timings.suspend_time)

    def resume_timeout(self, cloud: AnyCloud) -> float:
        """Seconds a machine of that cloud may take to boot; by the same rule."""
        return _own_or(cloud.resume_timeout, self.timings.resume_timeout)

    def suspend_timeout(self, cloud: AnyCloud) -> float:
        """Seconds from giving a machine of that cloud back to using its node; by the same rule."""
        return _own_or(cloud.suspend_timeout, self.timings.suspend_timeout)

    @property
    def longest_resume_timeout(self) -> float:
        """Seconds that the slowest cloud's machines may take to boot."""
        return max(self.resume_timeout(cloud) for cloud in self.clouds)

    def who_of(self, cloud: AnyCloud) -> Who:
        """Who may use that cloud: see ``effective_who``."""
        return effective_who(cloud.who, self.who)

    @property
    def state(self) -> Path:
        """The state directory; owned by SlurmUser."""
        return Path(self.state_dir)


def _own_or(own: float | None, general: float) -> float:
    return general if own is None else own


def effective_who(own: Who | None, everywhere: Who) -> Who:
    """A cloud's own allow list if it has one, else the cluster's; each time limit by the same rule.

    So a cloud that only sets its own ``max_time`` lets nobody else in.
    """
    own = own or Who()
    allowed = own if own.anybody else everywhere
    return Who(
        accounts=allowed.accounts,
        groups=allowed.groups,
        qos=allowed.qos,
        max_time=everywhere.max_time if own.max_time is None else own.max_time,
        default_time=everywhere.default_time if own.default_time is None else own.default_time,
    )


def blocked_clouds(config: Config) -> dict[str, str]:
    """By cloud name, why nothing may be started there yet: a public cloud spends money, so it
    needs an allow list and an hourly cap, its own or the cluster's. Pure; a cloud that may be used
    has no entry.
    """
    return {
        cloud.name: f"cloud {cloud.name} costs money: {' and '.join(missing)}"
        for cloud in config.clouds
        if cloud.location is Location.PUBLIC and (missing := _missing_consents(config, cloud))
    }


def _missing_consents(config: Config, cloud: AnyCloud) -> list[str]:
    missing = []
    if not config.who_of(cloud).anybody:
        missing.append("nobody is allowed to use it (set who.accounts, who.groups or who.qos)")
    if config.limits.dollars_per_hour is None and cloud.limits.dollars_per_hour is None:
        missing.append("it has no spending cap (set limits.dollars_per_hour)")
    return missing


def domain_pools(config: Config, expand: Callable[[str], Sequence[str]]) -> tuple[Pool, ...]:
    """The pools as values for policies and providers; ``expand`` turns a hostlist into names.

    Weight is Slurm's node Weight: lower is taken first; 10 apart so that a site can go between.
    """
    return tuple(
        Pool(
            name=p.name,
            cloud=p.cloud,
            nodes=tuple(expand(p.nodes)),
            cpus=p.cpus,
            real_memory=p.slurm_memory,
            gres=p.gres,
            features=p.features,
            instance_types=p.instance_types,
            zones=p.zones,
            markets=_markets(config, p),
            max_price=p.max_price,
            max_nodes=p.max_nodes,
            max_age=_max_age(config, p),
            interruption_loss=p.interruption_loss,
            partial_jobs=p.partial_jobs,
            max_booting=p.max_booting,
            image=p.image,
            weight=1000 + 10 * rank,
        )
        for rank, p in enumerate(config.pools)
    )


def _max_age(config: Config, pool: PoolSettings) -> float | None:
    """A machine of a public cloud costs money as long as it is there, so none is there for ever."""
    if pool.max_age is None and config.cloud(pool.cloud).location is Location.PUBLIC:
        return PUBLIC_MAX_AGE
    return pool.max_age


def _markets(config: Config, pool: PoolSettings) -> tuple[Market, ...]:
    """A site's own machines are paid already: they count as reserved, not as on-demand."""
    if config.cloud(pool.cloud).location is Location.ON_PREMISES:
        return (Market.RESERVED,)
    return pool.markets
