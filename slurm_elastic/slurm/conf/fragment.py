"""``slurm-elastic.conf``: what slurm.conf includes. Pure: the same arguments, the same text.

It holds our nodes, a partition for each cloud and, of options that are lists, the union with the
site's own values, because the last of two lines wins in Slurm. It sets nothing that changes how the
site's own jobs run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.config import Config, blocked_clouds
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.pool_rules import fail_safe
from slurm_elastic.model.cluster import Location, Pool
from slurm_elastic.model.slurm import NOWHERE
from slurm_elastic.policies.launch.verdict import features
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.siteconf import SiteConf
from slurm_elastic.slurm.conf.conflicts import NODE_RESETS, conflicts_of, programs_of

FILE_NAME = "slurm-elastic.conf"

HOSTS_OF_24 = 254
_PARTITION_RESETS = {
    "alternate": 'Alternate=""',
    "hidden": "Hidden=NO",
    "lln": "LLN=NO",
    "maxcpuspernode": "MaxCPUsPerNode=UNLIMITED",
    "maxcpuspersocket": "MaxCPUsPerSocket=UNLIMITED",
    "maxnodes": "MaxNodes=UNLIMITED",
    "minnodes": "MinNodes=0",
    "powerdownonidle": "PowerDownOnIdle=NO",
    "reqresv": "ReqResv=NO",
    "rootonly": "RootOnly=NO",
}
"""Options of PartitionName=DEFAULT that would cripple a cloud partition, at Slurm's default."""

_PARTITION_SET_BY_US = frozenset(
    {
        "default",
        "nodes",
        "priority",
        "priorityjobfactor",
        "prioritytier",
        "resumetimeout",
        "state",
        "suspendtime",
        "suspendtimeout",
    }
)


def render(
    config: Config,
    pools: Sequence[Pool],
    site: SiteConf,
    version: tuple[int, int],
    *,
    lua: bool = True,
) -> str:
    """The fragment for this site and Slurm version (22, 5); ``lua``: Slurm has job_submit/lua.

    Raises ConfigError with every conflict between our lines and the site's.
    """
    problems = conflicts_of(config, pools, site)
    if problems:
        raise ConfigError(*problems)
    sections = (
        _header(config, version),
        list(_options(config, pools, site, version, lua=lua)),
        list(_nodes(config, pools, site, version)),
        list(_partitions(config, pools, site)),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def slurm_time(seconds: float) -> str:
    """Seconds as ``D-HH:MM:SS``, rounded up to the minute that Slurm's time limits have."""
    minutes = math.ceil(seconds / 60)
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-{rest // 60:02}:{rest % 60:02}:00"


def _header(config: Config, version: tuple[int, int]) -> list[str]:
    return [
        f"# Cloud nodes and partitions of cluster {config.cluster.name}, included by slurm.conf.",
        "# Written by `slurm-elastic conf install`; change slurm-elastic.yaml and install again.",
        f"# For Slurm {version[0]}.{version[1]:02}.",
    ]


def _options(
    config: Config, pools: Sequence[Pool], site: SiteConf, version: tuple[int, int], *, lua: bool
) -> Iterator[str]:
    for name, value in programs_of(config).items():
        yield f"{name}={value}"
    base = config.slurm.programs_dir.rstrip("/")
    # Without a prolog that waits for the nodes slurmctld starts the job by its look of every 30 s,
    # up to 29 s after they are up (measured on 22.05 to 26.05).
    yield f"PrologSlurmctld={base}/slurm-elastic-prolog"
    if config.slurm.epilog_hook:
        yield f"EpilogSlurmctld={base}/slurm-elastic-epilog"
    yield from _union(site, "SlurmctldParameters", _controller_parameters(config, version))
    # Without it the commands of 22.05 hide powered-down cloud nodes, which those of 24.11 show.
    yield from _union(site, "PrivateData", ["cloud"] if version < (23, 2) else [])
    gres = {name.partition(":")[0] for pool in pools for name in pool.gres}
    yield from _union(site, "GresTypes", sorted(gres))
    yield from _union(site, "JobSubmitPlugins", ["lua"] if lua else [])


WIPE = "/usr/local/sbin/slurm-elastic-wipe"
"""The program of ``join.wipe`` on machines. slurm.conf's Epilog cannot name it for them alone: a
path or a pattern that fits nothing on a node is an Epilog error there, which drains it (22.05).
"""


def _controller_parameters(config: Config, version: tuple[int, int]) -> list[str]:
    # By default slurmctld calls ResumeProgram up to 10 s after it has allocated the nodes
    # (measured).
    wanted = ["power_save_interval=1", "power_save_min_interval=0"]
    if version < (23, 11):
        # Later releases do so in any case, and 24.11 complains of the word.
        wanted.append("cloud_reg_addrs")
    if any(cloud.__struct_config__.tag != "local" for cloud in config.clouds):
        wanted.append("enable_configless")
    return wanted


def _union(site: SiteConf, name: str, wanted: Sequence[str]) -> Iterator[str]:
    """The site's items, then ours that it lacks; no line where it lacks none.

    An item with a value (``power_save_interval=5``) stays the site's.
    """
    own = site.items(name)
    have = {item.partition("=")[0].lower() for item in own}
    new = [item for item in wanted if item.partition("=")[0].lower() not in have]
    if new:
        yield f"{name}={','.join((*own, *new))}"


def ranked(config: Config, pools: Sequence[Pool]) -> list[Pool]:
    """On-premises pools first, each location in the file's order."""
    return sorted(
        pools, key=lambda p: (config.cloud(p.cloud).location != Location.ON_PREMISES, p.weight)
    )


def slurm_weights(config: Config, pools: Sequence[Pool]) -> dict[str, int]:
    """By pool, in the order of ``ranked``: the Weight of its nodes."""
    weights = sorted(pool.weight for pool in pools)
    return {pool.name: weight for pool, weight in zip(ranked(config, pools), weights, strict=True)}


def _nodes(
    config: Config, pools: Sequence[Pool], site: SiteConf, version: tuple[int, int]
) -> Iterator[str]:
    ports = {pool.name: pool.slurmd_port for pool in config.pools}
    weights = slurm_weights(config, pools)
    for pool in ranked(config, pools):
        yield " ".join(
            (
                f"NodeName={_hostlist(pool.nodes)}",
                f"CPUs={pool.cpus}",
                f"RealMemory={pool.real_memory}",
                *_gres(pool),
                f"Feature={','.join(features(pool))}",
                f"Weight={weights[pool.name]}",
                *_address(pool, ports[pool.name], site, version),
                *_node_resets(pool, site),
                "State=CLOUD",
            )
        )


def _hostlist(nodes: Sequence[str]) -> str:
    """Compressed, but never reordered: the i-th name has the i-th port."""
    text = compress(nodes)
    return text if expand(text) == list(nodes) else ",".join(nodes)


def _gres(pool: Pool) -> Iterator[str]:
    if pool.gres:
        yield "Gres=" + ",".join(f"{name}:{count}" for name, count in pool.gres.items())


def _address(
    pool: Pool, port: int | None, site: SiteConf, version: tuple[int, int]
) -> Iterator[str]:
    """Several slurmd's on this host need a port each; else the cloud tells the address."""
    if port is not None:
        last = port + len(pool.nodes) - 1
        yield f"NodeAddr=127.0.0.1 Port={port if last == port else f'[{port}-{last}]'}"
        return
    if _looks_names_up(site, version):
        yield f"NodeAddr={_no_addresses(len(pool.nodes))}"
    if "port" in site.node_defaults:
        slurmd_port = site.option("SlurmdPort")
        yield f"Port={slurmd_port.value if slurmd_port else 6818}"


def _looks_names_up(site: SiteConf, version: tuple[int, int]) -> bool:
    """Whether slurmctld looks up the names of nodes without an address, 10 s each, and answers no
    command until then, for example at ``scontrol reconfigure`` while they boot (22.05, measured).
    """
    # Commands use the names with cloud_dns, and slurmd binds to NodeAddr with NoInAddrAny.
    by_name = "cloud_dns" in site.items("SlurmctldParameters")
    binds = "NoInAddrAny" in site.items("CommunicationParameters")
    return version < (23, 11) and not by_name and not binds


def _no_addresses(count: int) -> str:
    """So many addresses to which nothing can be sent (``NOWHERE``): until a machine registers."""
    prefix = NOWHERE.rpartition(".")[0]
    # One for each node: Slurm without --enable-multiple-slurmd refuses fewer.
    parts = [min(HOSTS_OF_24, count - begin) for begin in range(0, count, HOSTS_OF_24)]
    return ",".join(f"{prefix}.[1-{size}]" if size > 1 else f"{prefix}.1" for size in parts)


def _node_resets(pool: Pool, site: SiteConf) -> Iterator[str]:
    for key, entry in site.node_defaults.items():
        if key == "corespersocket":
            yield f"{entry.name}={pool.cpus}"
        elif key in NODE_RESETS and not (key == "gres" and pool.gres):
            yield f"{entry.name}={NODE_RESETS[key]}"


def _partitions(config: Config, pools: Sequence[Pool], site: SiteConf) -> Iterator[str]:
    kept = [
        f"{entry.name}={entry.value} ({PurePath(entry.file).name}:{entry.line})"
        for key, entry in site.partition_defaults.items()
        if key not in _PARTITION_SET_BY_US and key not in _PARTITION_RESETS
    ]
    if kept:
        yield "# From the site's PartitionName=DEFAULT, unless set below: " + ", ".join(kept)
    blocked = blocked_clouds(config)
    for cloud in config.clouds:
        nodes = [node for pool in pools if pool.cloud == cloud.name for node in pool.nodes]
        if not nodes:
            continue
        if cloud.name in blocked:
            yield f"# Shut: {blocked[cloud.name]}"
        # Nothing would be launched for its jobs, so Slurm must not take any.
        state = "INACTIVE" if cloud.name in blocked else "UP"
        yield f"{_partition(config, cloud, nodes, site)} State={state}"


def _partition(config: Config, cloud: CloudSettings, nodes: Sequence[str], site: SiteConf) -> str:
    resets = (_PARTITION_RESETS[k] for k in site.partition_defaults if k in _PARTITION_RESETS)
    return " ".join(
        (
            f"PartitionName={cloud.partition_name}",
            f"Nodes={compress(nodes)}",
            "Default=NO",
            *_order(site),
            *_who(config, cloud, site),
            *_times(config, cloud),
            *_billing(config, cloud),
            *resets,
        )
    )


def _order(site: SiteConf) -> Iterator[str]:
    """The numbers by which Slurm orders jobs of several partitions, as in the default partition.

    The order of a job's own list decides only if both numbers are equal (measured).
    """
    if "priority" in site.partition_defaults:
        # It would win over the other two, and it sets both (conflicts refuses unequal ones).
        yield f"Priority={site.priority_tier}"
    else:
        yield f"PriorityTier={site.priority_tier}"
        yield f"PriorityJobFactor={site.priority_job_factor}"


def _who(config: Config, cloud: CloudSettings, site: SiteConf) -> Iterator[str]:
    """Slurm wants every list to hold: account and group and QOS (slurm.conf(5))."""
    who = config.who_of(cloud)
    lists = {"AllowAccounts": who.accounts, "AllowGroups": who.groups, "AllowQos": who.qos}
    for name, allowed in lists.items():
        if allowed:
            yield f"{name}={','.join(allowed)}"
    default_time = who.default_time or _time_at_site(site, who.max_time)
    if default_time is not None:
        yield f"DefaultTime={slurm_time(default_time)}"
    if who.max_time is not None:
        yield f"MaxTime={slurm_time(who.max_time)}"


def _time_at_site(site: SiteConf, max_time: float | None) -> float | None:
    """The limit (s) of jobs without one on the site's own nodes, if that is their MaxTime and the
    cloud allows it. Slurm gives all tasks of an array the limit of the first one that starts, so
    without this DefaultTime an array without a limit could not use both.
    """
    default = site.default_partition
    if default is None or default.get("defaulttime"):
        return None  # Slurm then gives DefaultTime of the first partition everywhere
    limit = confvalues.seconds(default.get("maxtime"))
    inherited = site.partition_defaults.get("maxtime")
    most = max_time or (confvalues.seconds(inherited.value) if inherited else None)
    return limit if most is None or (limit is not None and limit <= most) else None


def _times(config: Config, cloud: CloudSettings) -> Iterator[str]:
    yield f"SuspendTime={math.ceil(fail_safe(config, cloud))}"
    yield f"ResumeTimeout={math.ceil(config.resume_timeout(cloud))}"
    yield f"SuspendTimeout={math.ceil(config.suspend_timeout(cloud))}"


def _billing(config: Config, cloud: CloudSettings) -> Iterator[str]:
    """TRESBillingWeights by the dearest of the cloud's pools, on-demand, a CPU."""
    unit = config.books.billing_unit
    prices = [
        shape.price / shape.cpus
        for pool in config.pools
        if pool.cloud == cloud.name
        for name, shape in cloud.shapes.items()
        if not pool.type_names or name in pool.type_names
    ]
    if cloud.flat_price is not None:
        prices = [cloud.flat_price / pool.cpus for pool in config.pools if pool.cloud == cloud.name]
    if unit is not None and prices and max(prices) > 0:
        # CPU alone: Slurm adds the weights of all TRES up (unless PriorityFlags has MAX_TRES), and
        # would charge a whole machine twice.
        yield f'TRESBillingWeights="CPU={max(prices) / unit:.6g}"'
