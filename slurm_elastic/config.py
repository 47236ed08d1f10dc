"""The configuration as frozen values; defaults live here and nowhere else.

The file's form is described, key by key, in ``etc/slurm-elastic.yaml``. ``configfile.load`` reads
it and is the only place that raises ConfigError for it. Durations are seconds (the file also takes
``90s 15m 2h 7d`` and Slurm's ``D-HH:MM:SS``), sizes are MiB (the file also takes ``4G``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct, field

from slurm_elastic.model import Limits, Location, Market, Pool


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose machines these are. ``name`` is slurm.conf's ClusterName.

    ``uuid`` is made once by ``conf install`` (kept in ``cluster-uuid`` beside the YAML file) and
    is on every machine's tags.
    """

    name: str
    uuid: str | None = None


class SlurmSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where Slurm is. ``programs_dir`` gets the programs that slurmctld runs."""

    conf: str = "/etc/slurm/slurm.conf"
    user: str = "slurm"
    bin_dir: str = "/usr/bin"
    sbin_dir: str = "/usr/sbin"
    programs_dir: str = "/usr/local/libexec/slurm-elastic"
    command_timeout: float = 60.0


class Who(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may burst, and for how long (Slurm partition limits). Empty everywhere: nobody, to a
    cloud that costs money."""

    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    max_time: float | None = None
    default_time: float | None = None

    @property
    def anybody(self) -> bool:
        """Whether some allow list is set."""
        return bool(self.accounts or self.groups or self.qos)


class Timings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds, all of them. ``misses`` is how many reads in a row must lack a machine before it
    counts as gone; ``grace`` how long a machine may lack its node's power-up before it is an orphan."""

    suspend_time: float = 600.0
    resume_timeout: float = 600.0
    suspend_timeout: float = 60.0
    reconcile: float = 30.0
    capacity_cooldown: float = 180.0
    quota_cooldown: float = 1800.0
    cooldown_max: float = 3600.0
    transient_deadline: float = 60.0
    grace: float = 120.0
    misses: int = 3
    heartbeat_stale: float = 120.0


class CloudSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="provider"):
    """What every cloud has. ``partition`` defaults to ``name``; ``node_address`` says who tells
    slurmctld a node's address: slurmd's own registration, or the provider (NAT, 22.05 w/o DNS)."""

    name: str
    location: Location
    partition: str | None = None
    limits: Limits = field(default_factory=Limits)
    node_address: str = "registration"
    timeout: float = 30.0
    who: Who | None = None
    suspend_time: float | None = None
    resume_timeout: float | None = None
    suspend_timeout: float | None = None

    @property
    def partition_name(self) -> str:
        """The Slurm partition of this cloud."""
        return self.partition or self.name


class LocalCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="local"):
    """slurmd processes on this host, started by the root-owned ``slurm-elastic-local`` agent
    listening on the unix ``socket``. ``price`` is dollars per machine-hour (power, depreciation)."""

    socket: str = "/run/slurm-elastic/local.sock"
    capacity: int | None = None
    price: float = 0.0


class InstanceType(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine of this name has, where the provider does not tell; ``price`` on-demand $/h."""

    cpus: int
    memory: int
    price: float
    gres: dict[str, int] = field(default_factory=dict)


class AwsCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="aws"):
    """EC2. Credentials come by boto3's own means (``profile``, environment, instance role), never
    from this file. ``subnets`` maps zone to subnet id. ``types`` gives shape and on-demand price of
    the instance types in use (the price list API needs other rights and only serves two regions).
    ``user_data`` is a file with cloud-init text."""

    region: str
    image: str
    types: dict[str, InstanceType]
    profile: str | None = None
    endpoint: str | None = None
    subnets: dict[str, str] = field(default_factory=dict)
    zones: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    key_name: str | None = None
    instance_profile: str | None = None
    user_data: str | None = None


class FakeCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fake"):
    """A cloud in memory, for rehearsals and tests."""

    types: dict[str, InstanceType] = field(default_factory=dict)
    zones: tuple[str, ...] = ("zone-1",)
    spot_factor: float = 0.3
    stock: int | None = None


AnyCloud = LocalCloud | AwsCloud | FakeCloud


class PoolSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes of one cloud. ``nodes`` is a Slurm hostlist (``pub[1-8]``), all rendered once.

    ``memory`` is what a machine has (MiB); Slurm is told ``real_memory``, by default less a margin
    for kernel and firmware. ``slurmd_port`` is the first of consecutive ports, for several slurmd's
    on one host; None is slurm.conf's SlurmdPort on each.
    """

    name: str
    cloud: str
    nodes: str
    cpus: int
    memory: int
    real_memory: int | None = None
    gres: dict[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    markets: tuple[Market, ...] = (Market.ON_DEMAND,)
    max_price: float | None = None
    max_nodes: int | None = None
    max_age: float | None = None
    slurmd_port: int | None = None

    @property
    def slurm_memory(self) -> int:
        """RealMemory for slurm.conf: less 5 % and at least 256 MiB, so that a slurmd that reports
        a little less than the data sheet is not drained for low memory."""
        if self.real_memory is not None:
            return self.real_memory
        return max(1, min(int(self.memory * 0.95), self.memory - 256))


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. The order of ``clouds`` and ``pools`` is the site's rank among equals."""

    cluster: Cluster
    clouds: tuple[AnyCloud, ...]
    pools: tuple[PoolSettings, ...]
    state_dir: str = "/var/lib/slurm-elastic"
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    who: Who = field(default_factory=Who)
    limits: Limits = field(default_factory=Limits)
    timings: Timings = field(default_factory=Timings)
    ranking: tuple[str, ...] = ("location", "market", "price", "waste")

    def cloud(self, name: str) -> AnyCloud:
        """The cloud of that name (KeyError where there is none)."""
        return next(c for c in self.clouds if c.name == name)

    @property
    def state(self) -> Path:
        """The state directory; owned by SlurmUser."""
        return Path(self.state_dir)


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
            max_age=p.max_age,
            weight=1000 + 10 * rank,
        )
        for rank, p in enumerate(config.pools)
    )


def _markets(config: Config, pool: PoolSettings) -> tuple[Market, ...]:
    """A site's own machines are paid already: they count as reserved, not as on-demand."""
    if config.cloud(pool.cloud).location is Location.ON_PREMISES:
        return (Market.RESERVED,)
    return pool.markets
