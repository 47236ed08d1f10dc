"""Compares our reading of slurm.conf with slurmctld's, for each value that we use. Pure.

The throw-away slurmctld runs without some options (``dryrun``: authentication, accounting,
programs, places). These are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set

from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.slurm.client import confvalues, siteconf
from slurm_elastic.slurm.client.siteconf import ConfRecord, Entry, SiteConf
from slurm_elastic.slurm.conf.dryrun import DryRun

Value = str | int | bool | None
Reader = Callable[[str], Value]
_NO_END = 65535  # slurmctld shows an endless time-out as the largest number of 16 bits
_HIDDEN_STATES = ("cloud", "future")


def differences(site: SiteConf, shown: DryRun, *, has_topology_yaml: bool) -> Iterator[str]:
    """A sentence, with the site's file and line, for each value that slurmctld reads otherwise."""
    ignored = {"TopologyPlugin"} if has_topology_yaml else set()
    yield from _options(site, shown.config, ignored)
    yield from _names("node", site.node_names, shown.nodes.keys(), _hidden(site))
    partitions = {name: record for record in site.partitions for name in record.names}
    yield from _names(
        "partition", {n: r.location for n, r in partitions.items()}, shown.partitions.keys(), set()
    )
    for name in sorted(partitions.keys() & shown.partitions.keys()):
        yield from _partition(site, name, partitions[name], shown.partitions[name])


def _sentence(where: str, subject: str, our_value: Value, slurm_value: Value) -> str:
    return (
        f"{where}: slurm-elastic reads {subject} as {_shown(our_value)}, slurmctld as"
        f" {_shown(slurm_value)}; write it so that it cannot be misread (slurm.conf(5))"
    )


def _shown(value: Value) -> str:
    return "none" if value in (None, "") else str(value)


def _options(site: SiteConf, config: Mapping[str, str], ignored: Set[str]) -> Iterator[str]:
    for name, (our_reader, slurm_reader) in _OPTIONS.items():
        entry = site.option(name)
        if entry is None or name not in config or name in ignored:
            continue
        our_value, slurm_value = our_reader(entry.value), slurm_reader(config[name])
        if our_value != slurm_value:
            yield _sentence(entry.location, name, our_value, slurm_value)


def _names(
    kind: str, our_places: Mapping[str, str], slurm_names: Set[str], hidden: Set[str]
) -> Iterator[str]:
    for name in sorted(our_places.keys() - slurm_names - hidden):
        where = our_places[name]
        yield f"{where}: slurm-elastic reads {kind} {name}, which slurmctld does not show"
    for name in sorted(slurm_names - our_places.keys()):
        yield f"slurmctld shows {kind} {name}, which slurm-elastic does not find in slurm.conf"


def _hidden(site: SiteConf) -> Set[str]:
    """Nodes that slurmctld 22.05 does not show while they have no machine."""
    return {
        name
        for record in site.nodes
        for name in record.names
        if record.get("state").lower().startswith(_HIDDEN_STATES)
    }


def _partition(
    site: SiteConf, name: str, record: ConfRecord, shown: Mapping[str, str]
) -> Iterator[str]:
    default = site.default_partition
    pairs: dict[str, tuple[Value, Value]] = {
        "Default": (default is not None and name in default.names, shown.get("Default") == "YES"),
        "PriorityTier": (
            siteconf.priority(record, "prioritytier"),
            confvalues.number(shown.get("PriorityTier", "")),
        ),
        "PriorityJobFactor": (
            siteconf.priority(record, "priorityjobfactor"),
            confvalues.number(shown.get("PriorityJobFactor", "")),
        ),
        "MaxTime": (_minutes(record, "maxtime"), confvalues.minutes(shown.get("MaxTime", ""))),
        "DefaultTime": (
            _minutes(record, "defaulttime"),
            confvalues.minutes(shown.get("DefaultTime", "")),
        ),
    }
    if record.get("suspendtime") and "SuspendTime" in shown:
        endless = confvalues.never_suspends(record.get("suspendtime"), of_partition=True)
        pairs["SuspendTime INFINITE"] = (endless, shown["SuspendTime"] == "INFINITE")
    names = _partition_nodes(site, record)
    if names is not None:
        pairs["Nodes"] = (names, _sorted(shown.get("Nodes", "").replace("(null)", "")))
    for field, (our_value, slurm_value) in pairs.items():
        if our_value != slurm_value:
            where = _where(record.values.get(field.lower()), record.location)
            yield _sentence(where, f"{field} of partition {name}", our_value, slurm_value)


def _where(entry: Entry | None, otherwise: str) -> str:
    return entry.location if entry else otherwise


def _minutes(record: ConfRecord, key: str) -> int | None:
    return confvalues.minutes(record.get(key))


def _partition_nodes(site: SiteConf, record: ConfRecord) -> str | None:
    """The partition's nodes as one text; None if a node set by feature has to be resolved."""
    sets = {name: nodeset for nodeset in site.nodesets for name in nodeset.names}
    names: set[str] = set()
    for item in _expanded(record.get("nodes")):
        nodeset = sets.get(item)
        if item.upper() == "ALL":
            names |= site.node_names.keys()
        elif nodeset is None:
            names.add(item)
        elif nodeset.get("feature"):
            return None
        else:
            names.update(_expanded(nodeset.get("nodes")))
    return ",".join(sorted(names))


def _sorted(hostlist: str) -> str:
    return ",".join(sorted(_expanded(hostlist)))


def _expanded(hostlist: str) -> list[str]:
    try:
        return expand(hostlist) if hostlist else []
    except HostlistError:
        # A value that is no hostlist is compared as a plain list.
        return hostlist.split(",")


def _time_out(text: str) -> int | None:
    """``300``, ``INFINITE`` or slurmctld's ``300 sec`` in seconds."""
    text = text.removesuffix(" sec")
    return _NO_END if confvalues.is_endless(text) else confvalues.number(text)


def _leaves_alone(text: str) -> bool:
    return confvalues.never_suspends(text)


def _listed(name: str) -> Reader:
    return lambda text: ",".join(confvalues.items(name, text))


def _is_tree(text: str) -> bool:
    return text.removeprefix("topology/") == "tree"


_OPTIONS: Mapping[str, tuple[Reader, Reader]] = {
    "ClusterName": (str.lower, str.lower),
    "SuspendTime": (_leaves_alone, _leaves_alone),
    "SlurmdTimeout": (_time_out, _time_out),
    "SlurmctldTimeout": (_time_out, _time_out),
    "SuspendTimeout": (_time_out, _time_out),
    "ResumeTimeout": (_time_out, _time_out),
    "PrologEpilogTimeout": (_time_out, _time_out),
    "MaxNodeCount": (confvalues.number, confvalues.number),
    "JobRequeue": (confvalues.number, confvalues.number),
    "DefMemPerCPU": (confvalues.number, confvalues.number),
    "DefMemPerNode": (confvalues.number, confvalues.number),
    "SlurmdPort": (confvalues.number, confvalues.number),
    "PriorityWeightPartition": (confvalues.number, confvalues.number),
    "SlurmctldParameters": (_listed("SlurmctldParameters"), _listed("SlurmctldParameters")),
    "GresTypes": (_listed("GresTypes"), _listed("GresTypes")),
    "TopologyPlugin": (_is_tree, _is_tree),
    "SuspendExcNodes": (_listed("SuspendExcNodes"), _listed("SuspendExcNodes")),
    "SuspendExcParts": (_listed("SuspendExcParts"), _listed("SuspendExcParts")),
    "SuspendExcStates": (_listed("SuspendExcStates"), _listed("SuspendExcStates")),
}
"""How to read each option in the site's text, and in ``scontrol show config``."""
