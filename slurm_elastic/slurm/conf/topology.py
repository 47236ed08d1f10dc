"""The lines that topology.conf of a site with topology/tree lacks for our nodes. Pure.

A node on no switch can run no job there: submissions to its partition are refused, and a job with
a list of partitions that has such a one stays pending with BadConstraints (measured on 22.05 and
24.11), so this is an error before anything is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.base.hostlist import HostlistError, compress, expand
from slurm_elastic.config import Config
from slurm_elastic.model.cluster import Pool
from slurm_elastic.slurm.client.siteconf import Line, Record, SiteConf, read_lines

FILE_NAME = "topology.conf"


def is_tree(site: SiteConf) -> bool:
    """Whether the site's slurm.conf says topology/tree."""
    plugin = site.option("TopologyPlugin")
    return plugin is not None and plugin.value.lower().removeprefix("topology/") == "tree"


def switches(lines: Sequence[Line]) -> list[Record]:
    """The switches of a topology.conf."""
    return [
        Record(
            names=(line.entries[0].value,),
            where=line.entries[0].where,
            values={entry.key: entry for entry in line.entries[1:]},
        )
        for line in lines
        if line.entries[0].key == "switchname"
    ]


def switches_of(site: SiteConf) -> list[Record]:
    """The switches of the site's topology.conf; none where it has no such file."""
    path = site.directory / FILE_NAME
    return switches(read_lines(path)) if path.is_file() else []


def missing(config: Config, pools: Sequence[Pool], tree: Sequence[Record]) -> list[str]:
    """Sentences with the exact lines for topology.conf; empty where no node of ours is missing.

    A switch for each cloud, as no job spans clouds. Under the site's root where it has one; beside
    its islands where it has several, which stay apart as they were.
    """
    known = {node for switch in tree for node in _expand(switch.get("nodes"))}
    lines: list[str] = []
    added: list[str] = []
    for cloud in config.clouds:
        nodes = [node for pool in pools if pool.cloud == cloud.name for node in pool.nodes]
        if set(nodes) <= known:
            continue
        name = f"elastic-{cloud.name}"
        lines.append(f"SwitchName={name} Nodes={compress(nodes)}")
        added.append(name)
    return lines + list(_root(tree, added)) if lines else []


def _root(tree: Sequence[Record], added: Sequence[str]) -> Iterator[str]:
    children = {child for switch in tree for child in _expand(switch.get("switches"))}
    tops = [switch for switch in tree if switch.names[0] not in children]
    new = [name for name in added if name not in children]
    if len(tops) != 1 or not new:
        return
    top = tops[0]
    if top.get("switches"):
        value = f"{top.get('switches')},{','.join(new)}"
        yield f"SwitchName={top.names[0]} Switches={value}    # instead of {top.where}"
    else:
        yield f"SwitchName=elastic-root Switches={','.join((top.names[0], *new))}"


def _expand(text: str) -> list[str]:
    try:
        return expand(text) if text else []
    except HostlistError:
        return text.split(",")
