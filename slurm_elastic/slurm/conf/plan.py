"""The plan of ``conf install`` for this host: every file with its content. It writes nothing."""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, blocked_clouds, domain_pools
from slurm_elastic.model.cluster import Pool
from slurm_elastic.policies.launch.verdict import features
from slurm_elastic.policies.nodes.pings import is_pinged
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.release import release_of
from slurm_elastic.slurm.client.siteconf import SiteConf, encoded, read
from slurm_elastic.slurm.conf import (
    allowed_partitions,
    authentication,
    fragment,
    gresconf,
    pair,
    submissions,
)
from slurm_elastic.slurm.conf.checks import (
    account_tree,
    allow_lists,
    default_memory,
    head_names,
    job_order,
    mentions,
    node_names,
    slurmd_files,
    tree_width,
    untyped_gres,
    users_socket,
)
from slurm_elastic.slurm.conf.checks.plugins import has_plugin
from slurm_elastic.slurm.conf.leaving import NodesAndPartitions
from slurm_elastic.slurm.conf.our_lines import has_include, with_include, without_include
from slurm_elastic.slurm.hooks import submit_filter

PROGRAMS: Mapping[str, str] = {
    "slurm-elastic-resume": "power.py",
    "slurm-elastic-suspend": "power.py",
    "slurm-elastic-resume-fail": "power.py",
    "slurm-elastic-prolog": "slurm-elastic-prolog",
    "slurm-elastic-epilog": "slurm-elastic-epilog",
    "slurm-elastic-wait": "slurm-elastic-wait",
}
"""The source in the package by the name in ``programs_dir``."""

_OWN_LUA = "-- Made by `slurm-elastic conf install`"
_COPY_MARGIN_S = 60.0
"""Seconds for which prologs and epilogs wait longer than the daemon may copy."""
_ANY_INCLUDE = re.compile(
    rb"^[ \t]*include[ \t].*" + re.escape(fragment.FILE_NAME.encode()), re.I | re.M
)


EDITED = (
    "slurm.conf, or a file beside it, was edited during the check; nothing was changed; repeat the"
    " command"
)


class PlannedFile(Struct, frozen=True, kw_only=True):
    """A file as it must become. With ``mode`` None it keeps its mode and owner."""

    path: Path
    content: bytes
    mode: int | None

    def current(self) -> bytes | None:
        """The content of the file now. None if there is no file. ConfigError if unreadable."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read: {error.strerror}") from error

    def differs(self) -> bool:
        """Whether content or mode are not as planned. If ``mode`` is set, a link differs."""
        if self.current() != self.content:
            return True
        return self.mode is not None and self.path.lstat().st_mode != stat.S_IFREG | self.mode


class ConfPlan(Struct, frozen=True, kw_only=True):
    """``files`` in order, slurm.conf last. ``manual``: lines that the admin must add."""

    config: Config
    pools: tuple[Pool, ...]
    site: SiteConf
    version: tuple[int, int]
    fragment: str
    gres: str
    files: tuple[PlannedFile, ...]
    notices: tuple[str, ...]
    manual: tuple[str, ...]

    def changes(self) -> tuple[PlannedFile, ...]:
        """The files not yet as planned."""
        return tuple(file for file in self.files if file.differs())


def make(config: Config, *, version: tuple[int, int] | None = None) -> ConfPlan:
    """Read the site and make the plan. Raises ConfigError with every conflict."""
    version = version or release_of(config.slurm)
    site = read(config.slurm.conf, ignore=fragment.FILE_NAME, release=lambda: version)
    pools = pools_of(config)
    lua = has_plugin(config.slurm, site, "job_submit_lua")
    text = fragment.render(config, pools, site, version, lua=lua)
    gres = gresconf.render(config, pools, site)
    denies_below = account_tree.is_hierarchical(version)
    filters = submit_filter.render(config, pools, site, denies_below=denies_below)
    return ConfPlan(
        config=config,
        pools=pools,
        site=site,
        version=version,
        fragment=text,
        gres=gres,
        files=(
            *_programs(config, site, version),
            *(_lua_files(site, filters) if lua else ()),
            # Readable by all, because users' commands read it, too.
            PlannedFile(
                path=site.directory / fragment.FILE_NAME, content=encoded(text), mode=0o644
            ),
            *_gres_files(site, gres),
            # Last, because its include line needs the other files to be there.
            _slurm_conf(config),
        ),
        notices=tuple(_notices(config, pools, site, version)),
        manual=tuple(_manual_lua(site) if lua else _manual_partitions(config, site)),
    )


def refuse_edited(planned: ConfPlan) -> None:
    """ConfigError if slurm.conf, or a file that it includes, was edited since the plan was made.

    The checks take up to minutes, and the planned slurm.conf would overwrite the edit.
    """
    try:
        current = make(planned.config, version=planned.version)
    except ConfigError as error:
        raise ConfigError(EDITED, *error.problems) from error
    if (current.site, current.files) != (planned.site, planned.files):
        raise ConfigError(EDITED)


def pools_of(config: Config) -> tuple[Pool, ...]:
    """The pools with the features that the fragment gives their nodes."""
    pools = domain_pools(config, expand)
    return tuple(replace(pool, features=features(pool)) for pool in pools)


_SITE_PROGRAMS = {"site_prolog": "PrologSlurmctld", "site_epilog": "EpilogSlurmctld"}


def settings_text(config: Config, site: SiteConf, version: tuple[int, int]) -> str:
    """The content of ``settings`` beside the programs. A value ends with its line."""
    # On 22.05 the last PrologSlurmctld replaces the site's own, so our program calls the site's.
    # Since 23.11 several lines add up, and Slurm calls both.
    chained = version < (23, 11)
    prolog = _value(site, "PrologSlurmctld") if chained else ""
    epilog = _value(site, "EpilogSlurmctld") if chained and fragment.has_epilog(config) else ""
    values = {
        "state_dir": config.state_dir,
        "partitions": " ".join(cloud.partition_name for cloud in config.clouds),
        "site_prolog": prolog,
        "site_epilog": epilog,
        **({"slurm_conf": config.slurm.conf} if prolog or epilog else {}),
        "prolog_timeout": f"{_prolog_timeout(config, site):.0f}",
        **_whole_timeout(site),
        **_copying(config, site),
        # A whole path, because slurmctld starts its programs without PATH (measured).
        "python": "/usr/bin/python3",
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def outdated_site_programs(planned: ConfPlan) -> Iterator[str]:
    """A sentence for each of the site's own programs that ours still calls, although slurm.conf
    names another one since, or none. Slurm does not tell: it uses the last line, which is ours.
    """
    (settings,) = (file for file in planned.files if file.path.name == "settings")
    installed, now = (_values(content) for content in (settings.current(), settings.content))
    for key, option in _SITE_PROGRAMS.items():
        before, after = installed.get(key, ""), now.get(key, "")
        if before and before != after:
            yield (
                f"each job still runs {before} as {option} of the site; slurm.conf has"
                f" {after or 'none'}"
            )


def _values(settings: bytes | None) -> dict[str, str]:
    lines = (settings or b"").decode(errors="replace").splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def _prolog_timeout(config: Config, site: SiteConf) -> float:
    """How long (s) a prolog waits at most: as long as the slowest cloud needs, but less than
    PrologEpilogTimeout, after which slurmctld kills the prolog.
    """
    return _within(config.longest_resume_timeout, site)


def _copying(config: Config, site: SiteConf) -> dict[str, str]:
    """For which partitions, and how long (s), a prolog and an epilog wait for copies of files."""
    partitions = " ".join(cloud.partition_name for cloud in fragment.copying_clouds(config))
    if not partitions:
        return {}
    settings = config.copy
    return {
        "copy_partitions": partitions,
        "copy_out_timeout": f"{_within(settings.out_within + _COPY_MARGIN_S, site):.0f}",
        "copy_back_timeout": f"{_within(settings.back_within + _COPY_MARGIN_S, site):.0f}",
    }


def _whole_timeout(site: SiteConf) -> dict[str, str]:
    """How long (s) the site's own program, boot and copy last together, if the site has a
    PrologEpilogTimeout.
    """
    whole = _within(math.inf, site)
    return {} if whole == math.inf else {"whole_timeout": f"{whole:.0f}"}


def _within(seconds: float, site: SiteConf) -> float:
    slurm_timeout = confvalues.number(_value(site, "PrologEpilogTimeout"))
    return seconds if slurm_timeout is None else min(seconds, max(slurm_timeout - 5, 1))


def _value(site: SiteConf, name: str) -> str:
    entry = site.option(name)
    return entry.value if entry else ""


def _programs(config: Config, site: SiteConf, version: tuple[int, int]) -> Iterator[PlannedFile]:
    base = Path(config.slurm.programs_dir)
    text = settings_text(config, site, version)
    yield PlannedFile(path=base / "settings", content=encoded(text), mode=0o644)
    sources = resources.files("slurm_elastic") / "machine" / "programs"
    for name, source in PROGRAMS.items():
        yield PlannedFile(path=base / name, content=(sources / source).read_bytes(), mode=0o755)


def _lua_files(site: SiteConf, filters: Mapping[str, str]) -> Iterator[PlannedFile]:
    foreign = foreign_lua(site.directory)
    for name, text in filters.items():
        if name != submit_filter.PLUGIN_SCRIPT or foreign is None:
            yield PlannedFile(path=site.directory / name, content=encoded(text), mode=0o644)


def foreign_lua(directory: Path) -> str | None:
    """The site's own job_submit.lua beside slurm.conf. None if there is none, or ours."""
    path = directory / submit_filter.PLUGIN_SCRIPT
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    return None if text.startswith(_OWN_LUA) else text


def is_installed(config: Config) -> bool:
    """Whether slurm.conf includes our part, by our line or the site's own. True if it is
    unreadable.
    """
    try:
        return _ANY_INCLUDE.search(Path(config.slurm.conf).read_bytes()) is not None
    except OSError:
        return True


def _slurm_conf(config: Config) -> PlannedFile:
    path = Path(config.slurm.conf)
    return PlannedFile(path=path, content=with_include(bytes_of(path)), mode=None)


def bytes_of(path: Path) -> bytes:
    """The content of a file that must be there. ConfigError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _gres_files(site: SiteConf, gres: str) -> Iterator[PlannedFile]:
    """Our lines, and gres.conf with an include of them: the site's own, or a new one."""
    path = gresconf.path_of(site)
    current = PlannedFile(path=path, content=b"", mode=None).current()
    if not gres and not has_include(current or b"", gresconf.FILE_NAME):
        return
    yield PlannedFile(path=site.directory / gresconf.FILE_NAME, content=encoded(gres), mode=0o644)
    other_lines = without_include(current or b"", gresconf.FILE_NAME)
    content = with_include(current or b"", gresconf.FILE_NAME)
    yield PlannedFile(path=path, content=content, mode=None if other_lines else 0o644)


def _notices(
    config: Config, pools: Sequence[Pool], site: SiteConf, version: tuple[int, int]
) -> Iterator[str]:
    # First, because jobs that ran before may be refused after the install.
    yield from allow_lists.notices(config)
    yield from slurmd_files.notices(config, pools, site)
    epilog = site.option("Epilog")
    if fragment.wipes(config) and epilog is not None and not epilog.value.startswith("/"):
        yield (
            f"{epilog.location}: Epilog={epilog.value} is no absolute path, so join.wipe does"
            " nothing on machines: give its path, and put it into the image"
        )
    yield from authentication.notices(config, site)
    for reason in blocked_clouds(config).values():
        yield f"{reason}; its partition is INACTIVE until then"
    yield from _gres_notices(config, pools, site)
    yield from untyped_gres.notices(config, site)
    yield from users_socket.notices(config)
    yield from head_names.notices(config)
    yield from submissions.notices(config, site)
    yield from submissions.spot_notices(config)
    yield from account_tree.notices(config, site, version)
    if "enable_configless" not in site.items("SlurmctldParameters"):
        yield (
            f"hosts that have a slurm.conf of their own (not shared, not configless): copy"
            f" {fragment.FILE_NAME} there first, then slurm.conf; without it Slurm's commands fail"
        )
    yield from _linked(site)
    yield from pair.notices(config, site)
    yield from allowed_partitions.notices(config, site)
    yield from job_order.notices(config, site)
    yield from default_memory.notices(config, site)
    yield from node_names.notices(site)
    yield from tree_width.notices(config, pools, site, version)
    yield from shared_partitions(pools, site)
    yield from _suspend_exceptions(config, pools, site)
    timeout = site.option("SlurmdTimeout")
    # slurmctld takes SlurmdTimeout=INFINITE for 65535 s.
    if timeout and not is_pinged(confvalues.number(timeout.value) or 0):
        yield (
            f"{timeout.location}: SlurmdTimeout is {timeout.value}: slurmctld finds out late or"
            " never that a node is silent, so the daemon relies on the clouds' lists alone"
        )
    if "cloud_dns" in site.items("SlurmctldParameters"):
        yield (
            "SlurmctldParameters has cloud_dns: slurmctld gives commands no addresses of cloud"
            " nodes. srun finds these nodes only if your DNS has their names; else take cloud_dns"
            " out"
        )
    if "idle_on_node_suspend" in site.items("SlurmctldParameters"):
        yield (
            "SlurmctldParameters has idle_on_node_suspend: Slurm then ends a drain when it suspends"
            " a node, even a drain that you set"
        )


def _linked(site: SiteConf) -> Iterator[str]:
    """A sentence about a slurm.conf behind a link, whose new include other hosts read, too."""
    target = Path(site.path).resolve()
    # Slurm looks for an include beside the path that it was given, even if that is a link (22.05
    # and 25.11, measured). A link to the whole directory shows other hosts our files, too.
    if target.parent != site.directory.resolve():
        yield (
            f"{site.path} is a link to {target}: on each host Slurm looks for {fragment.FILE_NAME}"
            " beside the host's own link. Put it there, or a link to it, before the install;"
            " without it Slurm's commands and daemons fail on that host"
        )


def shared_partitions(pools: Sequence[Pool], site: SiteConf) -> Iterator[str]:
    """Sentences about the site's own partitions and node sets that have our nodes."""
    nodes = frozenset(node for pool in pools for node in pool.nodes)
    for place in mentions.partitions(site, NodesAndPartitions(nodes=nodes)):
        yield (
            f"{place.location}: {place.holder} has cloud nodes ({place.listed}): its jobs get them"
            " whatever `allow` and `max_time` of their cloud say, and `conf uninstall` is refused"
            " while it has them"
        )


def _suspend_exceptions(config: Config, pools: Sequence[Pool], site: SiteConf) -> Iterator[str]:
    """Sentences about the options by which Slurm keeps our nodes powered up."""
    things = NodesAndPartitions(
        nodes=frozenset(node for pool in pools for node in pool.nodes),
        partitions=frozenset(cloud.partition_name for cloud in config.clouds),
    )
    for place in mentions.suspend_exceptions(site, things):
        yield (
            f"{place.location}: {place.holder} has {place.listed}: Slurm does not power down these"
            " nodes, so their machines cost money until a person ends them; take them out"
        )
    yield from mentions.kept_states(site)


def _gres_notices(config: Config, pools: Sequence[Pool], site: SiteConf) -> Iterator[str]:
    """Sentences about pools whose devices the site names, or that are not in Slurm's lines."""
    named_nodes = gresconf.named_nodes(gresconf.site_lines(site))
    for pool, settings in zip(pools, config.pools, strict=True):
        if pool.gres and named_nodes & set(pool.nodes):
            path = gresconf.path_of(site)
            yield f"pool {pool.name}: {path} names its nodes, and says what devices they have"
        shapes = config.cloud(pool.cloud).shapes
        types = [shapes[name].gres for name in settings.type_names if name in shapes]
        if not pool.gres and types and all(types):
            listed = ", ".join(
                f'"{name}": {count}' for name, count in gresconf.least(types).items()
            )
            yield (
                f"pool {pool.name} has no gres, but each of its types has: to let jobs use them,"
                f" set gres: {{{listed}}}"
            )


def _manual_lua(site: SiteConf) -> Iterator[str]:
    """Where the two lines go in a site's own job_submit.lua."""
    text = foreign_lua(site.directory)
    if text is not None:
        yield from submissions.manual_lua(site, text)


def _manual_partitions(config: Config, site: SiteConf) -> Iterator[str]:
    """The partitions that users have to name if Slurm has no Lua."""
    # If the site has no default partition, jobs that name none can still use the clouds.
    names = site.default_partition.names[:1] if site.default_partition else ()
    clouds = [
        cloud.partition_name
        for cloud in config.clouds
        if submit_filter.is_open_to(config, cloud, "".join(names), is_named=False, is_default=True)
    ]
    if not clouds:
        return
    listed = ",".join([*names, *clouds])
    yield "this Slurm has no job_submit/lua, so only jobs that name our partitions burst:"
    yield f"    sbatch --partition={listed} SCRIPT"
    # sbatch(1): variables override the #SBATCH lines of a script (measured on 22.05).
    yield (
        "tell your users; do not set SBATCH_PARTITION for all of them: it also overrides the"
        " #SBATCH --partition of scripts that need other nodes"
    )
