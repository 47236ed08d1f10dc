"""The job submit filter: ``slurm_elastic.lua`` with its parts (``job_*.lua``), and
``job_submit.lua`` for a site without one.

The code is Lua, for Slurm's job_submit/lua plug-in, and lies beside this module. This module gives
it its data: our partitions in rank order, with the resources of their nodes. The data does not say
who may use a partition, nor its state and limits: the filter asks Slurm at each submission.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.config import Config, blocked_clouds
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.method_kinds import options_of, table
from slurm_elastic.config.node_limits import max_cloud_nodes, max_pool_nodes
from slurm_elastic.config.sections.checkpoint import LIMIT, REHEARSED, CheckpointSettings
from slurm_elastic.config.sections.copying import Traffic
from slurm_elastic.config.validation.validate_checkpoint import SHARED
from slurm_elastic.model.causes.hindrances import (
    BY_MPIRUN,
    BY_SBATCH,
    CATCH,
    ON_ONE_NODE,
    STEPS,
    UNCAUGHT,
)
from slurm_elastic.model.causes.save_refusals import NO_COMPONENTS, NO_DIRECTORY, ONE_NODE
from slurm_elastic.model.cluster import Location, Pool
from slurm_elastic.policies.checkpoint.unsavable import SEVERAL_NODES
from slurm_elastic.policies.launch.job_data import FORM as DATA_FORM
from slurm_elastic.policies.launch.open_partitions import is_open
from slurm_elastic.policies.launch.pool_order import DEFAULT_RUN_S
from slurm_elastic.policies.launch.ranking import MARKET_ORDER, SPOT_NOT_CHEAPER
from slurm_elastic.policies.launch.verdict import features
from slurm_elastic.slurm.client import confvalues, siteconf
from slurm_elastic.slurm.client.siteconf import SiteConf
from slurm_elastic.slurm.hooks import order_file
from slurm_elastic.slurm.hooks.launcher import launchers

FILTER = "slurm_elastic.lua"
PLUGIN_SCRIPT = "job_submit.lua"
RELAY = "signal_relay.sh"
_DATA_LINE = "local SITE = {}\n"
_PARTS = ("job_time.lua", "job_order.lua", "job_never.lua", "job_saving.lua")
MAX_LIST_LENGTH = 1024
"""Characters of a job's list of partitions. Slurm refuses a job with a longer list."""
_MAX_SCRIPT_LENGTH = 4 * 1024 * 1024
"""Characters of a job's script by default (slurm.conf(5), max_script_size)."""
# A call, and not the definition of a function of that name.
_CALL = re.compile(r"(?<!function )\bslurm_elastic_(submit|wrap)\s*\(")
_ANSWER_DROPPED = re.compile(r"(?<!return )(?<!function )\bslurm_elastic_submit\s*\(")
_COMMENT = re.compile(r"--\[\[.*?\]\]|--[^\n]*", re.DOTALL)

LuaValue = str | int | float | bool | Mapping[str, "LuaValue"] | Sequence["LuaValue"]


def render(
    config: Config,
    pools: Sequence[Pool],
    site: SiteConf | None = None,
    *,
    denies_below: bool = False,
) -> dict[str, str]:
    """Name -> text of the files that go beside slurm.conf.

    ``job_submit.lua`` is for sites without one. We never replace a site's own, which must load the
    other file and call ``slurm_elastic_submit(job_desc, part_list, submit_uid)``. Clouds that may
    not be used yet are left out.

    The filter cannot see all options, so some come from ``site``: DefMemPerCPU and DefMemPerNode
    (for jobs that ask for no memory), JobRequeue (for jobs that do not set it), the time-outs of
    ``client_boot_timeout_s``, and whether users are held to their accounts (``accounts_enforced``).
    ``denies_below``: DenyAccounts also denies the accounts below the named ones.
    """
    data: dict[str, LuaValue] = {
        "partitions": _partitions(config, pools, client_boot_timeout_s(site))
    }
    data["open_accounts"] = site is not None and not accounts_enforced(site)
    data["held_accounts"] = site is not None and accounts_enforced(site)
    data["denies_below"] = denies_below
    # Slurm takes dynamic nodes only with this option (slurm.conf(5)).
    data["dynamic_nodes"] = site is not None and site.option("MaxNodeCount") is not None
    enforced = site.option("EnforcePartLimits") if site else None
    data["enforces_all"] = enforced is not None and enforced.value.upper() in ("ALL", "YES")
    data["requeue"] = requeues_by_default(site)
    data["saving"] = _saving(config)
    data["order"] = _order(config)
    data["longest_list"] = MAX_LIST_LENGTH
    data["longest_script"] = _max_script_length(site)
    data |= _default_memory(site)
    if config.checkpoint.directory is not None:
        data["launchers"] = launchers(config.checkpoint.directory)
    return {
        FILTER: _replace_line(_whole_source(), _DATA_LINE, f"local SITE = {to_lua(data)}\n"),
        PLUGIN_SCRIPT: _source(PLUGIN_SCRIPT),
    }


def loses_refusals(script: str) -> bool:
    """Whether a job_submit.lua calls the filter and does not return its answer."""
    code = _COMMENT.sub("", script)
    return "slurm_elastic_wrap" not in code and _ANSWER_DROPPED.search(code) is not None


def final_return(script: str) -> int | None:
    """The line of the ``return`` that ends the script itself. In Lua no statement may follow it."""
    code = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), script)
    lines = [(n, line.strip()) for n, line in enumerate(code.splitlines(), 1) if line.strip()]
    # The `return` of a function has an `end` after it.
    return lines[-1][0] if lines and re.match(r"return\b", lines[-1][1]) else None


def ranked_partitions(config: Config) -> list[str]:
    """The partitions that may be listed, on-premises before public, as the filter ranks them."""
    blocked = blocked_clouds(config)
    return [cloud.partition_name for cloud in _ranked(config) if cloud.name not in blocked]


def is_open_to(
    config: Config, cloud: CloudSettings, partition: str, *, is_named: bool, is_default: bool
) -> bool:
    """Whether jobs of the site's partition may use the cloud. ``is_named``: the job names it.
    ``is_default``: it is the site's default partition.
    """
    allowed = config.who_of(cloud).partitions
    return is_open(allowed, partition, is_named=is_named, is_default=is_default)


def requeues_by_default(site: SiteConf | None) -> bool:
    """Whether Slurm may requeue a job without an option about that (JobRequeue)."""
    return _integer(site, "JobRequeue", 1) != 0


def _ranked(config: Config) -> list[CloudSettings]:
    return sorted(config.clouds, key=lambda cloud: cloud.location is not Location.ON_PREMISES)


def ranked_pools(config: Config, pools: Iterable[Pool]) -> list[Pool]:
    """The pools as the filter ranks them: by cloud, then by weight.

    The published prices list the pools so, because this order decides between equal pools, and the
    filter has no other one.
    """
    place = {cloud.name: number for number, cloud in enumerate(_ranked(config))}
    return sorted(pools, key=lambda pool: (place[pool.cloud], pool.weight))


def _whole_source() -> str:
    """The filter with its parts put in."""
    code = _source(FILTER)
    for name in _PARTS:
        code = _replace_line(code, f"-- Here comes {name}.\n", _source(name))
    return code


def _replace_line(code: str, line: str, text: str) -> str:
    if code.count(line) != 1:
        raise AssertionError(f"{FILTER} lacks the line {line!r}")
    return code.replace(line, text)


def trouble(conf: str | Path) -> str:
    """Why slurmctld does not call the filter, as far as slurm.conf and job_submit.lua show, so that
    jobs without a partition get none of ours. Empty if slurmctld calls it.
    """
    try:
        plugins = siteconf.read(conf).items("JobSubmitPlugins")
        script = (Path(conf).parent / PLUGIN_SCRIPT).read_text(errors="replace")
    except (ConfigError, FileNotFoundError) as error:
        return f"the submit filter is not installed ({error})"
    except OSError:
        return ""  # this user may not read them, so the question stays open
    if "lua" not in plugins:
        return "slurm.conf's JobSubmitPlugins has no lua, so the submit filter is not called"
    if not calls_filter(script):
        return f"the site's {PLUGIN_SCRIPT} does not call slurm_elastic_wrap"
    return ""


def calls_filter(script: str) -> bool:
    """Whether a job_submit.lua calls the filter, as far as its text shows."""
    return _CALL.search(_COMMENT.sub("", script)) is not None


ENFORCING = frozenset({"all", "associations", "limits", "qos", "safe", "wckeys"})
"""The values of AccountingStorageEnforce that hold users to their accounts (slurm.conf(5))."""


def accounts_enforced(site: SiteConf) -> bool:
    """Whether Slurm accepts a job only if its user belongs to the account that it names."""
    return bool({value.lower() for value in site.items("AccountingStorageEnforce")} & ENFORCING)


def client_boot_timeout_s(site: SiteConf | None) -> int:
    """Seconds that srun and salloc wait for the nodes of their job to boot before they give up.

    The sum of both time-outs times five (src/srun and src/salloc, _wait_nodes_ready, 22.05 to
    26.05). The commands know only the cluster's time-outs (30 and 60 s by default), not those of a
    partition.
    """
    values = (_integer(site, "SuspendTimeout", 30), _integer(site, "ResumeTimeout", 60))
    return 5 * sum(values)


def to_lua(value: LuaValue, indent: int = 0) -> str:
    """The value as a Lua expression (5.1 and later), with one line for each entry of a table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        entries = [f"[{_quoted(key)}] = {to_lua(item, indent + 1)}" for key, item in value.items()]
    else:
        entries = [to_lua(item, indent + 1) for item in value]
    if not entries:
        return "{}"
    pad = "  " * (indent + 1)
    return "{\n" + "".join(f"{pad}{entry},\n" for entry in entries) + "  " * indent + "}"


def _max_script_length(site: SiteConf | None) -> int:
    """The number of characters that Slurm accepts for a job's script (max_script_size)."""
    for item in site.items("SchedulerParameters") if site else ():
        name, _, value = item.partition("=")
        if name == "max_script_size" and value.isdigit():
            return int(value)
    return _MAX_SCRIPT_LENGTH


def _saves(config: Config) -> bool:
    """Whether the site has settings by which jobs are saved. Those of a site without a directory
    and a method hold for jobs that name the method signal.
    """
    methods = {config.checkpoint.method, *(pool.checkpoint.method for pool in config.pools)}
    if config.checkpoint.directory is not None or methods - {"none", None}:
        return True
    return config.checkpoint.policy != "none" and config.checkpoint != CheckpointSettings()


def _saving(config: Config) -> dict[str, LuaValue]:
    """The data of the filter about checkpoints: methods, their options, and its messages."""
    options: dict[str, LuaValue] = {
        method: [{"key": key, "values": values} for key, values in options_of(method).items()]
        for method in table().names()
    }
    return {
        "methods": table().names(), "offered": [m for m in table().names() if m != REHEARSED],
        "configured": _saves(config), "options": options, "bare": LIMIT, "one_node": ONE_NODE,
        "without_directory": [] if config.checkpoint.directory else list(SHARED),
        "no_directory": NO_DIRECTORY, "by_sbatch": BY_SBATCH, "on_one_node": ON_ONE_NODE,
        "without_steps": STEPS, "several_nodes": SEVERAL_NODES, "by_mpirun": BY_MPIRUN,
        "uncaught": UNCAUGHT, "catch": CATCH, "no_components": NO_COMPONENTS,
        "relay": _relay_line(), "masks": _SIGNAL_MASKS, **_signals(config),
    }  # fmt: skip


_SIGNAL_MASKS = {
    s.name.removeprefix("SIG"): 1 << (s - 1)
    for s in signal.Signals
    if s <= 31
    and s not in (signal.SIGKILL, signal.SIGSTOP)
    # The head sends these to the script itself, as no shell dies of them.
    and s not in (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
}
"""By signal that a relay can send, its bit in the masks of /proc/PID/status."""


def _relay_line() -> str:
    """The line of ``signal_relay.sh``."""
    lines = _source(RELAY).splitlines()
    return " ".join(line for line in lines if not line.startswith("#"))


def _signals(config: Config) -> dict[str, LuaValue]:
    """The site's signals by which jobs save themselves."""
    settings = config.checkpoint.signal
    signals: dict[str, LuaValue] = {"signal": settings.signal}
    return signals | ({"stop_signal": settings.stop_signal} if settings.stop_signal else {})


def _partitions(config: Config, pools: Sequence[Pool], boot_timeout_s: int) -> list[LuaValue]:
    """On-premises partitions before public ones, each in the order of the configuration."""
    blocked = blocked_clouds(config)
    partitions: list[LuaValue] = []
    for cloud in _ranked(config):
        # A job that lists a blocked cloud's partition could only wait there.
        if cloud.name in blocked:
            continue
        with_nodes = (pool for pool in pools if pool.cloud == cloud.name and pool.nodes)
        cloud_pools = ranked_pools(config, with_nodes)
        if cloud_pools:
            data: list[LuaValue] = [_pool(config, pool) for pool in cloud_pools]
            partition: dict[str, LuaValue] = {
                "name": cloud.partition_name,
                "interactive": config.resume_timeout(cloud) <= boot_timeout_s,
                "public": cloud.location is Location.PUBLIC,
                "pools": data,
            }
            if licenses := config.who_of(cloud).licenses:
                partition["licenses"] = {name.lower(): True for name in licenses}
            if accounts := config.who_of(cloud).no_requeue_on_spot:
                partition["no_requeue_on_spot"] = {name.lower(): True for name in accounts}
            if names := config.who_of(cloud).partitions:
                partition["allowed_partitions"] = dict.fromkeys(names, True)
            if (max_nodes := max_cloud_nodes(config, cloud)) is not None:
                partition["most"] = max_nodes
            if method := _method(config, cloud.name):
                partition["checkpoint"] = method
            partitions.append(partition)
    return partitions


def _order(config: Config) -> dict[str, LuaValue]:
    """The data by which the filter orders the clouds of a job (``policies.launch.pool_order``)."""
    return {
        "path": str(config.state / order_file.FILE),
        "max_age": order_file.MAX_AGE_S,
        "default_run": DEFAULT_RUN_S,
        "markets": {str(market): place for market, place in MARKET_ORDER.items()},
        "spot_not_cheaper": SPOT_NOT_CHEAPER,
        "counts_data": any(cloud.traffic != Traffic() for cloud in config.clouds),
        "data_form": DATA_FORM,
    }


def _method(config: Config, cloud: str) -> str:
    """The method for jobs in that cloud whose comment names no method: that of the first pool that
    has one.
    """
    own_methods = (pool.checkpoint.method for pool in config.pools if pool.cloud == cloud)
    methods = [config.checkpoint.method if method is None else method for method in own_methods]
    return next((method for method in methods if method != "none"), "")


def _pool(config: Config, pool: Pool) -> LuaValue:
    data: dict[str, LuaValue] = {
        "name": pool.name,
        "count": max_pool_nodes(config, pool),
        "nodes": len(pool.nodes),
        "cpus": pool.cpus,
        "memory": pool.real_memory,
        "gres": dict(pool.gres),
        "features": dict.fromkeys(features(pool), True),
    }
    if pool.spot_nodes:
        data |= {"spot": compress(pool.spot_nodes), "steady": pool.steady_nodes}
    return data


def _default_memory(site: SiteConf | None) -> dict[str, LuaValue]:
    """The default memory (MiB). slurm.conf(5) allows no unit here, and 0 means no default."""
    options = {"def_mem_per_cpu": "DefMemPerCPU", "def_mem_per_node": "DefMemPerNode"}
    values = {name: _integer(site, option, 0) for name, option in options.items()}
    return {name: value for name, value in values.items() if value}


def _integer(site: SiteConf | None, option: str, default: int) -> int:
    """A global option's number. The default also for UNLIMITED and for other text than a number."""
    entry = site.option(option) if site else None
    value = confvalues.number(entry.value) if entry is not None else None
    return default if value is None else value


def _quoted(text: str) -> str:
    """A Lua string of printable ASCII. Other bytes of its UTF-8 become decimal escapes."""
    plain = (
        # Always three digits, or a digit that follows would belong to the escape.
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03d}"
        for byte in text.encode("utf-8", "surrogateescape")
    )
    return '"' + "".join(plain) + '"'


def _source(name: str) -> str:
    return resources.files("slurm_elastic.slurm.hooks").joinpath(name).read_text(encoding="utf-8")
