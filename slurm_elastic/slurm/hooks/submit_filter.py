"""The job submit filter: ``slurm_elastic.lua`` with its parts (``job_*.lua``), and for a site that
has none ``job_submit.lua``.

The code is Lua, for Slurm's job_submit/lua plugin, and lies beside this module; here it gets its
data: our partitions in rank order with what their nodes have. Who may use a partition, its state
and its limits are not in the data: the filter asks Slurm for those at each submission.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config, blocked_clouds
from slurm_elastic.config.checkpoint import LIMIT, REHEARSED
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.method_kinds import options_of, table
from slurm_elastic.config.pool_rules import cheapest
from slurm_elastic.config.validate_checkpoint import NO_DIRECTORY, SHARED
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.policies.checkpoint.unsavable import BY_SBATCH, ON_ONE_NODE, ONE_NODE, STEPS
from slurm_elastic.policies.launch.verdict import features, most_nodes
from slurm_elastic.slurm.client import confvalues, siteconf
from slurm_elastic.slurm.client.siteconf import SiteConf
from slurm_elastic.slurm.hooks.launcher import launchers

FILTER = "slurm_elastic.lua"
PLUGIN_SCRIPT = "job_submit.lua"
_DATA_LINE = "local SITE = {}\n"
_PARTS = ("job_time.lua", "job_never.lua", "job_saving.lua")
LONGEST_LIST = 1024
"""Characters of a job's list of partitions: Slurm refuses a job with a longer one."""
_LONGEST_SCRIPT = 4 * 1024 * 1024
_CALL = re.compile(r"(?<!function )\bslurm_elastic_(submit|wrap)\s*\(")
_LOST = re.compile(r"(?<!return )(?<!function )\bslurm_elastic_submit\s*\(")
_COMMENT = re.compile(r"--\[\[.*?\]\]|--[^\n]*", re.DOTALL)

LuaValue = str | int | float | bool | Mapping[str, "LuaValue"] | Sequence["LuaValue"]


def render(config: Config, pools: Sequence[Pool], site: SiteConf | None = None) -> dict[str, str]:
    """Name -> text of the files that go beside slurm.conf.

    ``job_submit.lua`` is for sites without one; a site's own is never replaced, it loads the other
    file and calls ``slurm_elastic_submit(job_desc, part_list, submit_uid)``. Clouds that may not be
    used yet are left out. From ``site`` those options are read that Slurm hides from the filter:
    DefMemPerCPU and DefMemPerNode, which jobs get that ask for no memory, JobRequeue, which jobs
    get that say nothing of it, and what ``client_patience`` needs, and whether users are held to
    their accounts (``accounts_enforced``).
    """
    data: dict[str, LuaValue] = {"partitions": _partitions(config, pools, client_patience(site))}
    data["open_accounts"] = site is not None and not accounts_enforced(site)
    data["held_accounts"] = site is not None and accounts_enforced(site)
    data["requeue"] = _integer(site, "JobRequeue", 1) != 0
    data["saving"] = _saving(config)
    data["longest_list"] = LONGEST_LIST
    data["longest_script"] = _longest_script(site)
    data |= _default_memory(site)
    if config.checkpoint.directory is not None:
        data["launchers"] = launchers(config.checkpoint.directory)
    return {
        FILTER: _put(_whole_source(), _DATA_LINE, f"local SITE = {to_lua(data)}\n"),
        PLUGIN_SCRIPT: _source(PLUGIN_SCRIPT),
    }


def loses_refusals(script: str) -> bool:
    """Whether a job_submit.lua calls the filter and does not return its answer."""
    code = _COMMENT.sub("", script)
    return "slurm_elastic_wrap" not in code and _LOST.search(code) is not None


def final_return(script: str) -> int | None:
    """The line of the ``return`` that ends the script itself. Lua takes no line after it."""
    code = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), script)
    lines = [(n, line.strip()) for n, line in enumerate(code.splitlines(), 1) if line.strip()]
    # The `return` of a function has an `end` after it.
    return lines[-1][0] if lines and re.match(r"return\b", lines[-1][1]) else None


def ranked_partitions(config: Config) -> list[str]:
    """The partitions that may be listed, on-premises before public, as the filter ranks them."""
    blocked = blocked_clouds(config)
    return [cloud.partition_name for cloud in _ranked(config) if cloud.name not in blocked]


def _ranked(config: Config) -> list[CloudSettings]:
    return sorted(config.clouds, key=lambda cloud: cloud.location is not Location.ON_PREMISES)


def _whole_source() -> str:
    """The filter with its parts."""
    code = _source(FILTER)
    for part in _PARTS:
        code = _put(code, f"-- Here comes {part}.\n", _source(part))
    return code


def _put(code: str, line: str, text: str) -> str:
    if code.count(line) != 1:
        raise AssertionError(f"{FILTER} lacks the line {line!r}")
    return code.replace(line, text)


def trouble(conf: str | Path) -> str:
    """Why no job is given our partitions by itself: slurmctld does not call the filter, as far as
    slurm.conf and the site's job_submit.lua tell. Empty where it does.
    """
    try:
        plugins = siteconf.read(conf).items("JobSubmitPlugins")
        script = (Path(conf).parent / PLUGIN_SCRIPT).read_text(errors="replace")
    except (ConfigError, FileNotFoundError) as error:
        return f"the submit filter is not installed ({error})"
    except OSError:
        return ""  # nobody knows
    if "lua" not in plugins:
        return "slurm.conf's JobSubmitPlugins has no lua, so the submit filter is not called"
    if not calls_filter(script):
        return f"the site's {PLUGIN_SCRIPT} does not call slurm_elastic_wrap"
    return ""


def calls_filter(script: str) -> bool:
    """Whether a job_submit.lua calls the filter, as far as its text shows."""
    return _CALL.search(_COMMENT.sub("", script)) is not None


ENFORCING = frozenset({"all", "associations", "limits", "qos", "safe", "wckeys"})
"""The words of AccountingStorageEnforce that hold users to their accounts (slurm.conf(5))."""


def accounts_enforced(site: SiteConf) -> bool:
    """Whether Slurm takes only jobs whose users belong to the account that they name."""
    return bool({word.lower() for word in site.items("AccountingStorageEnforce")} & ENFORCING)


def client_patience(site: SiteConf | None) -> int:
    """Seconds that srun and salloc wait for the nodes of their job to boot before they give up.

    They know the cluster's timeouts only, not those of a partition (22.05 to 26.05: src/srun and
    src/salloc, _wait_nodes_ready): five times the sum; 30 and 60 s by default.
    """
    values = (_integer(site, "SuspendTimeout", 30), _integer(site, "ResumeTimeout", 60))
    return 5 * sum(values)


def to_lua(value: LuaValue, indent: int = 0) -> str:
    """The value as a Lua expression (5.1 and later); tables with one line for each entry."""
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


def _longest_script(site: SiteConf | None) -> int:
    """Characters of a job's script that Slurm takes (max_script_size)."""
    for item in site.items("SchedulerParameters") if site else ():
        name, _, value = item.partition("=")
        if name == "max_script_size" and value.isdigit():
            return int(value)
    return _LONGEST_SCRIPT


def _saves(config: Config) -> bool:
    """Whether the site lets jobs be saved at all, by any of its settings."""
    methods = {config.checkpoint.method, *(pool.checkpoint.method for pool in config.pools)}
    return config.checkpoint.directory is not None or bool(methods - {"none", None})


def _saving(config: Config) -> dict[str, LuaValue]:
    """The words in which a job says how it is saved, and ours where it is not."""
    options: dict[str, LuaValue] = {
        method: [{"key": key, "values": values} for key, values in options_of(method).items()]
        for method in table().names()
    }
    return {
        "methods": table().names(), "offered": [m for m in table().names() if m != REHEARSED],
        "configured": _saves(config), "options": options, "bare": LIMIT, "one_node": ONE_NODE,
        "without_directory": [] if config.checkpoint.directory else list(SHARED),
        "no_directory": NO_DIRECTORY, "by_sbatch": BY_SBATCH, "on_one_node": ON_ONE_NODE,
        "without_steps": STEPS,
    }  # fmt: skip


def _partitions(config: Config, pools: Sequence[Pool], patience: int) -> list[LuaValue]:
    """On-premises before public, then in the order of the configuration."""
    blocked = blocked_clouds(config)
    partitions: list[LuaValue] = []
    for cloud in _ranked(config):
        # A job that is listed there could only wait.
        if cloud.name in blocked:
            continue
        own = [pool for pool in pools if pool.cloud == cloud.name and pool.nodes]
        if own:
            data: list[LuaValue] = [_pool(config, pool) for pool in own]
            partition: dict[str, LuaValue] = {
                "name": cloud.partition_name,
                "interactive": config.resume_timeout(cloud) <= patience,
                "public": cloud.location is Location.PUBLIC,
                "spot": any(Market.SPOT in pool.markets for pool in own),
                "pools": data,
            }
            if licenses := config.who_of(cloud).licenses:
                partition["licenses"] = {name.lower(): True for name in licenses}
            if (most := most_of_cloud(config, cloud)) is not None:
                partition["most"] = most
            if method := _method(config, cloud.name):
                partition["checkpoint"] = method
            partitions.append(partition)
    return partitions


def _method(config: Config, cloud: str) -> str:
    """How jobs are saved that run there and say nothing themselves: by the first pool that does."""
    own = (pool.checkpoint.method for pool in config.pools if pool.cloud == cloud)
    methods = [config.checkpoint.method if method is None else method for method in own]
    return next((method for method in methods if method != "none"), "")


def _pool(config: Config, pool: Pool) -> LuaValue:
    return {
        "count": most_of(config, pool),
        "cpus": pool.cpus,
        "memory": pool.real_memory,
        "gres": dict(pool.gres),
        "features": dict.fromkeys(features(pool), True),
    }


def most_of(config: Config, pool: Pool) -> int:
    """Nodes of the pool that may ever be up together under the limits."""
    cloud = config.cloud(pool.cloud)
    caps = (config.limits.dollars_per_hour, cloud.limits.dollars_per_hour)
    return most_nodes(pool, cheapest(cloud, pool), caps)


def most_of_cloud(config: Config, cloud: CloudSettings) -> int | None:
    """Nodes of the cloud that may ever be up together, where its limits or the cluster's say."""
    limits = (config.limits.nodes, cloud.limits.nodes)
    return min((limit for limit in limits if limit is not None), default=None)


def _default_memory(site: SiteConf | None) -> dict[str, LuaValue]:
    """MiB; slurm.conf(5) knows no unit here, and 0 is none."""
    options = {"def_mem_per_cpu": "DefMemPerCPU", "def_mem_per_node": "DefMemPerNode"}
    found = {name: _integer(site, option, 0) for name, option in options.items()}
    return {name: value for name, value in found.items() if value}


def _integer(site: SiteConf | None, option: str, default: int) -> int:
    """A global option's number; the default also for UNLIMITED and what is no number."""
    entry = site.option(option) if site else None
    value = confvalues.number(entry.value) if entry is not None else None
    return default if value is None else value


def _quoted(text: str) -> str:
    """A Lua string of printable ASCII; all else as decimal escapes of its UTF-8 bytes."""
    plain = (
        # Three digits always: a digit that follows would be read as part of the escape.
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03d}"
        for byte in text.encode("utf-8", "surrogateescape")
    )
    return '"' + "".join(plain) + '"'


def _source(name: str) -> str:
    return resources.files("slurm_elastic.slurm.hooks").joinpath(name).read_text(encoding="utf-8")
