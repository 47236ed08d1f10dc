"""The configuration as frozen values; defaults live here, in the modules of its sections (clouds,
checkpoint, joining, who, ...) and nowhere else.

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
from msgspec.structs import replace

from slurm_elastic.config.access import Users, Who, effective_who
from slurm_elastic.config.books import BooksSettings
from slurm_elastic.config.checkpoint import CheckpointSettings, PoolCheckpoint
from slurm_elastic.config.clouds import (
    CloudSettings,
    default_listing_lag,
)
from slurm_elastic.config.joining import Join
from slurm_elastic.config.numbers import (
    Count,
    Cpus,
    Dollars,
    Mebibytes,
    Port,
    Seconds,
    SlurmSeconds,
    SuspendSeconds,
)
from slurm_elastic.config.policies import PoolPolicies, SitePolicies
from slurm_elastic.config.requirements import Requirements
from slurm_elastic.config.telling import Notify
from slurm_elastic.model.cluster import ImageChoice, Limits, Location, Market, Pool

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


DEFAULT_STATE = "/var/lib/slurm-elastic"
"""The state directory of a site that names none."""
DEFAULT_SOCKET = Path("/run/slurm-elasticd/read.sock")
"""Where its users ask; the service's RuntimeDirectory."""


class PoolSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes of one cloud. ``nodes`` is a Slurm hostlist (``pub[1-8]``), all rendered once.

    ``memory`` is what a machine has (MiB); Slurm is told ``real_memory``, by default less a margin
    for kernel and firmware. ``slurmd_port`` is the first of consecutive ports, for several slurmd's
    on one host; None is slurm.conf's SlurmdPort on each. ``max_age`` None is PUBLIC_MAX_AGE in a
    public cloud, no bound on-premises. ``partial_jobs``: where not all nodes of a job can be had,
    the machines of the others stay for the next jobs, instead of being ended at once.

    ``devices``: the files of a gres in gres.conf (``config.devices``); None for a GPU are NVIDIA's.

    ``stopped``: so many machines that are idle are stopped instead of ended, and started again for
    their nodes; ``stopped_price`` ($/h) is what one costs meanwhile, its disk.
    """

    name: str
    cloud: str
    nodes: str
    cpus: Cpus
    memory: Mebibytes
    real_memory: Mebibytes | None = None
    gres: dict[str, Count] = field(default_factory=dict)
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    instance_types: tuple[str, ...] | Requirements = ()
    zones: tuple[str, ...] = ()
    markets: Annotated[tuple[Market, ...], Meta(min_length=1)] = (Market.ON_DEMAND,)
    max_price: Dollars | None = None
    max_nodes: Count | None = None
    max_age: Seconds | None = None
    interruption_loss: Seconds = 1800.0
    partial_jobs: bool = False
    max_booting: Count | None = None
    stopped: Annotated[int, Meta(ge=0)] = 0
    stopped_price: Annotated[float, Meta(ge=0)] = 0.0
    slurmd_port: Port | None = None
    image: ImageChoice | None = None
    policies: PoolPolicies = field(default_factory=PoolPolicies)
    checkpoint: PoolCheckpoint = field(default_factory=PoolCheckpoint)

    @property
    def type_names(self) -> tuple[str, ...]:
        """``instance_types`` as names; none while requirements are not resolved yet."""
        names = self.instance_types
        return () if isinstance(names, Requirements) else names

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
    clouds: Annotated[tuple[CloudSettings, ...], Meta(min_length=1)]
    pools: Annotated[tuple[PoolSettings, ...], Meta(min_length=1)]
    state_dir: str = DEFAULT_STATE
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    who: Who = field(default_factory=Who)
    users: Users = field(default_factory=Users)
    limits: Limits = field(default_factory=Limits)
    timings: Timings = field(default_factory=Timings)
    policies: SitePolicies = field(default_factory=SitePolicies)
    join: Join = field(default_factory=Join)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    notify: Notify = field(default_factory=Notify)
    books: BooksSettings = field(default_factory=BooksSettings)
    ranking: Annotated[tuple[str, ...], Meta(min_length=1)] = (
        "location",
        "market",
        "price",
        "waste",
    )

    def cloud(self, name: str) -> CloudSettings:
        """The cloud of that name (KeyError where there is none)."""
        for cloud in self.clouds:
            if cloud.name == name:
                return cloud
        raise KeyError(name)

    def suspend_time(self, cloud: CloudSettings) -> float:
        """Seconds a machine of that cloud may be idle: the cloud's own timing, else the general."""
        return _own_or(cloud.suspend_time, self.timings.suspend_time)

    def resume_timeout(self, cloud: CloudSettings) -> float:
        """Seconds a machine of that cloud may take to boot; by the same rule."""
        return _own_or(cloud.resume_timeout, self.timings.resume_timeout)

    def suspend_timeout(self, cloud: CloudSettings) -> float:
        """Seconds from giving a machine of that cloud back to using its node; by the same rule."""
        return _own_or(cloud.suspend_timeout, self.timings.suspend_timeout)

    @property
    def longest_resume_timeout(self) -> float:
        """Seconds that the slowest cloud's machines may take to boot."""
        return max(self.resume_timeout(cloud) for cloud in self.clouds)

    def who_of(self, cloud: CloudSettings) -> Who:
        """Who may use that cloud: see ``effective_who``."""
        return effective_who(cloud.who, self.who)

    @property
    def state(self) -> Path:
        """The state directory; owned by SlurmUser."""
        return Path(self.state_dir)

    @property
    def read_socket(self) -> Path:
        """Where users ask slurm-elasticd: outside of the state directory, which they cannot enter;
        beside one that is not the usual one.
        """
        if self.users.socket is not None:
            return Path(self.users.socket)
        return DEFAULT_SOCKET if self.state_dir == DEFAULT_STATE else Path(f"{self.state_dir}.sock")


def _own_or(own: float | None, general: float) -> float:
    return general if own is None else own


def settled(config: Config) -> Config:
    """With the defaults that depend on other values, too. Pure."""

    def whole(cloud: CloudSettings) -> CloudSettings:
        if getattr(cloud, "listing_lag", 0.0) is not None:
            return cloud  # it has none, or the site has set it
        return replace(cloud, listing_lag=default_listing_lag(config.resume_timeout(cloud)))

    return replace(config, clouds=tuple(whole(cloud) for cloud in config.clouds))


def blocked_clouds(config: Config) -> dict[str, str]:
    """By cloud name, why nothing may be started there yet: a public cloud spends money, so it
    needs an allow list and an hourly cap, its own or the cluster's; one of a kind that cannot be
    used is shut, too. Pure; a cloud that may be used has no entry.
    """
    costly = {
        cloud.name: f"cloud {cloud.name} costs money: {' and '.join(missing)}"
        for cloud in config.clouds
        if cloud.location is Location.PUBLIC and (missing := _missing_consents(config, cloud))
    }
    broken = [cloud for cloud in config.clouds if cloud.unusable]
    return costly | {c.name: f"cloud {c.name} cannot be used: {c.unusable}" for c in broken}


def _missing_consents(config: Config, cloud: CloudSettings) -> list[str]:
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
            instance_types=p.type_names,
            zones=p.zones,
            markets=_markets(config, p),
            max_price=p.max_price,
            max_nodes=p.max_nodes,
            max_age=max_age(config, p),
            interruption_loss=p.interruption_loss,
            partial_jobs=p.partial_jobs,
            max_booting=p.max_booting,
            image=p.image,
            weight=1000 + 10 * rank,
            stopped=p.stopped,
            stopped_price=p.stopped_price,
        )
        for rank, p in enumerate(config.pools)
    )


def max_age(config: Config, pool: PoolSettings) -> float | None:
    """A machine of a public cloud costs money as long as it is there, so none is there for ever."""
    if pool.max_age is None and config.cloud(pool.cloud).location is Location.PUBLIC:
        return PUBLIC_MAX_AGE
    return pool.max_age


def _markets(config: Config, pool: PoolSettings) -> tuple[Market, ...]:
    """A site's own machines are paid already: they count as reserved, not as on-demand."""
    if config.cloud(pool.cloud).location is Location.ON_PREMISES:
        return (Market.RESERVED,)
    return pool.markets
