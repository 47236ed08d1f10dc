"""``slurm-elastic.conf``, which slurm.conf includes. Pure: the same arguments give the same text.

It holds our nodes and a partition for each cloud. For options that are lists it holds the union
with the site's own values, because Slurm uses only the last of two lines. It sets nothing that
changes how the site's own jobs run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.config import Config, blocked_clouds
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.pool_rules import fail_safe, on_demand_prices
from slurm_elastic.config.sections.access import Share
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.model.cluster import Location, Pool
from slurm_elastic.model.slurm import NOWHERE
from slurm_elastic.policies.launch.verdict import features
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.siteconf import SiteConf
from slurm_elastic.slurm.conf import allowed_partitions
from slurm_elastic.slurm.conf.checks.conflicts import (
    NODE_RESETS,
    SOCKET_KEYS,
    conflicts_of,
    programs_of,
)

FILE_NAME = "slurm-elastic.conf"

HOSTS_PER_NETWORK = 254
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
"""Slurm's default for each option of PartitionName=DEFAULT that would cripple a cloud partition."""

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
    """The fragment for this site and Slurm version (22, 5). ``lua``: Slurm has job_submit/lua.

    Raises ConfigError with every conflict between our lines and the site's.
    """
    problems = conflicts_of(config, pools, site)
    if problems:
        raise ConfigError(*problems)
    sections = (
        _header(config, version),
        list(_options(config, pools, site, version, lua=lua)),
        list(node_lines(config, pools, site, version)),
        list(_partitions(config, pools, site)),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def slurm_time(seconds: float) -> str:
    """Seconds as ``D-HH:MM:SS``, rounded up to minutes, which is the unit of Slurm's limits."""
    minutes = math.ceil(seconds / 60)
    days, minutes_of_day = divmod(minutes, 24 * 60)
    return f"{days}-{minutes_of_day // 60:02}:{minutes_of_day % 60:02}:00"


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
    # A prolog must wait for the nodes. Without it slurmctld starts the job in a pass every 30 s
    # (PERIODIC_TIMEOUT), up to 29 s after the nodes are up (measured on 22.05 to 26.05).
    yield f"PrologSlurmctld={base}/slurm-elastic-prolog"
    if has_epilog(config):
        yield f"EpilogSlurmctld={base}/slurm-elastic-epilog"
    if wipes(config) and site.option("Epilog") is None:
        yield "# /usr/bin/true on all nodes, and on cloud machines /var/bin/true, for join.wipe."
        yield f"Epilog={EPILOG}"
    yield from _union(site, "SlurmctldParameters", _controller_parameters(config, version))
    # Without it the commands of 22.05 hide powered-down cloud nodes. 24.11 shows them.
    yield from _union(site, "PrivateData", ["cloud"] if version < (23, 2) else [])
    gres = {name.partition(":")[0] for pool in pools for name in pool.gres}
    yield from _union(site, "GresTypes", sorted(gres))
    yield from _union(site, "JobSubmitPlugins", ["lua"] if lua else [])


def copying_clouds(config: Config) -> list[CloudSettings]:
    """The clouds with machines that get copies of jobs' files."""
    return [cloud for cloud in config.clouds if cloud.data is Data.COPY]


def has_epilog(config: Config) -> bool:
    """Whether slurmctld runs our epilog: copied files come back while it waits."""
    return config.slurm.epilog_hook or bool(copying_clouds(config))


EPILOG = "/[uv][sa]r/bin/true"
"""The Epilog if ``join.wipe`` is set and the site has none. slurm.conf cannot name a program that
only cloud machines have: a path or a pattern that matches nothing on a node is an Epilog error,
which drains the node (22.05). This pattern matches /usr/bin/true, which all nodes have, and
/var/bin/true, which programs/epilog.sh makes on machines.
"""


def wipes(config: Config) -> bool:
    """Whether machines of a cloud empty the directories of ``join.wipe`` after jobs."""
    return bool(config.join.wipe) and any(cloud.by_user_data for cloud in config.clouds)


def _controller_parameters(config: Config, version: tuple[int, int]) -> list[str]:
    # power_save_interval is 10 s by default, so ResumeProgram is called up to 10 s after the
    # allocation (measured on 24.11).
    parameters = ["power_save_interval=1", "power_save_min_interval=0"]
    if version < (23, 11):
        # Later releases always do this, and 24.11 logs that the option is defunct.
        parameters.append("cloud_reg_addrs")
    if any(cloud.__struct_config__.tag != "local" for cloud in config.clouds):
        # Machines then get slurm.conf from slurmctld and need only the key (measured on 22.05 to
        # 26.05).
        parameters.append("enable_configless")
    return parameters


def _union(site: SiteConf, name: str, our_items: Sequence[str]) -> Iterator[str]:
    """The site's items, and then ours that it lacks. No line if the site has all our items.

    An item of the site with a value (``power_save_interval=5``) stays as it is.
    """
    site_items = site.items(name)
    site_names = {item.partition("=")[0].lower() for item in site_items}
    new_items = [item for item in our_items if item.partition("=")[0].lower() not in site_names]
    if new_items:
        yield f"{name}={','.join((*site_items, *new_items))}"


def ranked(config: Config, pools: Sequence[Pool]) -> list[Pool]:
    """The pools, on-premises first, otherwise in the file's order."""
    return sorted(
        pools, key=lambda p: (config.cloud(p.cloud).location != Location.ON_PREMISES, p.weight)
    )


def slurm_weights(config: Config, pools: Sequence[Pool]) -> dict[str, int]:
    """The Weight of the nodes of each pool, in the order of ``ranked``."""
    weights = sorted(pool.weight for pool in pools)
    return {pool.name: weight for pool, weight in zip(ranked(config, pools), weights, strict=True)}


def node_lines(
    config: Config, pools: Sequence[Pool], site: SiteConf, version: tuple[int, int]
) -> Iterator[str]:
    """The NodeName line of each pool."""
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
    """The nodes compressed, but never reordered, because the i-th name has the i-th port."""
    text = compress(nodes)
    return text if expand(text) == list(nodes) else ",".join(nodes)


def _gres(pool: Pool) -> Iterator[str]:
    if pool.gres:
        yield f"Gres={gres_value(pool)}"


def gres_value(pool: Pool) -> str:
    """The gres of each node of the pool, as slurm.conf has them."""
    return ",".join(f"{name}:{count}" for name, count in pool.gres.items())


def _address(
    pool: Pool, port: int | None, site: SiteConf, version: tuple[int, int]
) -> Iterator[str]:
    """Yield the address and ports of the pool's nodes. If their slurmds run on this host, each node
    needs a port of its own. Otherwise the nodes have no address, or an address that leads nowhere
    until slurmctld gets the real one.
    """
    if port is not None:
        last_port = port + len(pool.nodes) - 1
        yield f"NodeAddr=127.0.0.1 Port={port if last_port == port else f'[{port}-{last_port}]'}"
        return
    if _looks_up_names(site, version):
        yield f"NodeAddr={_unreachable_addresses(len(pool.nodes))}"
    if "port" in site.node_defaults:
        slurmd_port = site.option("SlurmdPort")
        yield f"Port={slurmd_port.value if slurmd_port else 6818}"


def _looks_up_names(site: SiteConf, version: tuple[int, int]) -> bool:
    """Whether slurmctld looks up the names of nodes without an address. It takes 10 s for each and
    answers no command in this time, for example at ``scontrol reconfigure`` (22.05, measured).
    """
    # Commands use the names with cloud_dns, and slurmd binds to NodeAddr with NoInAddrAny.
    by_name = "cloud_dns" in site.items("SlurmctldParameters")
    binds = "NoInAddrAny" in site.items("CommunicationParameters")
    return version < (23, 11) and not by_name and not binds


def _unreachable_addresses(count: int) -> str:
    """As many addresses that lead nowhere (``NOWHERE``), for the time until a machine registers."""
    prefix = NOWHERE.rpartition(".")[0]
    # One for each node, because Slurm without --enable-multiple-slurmd refuses fewer addresses.
    sizes = [min(HOSTS_PER_NETWORK, count - begin) for begin in range(0, count, HOSTS_PER_NETWORK)]
    return ",".join(f"{prefix}.[1-{size}]" if size > 1 else f"{prefix}.1" for size in sizes)


def _node_resets(pool: Pool, site: SiteConf) -> Iterator[str]:
    defaults = site.node_defaults
    if SOCKET_KEYS & defaults.keys() and "corespersocket" not in defaults:
        # If the sockets are given, Slurm takes one core per socket, whatever CPUs says (22.05).
        yield f"CoresPerSocket={pool.cpus}"
    for key, entry in defaults.items():
        if key == "corespersocket":
            yield f"{entry.name}={pool.cpus}"
        elif key in NODE_RESETS and not (key == "gres" and pool.gres):
            yield f"{entry.name}={NODE_RESETS[key]}"


def _partitions(config: Config, pools: Sequence[Pool], site: SiteConf) -> Iterator[str]:
    inherited = [
        f"{entry.name}={entry.value} ({PurePath(entry.file).name}:{entry.line})"
        for key, entry in site.partition_defaults.items()
        if key not in _PARTITION_SET_BY_US and key not in _PARTITION_RESETS
    ]
    if inherited:
        yield "# From the site's PartitionName=DEFAULT, unless set below: " + ", ".join(inherited)
    blocked = blocked_clouds(config)
    for cloud in config.clouds:
        own_pools = [pool for pool in pools if pool.cloud == cloud.name]
        if not any(pool.nodes for pool in own_pools):
            continue
        if cloud.name in blocked:
            yield f"# Shut: {blocked[cloud.name]}"
        # We launch nothing for a blocked cloud, so Slurm must accept no jobs there.
        state = "INACTIVE" if cloud.name in blocked else "UP"
        yield f"{_partition(config, cloud, own_pools, site)} State={state}"


def _partition(config: Config, cloud: CloudSettings, pools: Sequence[Pool], site: SiteConf) -> str:
    nodes = [node for pool in pools for node in pool.nodes]
    resets = (_PARTITION_RESETS[k] for k in site.partition_defaults if k in _PARTITION_RESETS)
    return " ".join(
        (
            f"PartitionName={cloud.partition_name}",
            f"Nodes={compress(nodes)}",
            "Default=NO",
            *_order(site),
            *_access(config, cloud, site),
            *_times(config, cloud),
            *_billing(config, cloud, pools),
            *_sharing(config, cloud),
            *resets,
        )
    )


def _order(site: SiteConf) -> Iterator[str]:
    """The numbers by which Slurm orders jobs of several partitions, as in the default partition.

    The order of a job's own list decides only if both numbers are equal (measured).
    """
    if "priority" in site.partition_defaults:
        # Priority wins over the other two and sets both (``conflicts`` refuses unequal ones).
        yield f"Priority={site.priority_tier}"
    else:
        yield f"PriorityTier={site.priority_tier}"
        yield f"PriorityJobFactor={site.priority_job_factor}"


def _access(config: Config, cloud: CloudSettings, site: SiteConf) -> Iterator[str]:
    """The limits of ``allow``. Slurm requires all lists: account, group and QOS (slurm.conf(5))."""
    rules = config.who_of(cloud)
    lists = {"AllowAccounts": rules.accounts, "AllowGroups": rules.groups, "AllowQos": rules.qos}
    for name, allowed in lists.items():
        if allowed:
            yield f"{name}={','.join(allowed)}"
    default_time = rules.default_time or _time_at_site(config, cloud, site)
    if default_time is not None:
        yield f"DefaultTime={slurm_time(default_time)}"
    if rules.max_time is not None:
        yield f"MaxTime={slurm_time(rules.max_time)}"


def _time_at_site(config: Config, cloud: CloudSettings, site: SiteConf) -> float | None:
    """The time limit (s) that the fragment sets for jobs without a limit, or None: the MaxTime of
    the site's own partition, if jobs without a limit get it there and the cloud allows it. Slurm
    gives all tasks of an array the limit of the first task that starts, so otherwise such an array
    could not use both partitions. Of several partitions of ``allow.partitions`` the default one
    counts, else the first.
    """
    record = next(iter(allowed_partitions.partitions_of(config, cloud, site)), None)
    if record is None or record.get("defaulttime"):
        return None  # Slurm then gives all its partitions the DefaultTime of the first one
    limit = confvalues.seconds(record.get("maxtime"))
    inherited = site.partition_defaults.get("maxtime")
    inherited_limit = confvalues.seconds(inherited.value) if inherited else None
    cloud_limit = config.who_of(cloud).max_time or inherited_limit
    return limit if cloud_limit is None or (limit is not None and limit <= cloud_limit) else None


def _times(config: Config, cloud: CloudSettings) -> Iterator[str]:
    # In the partition's line, because a global SuspendTime would suspend the site's own nodes, too.
    # Power saving works with this one alone (measured on 22.05 to 26.05).
    yield f"SuspendTime={math.ceil(fail_safe(config, cloud))}"
    yield f"ResumeTimeout={math.ceil(config.resume_timeout(cloud))}"
    yield f"SuspendTimeout={math.ceil(config.suspend_timeout(cloud))}"


def _sharing(config: Config, cloud: CloudSettings) -> Iterator[str]:
    """The option of ``share``, which all pools of a cloud have in common."""
    share = next((pool.share for pool in config.pools if pool.cloud == cloud.name), None)
    if share is Share.USER:
        yield "ExclusiveUser=YES"
    elif share is Share.EXCLUSIVE:
        yield "OverSubscribe=EXCLUSIVE"


def _billing(config: Config, cloud: CloudSettings, pools: Sequence[Pool]) -> Iterator[str]:
    """TRESBillingWeights by the cloud's highest on-demand price for a CPU. ``pools``: the
    cloud's.
    """
    unit = config.accounting.billing_unit
    prices = [
        # By the CPUs of the node: a whole node of Slurm must count the price of a whole machine,
        # which may have more CPUs.
        price / pool.cpus
        for pool in pools
        for price in on_demand_prices(cloud, pool).values()
    ]
    if unit is not None and prices and max(prices) > 0:
        # Only CPU: Slurm adds the weights of all TRES up (unless PriorityFlags has MAX_TRES), so
        # further weights would charge a whole machine twice.
        yield f'TRESBillingWeights="CPU={max(prices) / unit:.6g}"'
