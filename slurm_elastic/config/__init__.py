"""The configuration as frozen values. Every default stands here or in the module of its section
(``clouds``, ``checkpoint``, ``joining``, ``access``, ...).

``etc/slurm-elastic.yaml`` describes the file key by key, and ``configfile.load`` reads it. Here
durations are seconds (the file also takes ``90s 15m 2h 7d`` and Slurm's ``D-HH:MM:SS``) and sizes
are MiB (the file also takes ``4G``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from slurm_elastic.base.account import acting_in
from slurm_elastic.config.basics.numbers import (
    Count,
    Cpus,
    Dollars,
    Mebibytes,
    Port,
    Seconds,
)
from slurm_elastic.config.basics.todos import keys_left
from slurm_elastic.config.clouds import (
    CloudSettings,
    default_listing_lag,
)
from slurm_elastic.config.sections.access import Share, Users, Who, effective_who
from slurm_elastic.config.sections.books import BooksSettings
from slurm_elastic.config.sections.checkpoint import CheckpointSettings, PoolCheckpoint
from slurm_elastic.config.sections.copying import CopySettings
from slurm_elastic.config.sections.joining import Join
from slurm_elastic.config.sections.other_clusters import OtherCluster
from slurm_elastic.config.sections.policies import Budget, PoolPolicies, SitePolicies
from slurm_elastic.config.sections.requirements import Requirements
from slurm_elastic.config.sections.telling import Notify
from slurm_elastic.config.sections.timings import Timings
from slurm_elastic.model.boot_image import ImageChoice, Replacement
from slurm_elastic.model.causes.stops import CloudBlocked
from slurm_elastic.model.cluster import Limits, Location, Market, Pool
from slurm_elastic.model.machine_options import MachineOptions
from slurm_elastic.model.max_price import MaxPrice
from slurm_elastic.model.reserved import Held
from slurm_elastic.policies.nodes.out_of_service import DrainTerms

PUBLIC_MAX_AGE = 7 * 86400.0  # the `max_age` (s) of a pool in a public cloud that sets none


NO_UUID = "cluster.uuid is not set; 'slurm-elastic init' or 'slurm-elastic conf install' makes one"


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cluster of the machines. The tags of each machine have its UUID."""

    name: str
    """Change it when slurm.conf's ClusterName changes; end all machines first."""
    uuid: str | None = None
    """Change it when a new head node must keep the identity of an old one; machines with another
    UUID belong to no cluster and stay.
    """


class SlurmClientKind(StrEnum):
    """How the daemon talks to Slurm. AUTO: pyslurm if it fits this Slurm, otherwise commands."""

    CLI = "cli"
    PYSLURM = "pyslurm"
    AUTO = "auto"


class SlurmSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The places of Slurm's files and programs, and how we talk to Slurm."""

    conf: str = "/etc/slurm/slurm.conf"
    """Change it when slurm.conf is in another place."""
    user: str = "slurm"
    """Change it when slurm.conf has another SlurmUser."""
    bin_dir: str = "/usr/bin"
    """Change it when Slurm was installed under a prefix of its own, such as /opt/slurm/bin."""
    sbin_dir: str = "/usr/sbin"
    """Change it when Slurm's daemons are in another place than /usr/sbin."""
    programs_dir: str = "/usr/local/libexec/slurm-elastic"
    """Change it when /usr/local cannot be written, or two slurmctlds share a host."""
    command_timeout: Seconds = 60.0
    """Change it when slurmctld needs longer than a minute for a list when it is busiest."""
    client: SlurmClientKind = SlurmClientKind.CLI
    """Change it when the commands of a round take too long in a large cluster, and a pyslurm of
    exactly this release of Slurm is installed.
    """
    # Off by default, because on 22.05 any EpilogSlurmctld makes the next job on a static node wait
    # for the next sched_interval (measured).
    epilog_hook: bool = False
    """Change it when waiting jobs should learn a little sooner that another job has ended, and
    Slurm is newer than 22.05.
    """
    wait_notes: bool = True
    """Change it when another program of the site writes the AdminComment of waiting jobs."""
    replace_reasons: tuple[str, ...] = ()
    """Change it when a health check drains nodes (NHC, HealthCheckProgram): the patterns of its
    reasons, such as "NHC: *". A node with such a reason gets another machine.
    """

    @property
    def drain_terms(self) -> DrainTerms:
        """The rules by which the reasons of drained nodes are read."""
        return DrainTerms(slurm_user=self.user, replace_reasons=self.replace_reasons)


class HaSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two heads. Slurm decides which one acts."""

    directory: str | None = None
    """Change it when slurm.conf has two SlurmctldHost lines: a directory that both heads see, such
    as one beside StateSaveLocation.
    """


DEFAULT_STATE = "/var/lib/slurm-elastic"
DEFAULT_SOCKET = Path("/run/slurm-elasticd/read.sock")
"""The socket for users' questions: in the service's RuntimeDirectory, which users may enter."""


class PoolSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes of one cloud, all alike. ``memory`` (MiB) is a machine's, ``slurm_memory`` Slurm's."""

    name: str
    """Change it when the pool means something else to people; it is in messages, in `cost` and in
    operators' orders.
    """
    cloud: str
    """Change it when the pool's machines should come from elsewhere; end the running ones first."""
    nodes: str
    """Change it when the pool needs more nodes, or other names; only names of nodes that are
    powered down may go.
    """
    cpus: Cpus
    """Change it when jobs need nodes of another size; all types of the pool must have as many."""
    memory: Mebibytes
    """Change it when jobs need nodes of another size; all types of the pool must have as much."""
    real_memory: Mebibytes | None = None
    """Change it when slurmd reports less than the default leaves and Slurm drains the node, or
    reports more and jobs may use it.
    """
    gres: dict[str, Count] = field(default_factory=dict)
    """Change it when the machines have GPUs or other devices that jobs ask for."""
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Change it when the devices are not NVIDIA's, or their files have other names."""
    share: Share | None = None
    """Change it when users should not share machines and their /tmp, or jobs want whole machines.
    """
    features: tuple[str, ...] = ()
    """Change it when jobs choose nodes by `--constraint`."""
    instance_types: tuple[str, ...] | Requirements = ()
    """Change it when other types are cheaper, more often available, or better for your jobs; more
    types mean fewer refusals.
    """
    zones: tuple[str, ...] = ()
    """Change it when data, licences or prices bind jobs to some zones of the cloud."""
    markets: Annotated[tuple[Market, ...], Meta(min_length=1)] = (Market.ON_DEMAND,)
    """Change it when jobs can stand an interruption and may run on spot machines, or may not."""
    on_demand_nodes: Annotated[int, Meta(ge=0)] = 0
    """Change it when jobs with `--no-requeue`, which some workflow tools write, should get machines
    of a pool that also has spot machines.
    """
    max_price: Dollars | MaxPrice | None = None
    """Change it when above some price jobs should wait instead, or spot machines should be given
    up.
    """
    max_nodes: Count | None = None
    """Change it when fewer machines should run at a time than there are node names."""
    max_age: Seconds | None = None
    """Change it when machines should be replaced sooner (images with updates), or jobs run for
    longer than a week.
    """
    interruption_loss: Seconds = 1800.0
    """Change it when `ranking` has `risk`, and an interruption costs jobs more or less."""
    partial_jobs: bool = False
    """Change it when large jobs often get only a part of their nodes and the machines would soon
    be needed again.
    """
    max_booting: Count | None = None
    """Change it when machines that boot at once overload a file server, a registry or the cloud."""
    max_stopped: Annotated[int, Meta(ge=0)] = 0
    """Change it when a start from disk is faster, and the disk costs less than the wait."""
    stopped_price: Annotated[float, Meta(ge=0)] = 0.0
    """Change it when the cloud charges for disks of stopped machines."""
    slurmd_port: Port | None = None
    """Change it when several nodes share a host, or the usual port is taken there."""
    image: ImageChoice | None = None
    """Change it when the pool's jobs need other software than the cloud's image has."""
    machine: MachineOptions = field(default_factory=MachineOptions)
    replace: Replacement = Replacement.BY_HAND
    """Change it when machines should make room for a new image by themselves, after their jobs."""
    max_unavailable: Count | None = None
    """Change it when more machines, or fewer, may be missing at a time while a new image replaces
    them.
    """
    policies: PoolPolicies = field(default_factory=PoolPolicies)
    checkpoint: PoolCheckpoint = field(default_factory=PoolCheckpoint)

    @property
    def type_names(self) -> tuple[str, ...]:
        """The names in ``instance_types``. Empty for requirements that no catalogue has met yet."""
        names = self.instance_types
        return () if isinstance(names, Requirements) else names

    @property
    def slurm_memory(self) -> int:
        """RealMemory for slurm.conf, by default 5 % and at least 256 MiB below ``memory``."""
        if self.real_memory is not None:
            return self.real_memory
        # slurmd reports a little less than the data sheet, and Slurm drains a node that has less
        # than RealMemory.
        return max(1, min(int(self.memory * 0.95), self.memory - 256))


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. Of equally good clouds or pools, the first in the file is taken first."""

    cluster: Cluster
    clouds: Annotated[tuple[CloudSettings, ...], Meta(min_length=1)]
    pools: Annotated[tuple[PoolSettings, ...], Meta(min_length=1)]
    state_dir: str = DEFAULT_STATE
    """Change it when /var/lib is small, slow or not kept over an upgrade; move its content while
    the services are stopped.
    """
    ha: HaSettings = field(default_factory=HaSettings)
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    allow: Who = field(default_factory=Who)
    users: Users = field(default_factory=Users)
    limits: Limits = field(default_factory=Limits)
    timings: Timings = field(default_factory=Timings)
    policies: SitePolicies = field(default_factory=SitePolicies)
    join: Join = field(default_factory=Join)
    copy: CopySettings = field(default_factory=CopySettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    notify: Notify = field(default_factory=Notify)
    accounting: BooksSettings = field(default_factory=BooksSettings)
    clusters: tuple[OtherCluster, ...] = ()
    """Change it when `status --clusters` and the page should show other clusters, too."""
    ranking: Annotated[tuple[str, ...], Meta(min_length=1)] = (
        "location",
        "market",
        "price",
        "waste",
    )
    """Change it when something else counts first, such as the price before the location, or `risk`
    on spot markets.
    """

    def cloud(self, name: str) -> CloudSettings:
        """The cloud of that name. KeyError if there is none."""
        for cloud in self.clouds:
            if cloud.name == name:
                return cloud
        raise KeyError(name)

    @property
    def held(self) -> tuple[Held, ...]:
        """The reservations of all clouds."""
        return tuple(held for cloud in self.clouds for held in cloud.held)

    def budget_of(self, cloud: str) -> Budget:
        """The budget of the cloud of that name, or of the cluster ("")."""
        return self.cloud(cloud).policies.budget if cloud else self.policies.budget

    def suspend_time(self, cloud: CloudSettings) -> float:
        """How long (s) a machine of that cloud may be idle."""
        return _own_or(cloud.suspend_time, self.timings.suspend_time)

    def resume_timeout(self, cloud: CloudSettings) -> float:
        """How long (s) a machine of that cloud may take to boot."""
        return _own_or(cloud.resume_timeout, self.timings.resume_timeout)

    def suspend_timeout(self, cloud: CloudSettings) -> float:
        """How long (s) after the end of its machine a node of that cloud can be used again."""
        return _own_or(cloud.suspend_timeout, self.timings.suspend_timeout)

    @property
    def longest_resume_timeout(self) -> float:
        """The boot time (s) that the slowest cloud may take."""
        return max(self.resume_timeout(cloud) for cloud in self.clouds)

    def who_of(self, cloud: CloudSettings) -> Who:
        """Who may use that cloud."""
        return effective_who(cloud.allow, self.allow)

    @property
    def state(self) -> Path:
        """The state directory, which SlurmUser owns."""
        return Path(self.state_dir)

    def sharing(self) -> AbstractContextManager[None]:
        """Run the body with SlurmUser's rights. Otherwise root would write through links in
        SlurmUser's directories, and leave files that SlurmUser cannot change. On NFS with
        root_squash root has no rights at all.
        """
        shared = [] if self.ha.directory is None else [Path(self.ha.directory)]
        return acting_in([self.state, *shared], self.slurm.user)

    @property
    def read_socket(self) -> Path:
        """The socket on which users ask slurm-elasticd. Users cannot enter the state directory, so
        the socket is in /run, or beside a state directory that is not the usual one.
        """
        if self.users.socket is not None:
            return Path(self.users.socket)
        return DEFAULT_SOCKET if self.state_dir == DEFAULT_STATE else Path(f"{self.state_dir}.sock")


def _own_or(own_value: float | None, general: float) -> float:
    return general if own_value is None else own_value


def settled(config: Config) -> Config:
    """Fill in the defaults that depend on other values."""

    def whole(cloud: CloudSettings) -> CloudSettings:
        if getattr(cloud, "listing_lag", 0.0) is not None:
            return cloud  # this kind has no listing_lag, or the site has set it
        return replace(cloud, listing_lag=default_listing_lag(config.resume_timeout(cloud)))

    return replace(config, clouds=tuple(whole(cloud) for cloud in config.clouds))


def blocked_clouds(config: Config) -> dict[str, CloudBlocked]:
    """Why nothing may be started in a cloud, by the name of the cloud. A public cloud spends
    money, so it needs an allow list and an hourly cap, its own or the cluster's. A cloud of an
    unusable kind is blocked, too, and a cloud that has to-dos.
    """
    costly = {
        cloud.name: CloudBlocked(cloud=cloud.name, missing_consents=missing)
        for cloud in config.clouds
        if cloud.location is Location.PUBLIC and (missing := _missing_consents(config, cloud))
    }
    broken = {
        cloud.name: CloudBlocked(cloud=cloud.name, unusable=reason)
        for cloud in config.clouds
        if (reason := cloud.unusable or _unfinished(cloud))
    }
    return costly | broken


def _unfinished(cloud: CloudSettings) -> str:
    """The to-dos of a cloud whose skeleton is not completed yet. Empty if there are none."""
    keys = keys_left(cloud)
    return f"its settings still have to-dos: {', '.join(keys)}" if keys else ""


def _missing_consents(config: Config, cloud: CloudSettings) -> tuple[str, ...]:
    missing = []
    if not config.who_of(cloud).anybody:
        missing.append(
            "nobody is allowed to use it (set allow.accounts, allow.groups or allow.qos)"
        )
    if config.limits.dollars_per_hour is None and cloud.limits.dollars_per_hour is None:
        missing.append("it has no spending cap (set limits.dollars_per_hour)")
    return tuple(missing)


def domain_pools(config: Config, expand: Callable[[str], Sequence[str]]) -> tuple[Pool, ...]:
    """The pools in the form of the domain model. ``expand`` turns a hostlist into names."""
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
            on_demand_nodes=p.on_demand_nodes,
            max_price=p.max_price,
            max_nodes=p.max_nodes,
            max_age=max_age(config, p),
            interruption_loss=p.interruption_loss,
            partial_jobs=p.partial_jobs,
            max_booting=p.max_booting,
            image=p.image,
            # Slurm uses running nodes of the lowest weight first, but ignores the weights of
            # powered-down nodes (measured on 22.05). The weights are 10 apart, so that a site can
            # put nodes of its own in between.
            weight=1000 + 10 * rank,
            stopped=p.max_stopped,
            stopped_price=p.stopped_price,
            machine=p.machine,
            replacement=p.replace,
            max_unavailable=_max_unavailable(p, len(expand(p.nodes))),
        )
        for rank, p in enumerate(config.pools)
    )


def _max_unavailable(pool: PoolSettings, nodes: int) -> int:
    """How many nodes may lack a machine while a new image replaces machines: by default a tenth of
    them, at least one.
    """
    return pool.max_unavailable or max(1, nodes // 10)


def max_age(config: Config, pool: PoolSettings) -> float | None:
    """How long (s) a machine of the pool may live. Never without end if it costs money."""
    if pool.max_age is None and config.cloud(pool.cloud).location is Location.PUBLIC:
        return PUBLIC_MAX_AGE
    return pool.max_age


def _markets(config: Config, pool: PoolSettings) -> tuple[Market, ...]:
    """The markets. A site has already paid for its own machines, so they count as reserved."""
    if config.cloud(pool.cloud).location is Location.ON_PREMISES:
        return (Market.RESERVED,)
    return pool.markets
