"""The lines for our nodes that a site's topology.conf or topology.yaml lacks (topology/tree).

A node on no switch can run no job: Slurm refuses submissions to its partition, and a job with such
a partition in its list stays pending with BadConstraints (measured on 22.05 and 24.11). So missing
lines are an error before anything is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from slurm_elastic.base.hostlist import HostlistError, compress, expand
from slurm_elastic.config import Config
from slurm_elastic.model.cluster import Pool
from slurm_elastic.slurm.client.siteconf import ConfLine, ConfRecord, SiteConf, read_lines
from slurm_elastic.slurm.conf import topology_yaml

FILE_NAME = "topology.conf"


def is_tree(site: SiteConf) -> bool:
    """Whether the site's slurm.conf has topology/tree."""
    plugin = site.option("TopologyPlugin")
    return plugin is not None and plugin.value.lower().removeprefix("topology/") == "tree"


def switches(lines: Sequence[ConfLine]) -> list[ConfRecord]:
    """The switches of a topology.conf."""
    return [
        ConfRecord(
            names=(line.entries[0].value,),
            location=line.entries[0].location,
            values={entry.key: entry for entry in line.entries[1:]},
        )
        for line in lines
        if line.entries[0].key == "switchname"
    ]


def switches_of(site: SiteConf, version: tuple[int, int]) -> list[ConfRecord]:
    """The switches of the file that this release reads. Empty if the site has no such file."""
    by_yaml = site.directory / topology_yaml.FILE_NAME
    if has_yaml(site, version):
        return topology_yaml.all_switches(by_yaml)
    path = site.directory / FILE_NAME
    return switches(read_lines(path)) if path.is_file() else []


def has_yaml(site: SiteConf, version: tuple[int, int]) -> bool:
    """Whether topology.yaml is used instead of topology.conf and TopologyPlugin."""
    path = site.directory / topology_yaml.FILE_NAME
    return version >= topology_yaml.SINCE and path.is_file()


def problems(
    config: Config, pools: Sequence[Pool], site: SiteConf, version: tuple[int, int]
) -> list[str]:
    """A sentence with the lines that the topology lacks for our nodes, if the site uses a tree."""
    if has_yaml(site, version):
        path = site.directory / topology_yaml.FILE_NAME
        named = site.partition_defaults.get("topology")
        tree = topology_yaml.tree(path, named.value if named else "")
        lines = _as_yaml(_missing(config, pools, tree)) if tree is not None else []
    elif is_tree(site):
        path = site.directory / FILE_NAME
        if not path.exists():
            return [f"{path}: TopologyPlugin is topology/tree, but there is no such file"]
        lines = missing(config, pools, switches(read_lines(path)))
    else:
        return []
    if not lines:
        return []
    head = f"{path}: topology/tree must know the cloud nodes, or their jobs are refused; add:"
    return ["\n".join((head, *(f"    {line}" for line in lines)))]


class TopologySwitch(Struct, frozen=True, kw_only=True):
    """A switch to add, over ``nodes`` or over ``children``. ``replaces``: the line to replace."""

    name: str
    nodes: str = ""
    children: str = ""
    replaces: str = ""


def missing(config: Config, pools: Sequence[Pool], tree: Sequence[ConfRecord]) -> list[str]:
    """The exact lines for topology.conf. Empty if no node of ours is missing."""
    lines = []
    for switch in _missing(config, pools, tree):
        below = f"Nodes={switch.nodes}" if switch.nodes else f"Switches={switch.children}"
        note = f"    # instead of {switch.replaces}" if switch.replaces else ""
        lines.append(f"SwitchName={switch.name} {below}{note}")
    return lines


def _as_yaml(added: Sequence[TopologySwitch]) -> list[str]:
    """The added switches as items of topology.yaml's list of switches."""
    lines = []
    for switch in added:
        below = f"nodes: {switch.nodes}" if switch.nodes else f"children: {switch.children}"
        note = f"    # instead of {switch.replaces}" if switch.replaces else ""
        lines += [f"- switch: {switch.name}{note}", f"  {below}"]
    return lines


def _missing(
    config: Config, pools: Sequence[Pool], tree: Sequence[ConfRecord]
) -> list[TopologySwitch]:
    """Return a switch for each cloud, because no job spans clouds. If the site's switches have one
    top, it and the new switches get a common root. If the site has several islands, each new switch
    becomes another island.
    """
    known_nodes = {node for switch in tree for node in _expand(switch.get("nodes"))}
    # slurmctld does not start with two switches of one name ("has already been defined").
    locations = {switch.names[0]: switch.location for switch in tree}
    added = []
    for cloud in config.clouds:
        nodes = [node for pool in pools if pool.cloud == cloud.name for node in pool.nodes]
        if not set(nodes) <= known_nodes:
            name = f"elastic-{cloud.name}"
            replaces = locations.get(name, "")
            added.append(TopologySwitch(name=name, nodes=compress(nodes), replaces=replaces))
    new_names = [switch.name for switch in added if not switch.replaces]
    return [*added, *_root(tree, new_names)]


def _root(tree: Sequence[ConfRecord], new: Sequence[str]) -> Iterator[TopologySwitch]:
    children = {child for switch in tree for child in _expand(switch.get("switches"))}
    tops = [switch for switch in tree if switch.names[0] not in children]
    if len(tops) != 1 or not new:
        return
    top = tops[0]
    if top.get("switches"):
        value = f"{top.get('switches')},{','.join(new)}"
        yield TopologySwitch(name=top.names[0], children=value, replaces=top.location)
    else:
        yield TopologySwitch(name="elastic-root", children=",".join((top.names[0], *new)))


def _expand(text: str) -> list[str]:
    try:
        return expand(text) if text else []
    # Compare a name that we cannot expand as it stands: slurmctld itself judges the file.
    except HostlistError:
        return text.split(",")
