"""Proves, before anything is changed, that the fragment does not change the site's own parts.

First come the checks that need no process: conflicts and topology. Then Slurm's own parser reads
the files, in a client without network. Then two throw-away slurmctlds run without a network, one
without and one with the fragment, and we compare what they show of the site's own nodes, partitions
and options. Our nodes must have the CPUs and memory of their pools. If the kernel allows no such
namespace, the last step is left out and the report says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, SlurmElasticError, SlurmError
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.cluster import Pool
from slurm_elastic.slurm.client import controller
from slurm_elastic.slurm.client.command import output
from slurm_elastic.slurm.client.siteconf import SiteConf, encoded
from slurm_elastic.slurm.conf import dryrun, fragment, gresconf, topology
from slurm_elastic.slurm.conf.checks import allow_lists, mentions, readings
from slurm_elastic.slurm.conf.dryrun import DryRun
from slurm_elastic.slurm.conf.leaving import NodesAndPartitions
from slurm_elastic.slurm.conf.plan import ConfPlan

VOLATILE = frozenset(
    {
        "State",
        "BootTime",
        "SlurmdStartTime",
        "LastBusyTime",
        "ResumeAfterTime",
        "CPULoad",
        "FreeMem",
        "Reason",
        "Comment",
        "CurrentWatts",
        "AveWatts",
        "NextState",
    }
)
"""Fields of scontrol show node that change by themselves."""
_MAY_CHANGE = frozenset(
    {
        "AuthInfo",
        "BOOT_TIME",
        "SLURM_CONF",
        "SlurmctldPort",
        "StateSaveLocation",
        "SlurmctldPidFile",
        "SlurmctldLogFile",
        "HASH_VAL",
        "NEXT_JOB_ID",
        "MaxNodeCount",
        "GresTypes",
        "PrivateData",
        "ResumeRate",
        "SuspendRate",
        "SlurmctldParameters",
    }
)
"""Options that differ between the two runs although the site's own jobs run the same: places and
counters of the throw-away slurmctld, and options that the fragment sets on purpose.
"""


class Report(Struct, frozen=True, kw_only=True):
    """``full``: a throw-away slurmctld was run. ``lines``: sentences about the proven facts, or
    about the reason why nothing is proven. ``failure``: why slurmctld does not start on the site's
    own files, without our part.
    """

    full: bool
    lines: tuple[str, ...]
    failure: str = ""


def check(plan: ConfPlan, *, wrapper: Sequence[str] | None = None) -> Report:
    """Check a plan. ConfigError if it must not be installed. ``wrapper`` isolates a process."""
    problems = [
        *allow_lists.conflicts(plan.config, plan.site),
        *topology.problems(plan.config, plan.pools, plan.site, plan.version),
    ]
    if problems:
        raise ConfigError(*problems)
    lines = [_parse(plan)]
    isolation = dryrun.isolation() if wrapper is None else wrapper
    if isolation is None:
        return _lesser(lines, "unshare may not make a network namespace here")
    settings, site = plan.config.slurm, plan.site
    # A partition of the site may have our nodes, and slurmctld starts only if it knows them all.
    shared = list(mentions.partitions(site, NodesAndPartitions(nodes=_nodes_of(plan))))
    before = dryrun.run(settings, site, _bare_nodes(plan) if shared else None, isolation)
    if before.failure:
        reason = f"it does not start on slurm.conf as it is: {before.failure}"
        return replace(_lesser(lines, reason), failure=before.failure)
    problems = list(_readings(plan, before))
    if problems:
        raise ConfigError(*problems)
    after = dryrun.run(settings, site, plan.fragment, isolation, gres=plan.gres)
    problems = list(_differences(plan, before, after, joined={place.holder for place in shared}))
    if problems:
        raise ConfigError(*problems)
    own_count = len(site.node_names)
    lines.append(
        f"a throw-away slurmctld reads the site's own nodes ({own_count}) and partitions "
        f"({len(site.partitions)}) the same with and without the fragment"
    )
    return Report(full=True, lines=tuple(lines))


def require_restartable(settings: SlurmSettings, failure: str, *, force: bool) -> None:
    """ConfigError if slurmctld runs and would not start again on the site's own files.

    The running slurmctld still has the files of its last start. After a restart no job of the site
    could start, and our roll-back does not restore files of the site.
    """
    if failure and not force and controller.is_up(settings):
        raise ConfigError(
            f"{settings.conf}: slurmctld runs, but would not start again on the site's own files:"
            f" {failure}; nothing was changed. Mend that first. If only the throw-away slurmctld"
            " of this check cannot start, use --force"
        )


def _nodes_of(plan: ConfPlan) -> frozenset[str]:
    return frozenset(node for pool in plan.pools for node in pool.nodes)


def _bare_nodes(plan: ConfPlan) -> str:
    """Our nodes without their devices, because the options that devices need are only in the
    fragment. Otherwise as in the fragment: values of NodeName=DEFAULT would change their CPUs.
    """
    bare_pools = [replace(pool, gres={}) for pool in plan.pools]
    lines = fragment.node_lines(plan.config, bare_pools, plan.site, plan.version)
    return "".join(f"{line}\n" for line in lines)


def _readings(plan: ConfPlan, before: DryRun) -> Iterator[str]:
    """The values that slurmctld reads in another way than we do."""
    site_nodes = {n: fields for n, fields in before.nodes.items() if n not in _nodes_of(plan)}
    has_yaml = topology.has_yaml(plan.site, plan.version)
    yield from readings.differences(
        plan.site, replace(before, nodes=site_nodes), has_topology_yaml=has_yaml
    )


def _lesser(lines: Sequence[str], reason: str) -> Report:
    return Report(full=False, lines=(*lines, f"lesser check, no throw-away slurmctld: {reason}"))


def _parse(plan: ConfPlan) -> str:
    """Let Slurm's own parser read everything: an unknown key is fatal even to its clients."""
    with tempfile.TemporaryDirectory(prefix="slurm-elastic-check-") as name:
        conf = Path(name) / "slurm.conf"
        (Path(name) / fragment.FILE_NAME).write_bytes(encoded(plan.fragment))
        # Comments are already cut off, so any remaining `#` was escaped in the site's file.
        lines = (f"{line.text}\n".replace("#", "\\#") for line in plan.site.lines)
        text = "".join(lines) + f"include {fragment.FILE_NAME}\n"
        conf.write_bytes(encoded(text))
        settings = replace(plan.config.slurm, conf=str(conf))
        try:
            output((f"{settings.bin_dir}/scontrol", "show", "hostnames", "x"), settings)
        except SlurmError as error:
            raise _refusal(error, conf, plan.site) from error
    return "Slurm's parser reads slurm.conf with the fragment"


def _refusal(error: SlurmError, conf: Path, site: SiteConf) -> SlurmElasticError:
    """Slurm's words about the copy as a mistake in the site's files. The error itself if Slurm's
    command did not run.
    """
    if error.code in (None, 127):
        return error
    # Slurm writes "error:" and "Error", depending on the place.
    lines = [line for line in error.stderr.splitlines() if "rror" in line]
    return ConfigError(*(_relocated(line, conf, site) for line in lines or [error.stderr]))


def _relocated(message: str, conf: Path, site: SiteConf) -> str:
    """Slurm's message about the copy, with the site's file and line in it."""
    if entry := dryrun.unknown_option(message, site):
        return f"{entry.location}: Slurm does not know {entry.name}"
    return dryrun.relocated(message, conf, site)


def _differences(
    plan: ConfPlan, before: DryRun, after: DryRun, *, joined: Set[str]
) -> Iterator[str]:
    """The changes that the fragment would make. ``joined``: the site's own partitions with our
    nodes.
    """
    if after.failure:
        yield f"slurmctld does not start with the fragment: {after.failure}"
        if "Invalid GRES data" in after.failure:
            yield from gresconf.lines_for_all(gresconf.site_lines(plan.site))
        return
    own_partitions = {
        name: record.location for record in plan.site.partitions for name in record.names
    }
    yield from _compare("node", plan.site.node_names, before.nodes, after.nodes)
    yield from _compare(
        "partition",
        own_partitions,
        _without_devices(before.partitions, joined),
        _without_devices(after.partitions, joined),
    )
    for name in sorted(before.config.keys() | after.config.keys()):
        old, new = before.config.get(name), after.config.get(name)
        if old != new and name not in _MAY_CHANGE:
            yield f"option {name} would change from {old} to {new}"
    for pool in plan.pools:
        lacking = [node for node in pool.nodes if node not in after.nodes]
        if lacking:
            yield f"pool {pool.name}: slurmctld does not show node {lacking[0]}"
        yield from _unequal_sizes(pool, after)
    for cloud in plan.config.clouds:
        if cloud.partition_name not in after.partitions:
            yield f"cloud {cloud.name}: slurmctld does not show partition {cloud.partition_name}"
    yield from _unequal_order(plan, before, after)


def _unequal_sizes(pool: Pool, after: DryRun) -> Iterator[str]:
    """The sizes of the pool's nodes that slurmctld reads in another way than the pool says, each
    with the first such node.
    """
    for field, expected in (("CPUTot", pool.cpus), ("RealMemory", pool.real_memory)):
        for node in pool.nodes:
            shown = after.nodes.get(node, {}).get(field, str(expected))
            if shown != str(expected):
                yield (
                    f"pool {pool.name}: {field} of its node {node} would be {shown}, expected"
                    f" {expected}; look for lines about nodes in slurm.conf that change it"
                )
                break


def _unequal_order(plan: ConfPlan, before: DryRun, after: DryRun) -> Iterator[str]:
    """Partitions whose tier or factor differs: Slurm follows the order in a job's list only among
    partitions of equal tier and factor (measured on 22.05).
    """
    default = plan.site.default_partition
    expected = before.partitions.get(default.names[0], {}) if default else {}
    for cloud in plan.config.clouds:
        shown = after.partitions.get(cloud.partition_name, {})
        for field in ("PriorityTier", "PriorityJobFactor"):
            if shown and expected and shown.get(field) != expected.get(field):
                yield (
                    f"cloud {cloud.name}: {field} of its partition would be {shown.get(field)},"
                    f" expected {expected.get(field)} as in the default partition"
                )


def _without_devices(
    partitions: Mapping[str, Mapping[str, str]], joined: Set[str]
) -> dict[str, dict[str, str]]:
    """The partitions, without TRES of ``joined`` ones, because the first run has no devices of
    ours.
    """
    return {
        name: {
            key: value
            for key, value in fields.items()
            if key != "TRES" or f"partition {name}" not in joined
        }
        for name, fields in partitions.items()
    }


def _compare(
    noun: str,
    names: Mapping[str, str],
    before: Mapping[str, Mapping[str, str]],
    after: Mapping[str, Mapping[str, str]],
) -> Iterator[str]:
    """The changes in the site's own nodes or partitions that both runs show. ``names``: their
    places in slurm.conf.
    """
    for name, location in names.items():
        # The site's own cloud nodes may be hidden before and shown after (PrivateData, 22.05).
        if name not in before:
            continue
        old, new = before[name], after.get(name, {})
        for field in sorted((old.keys() | new.keys()) - VOLATILE):
            if old.get(field) != new.get(field):
                yield (
                    f"{location}: the site's own {noun} {name} would change:"
                    f" {field} from {old.get(field)} to {new.get(field)}"
                )
