"""topology.yaml (Slurm 25.05 and later), which replaces topology.conf and TopologyPlugin.

Each topology has a name and a kind. Cloud partitions use the topology of PartitionName=DEFAULT,
otherwise the cluster's default. Only a tree must know every node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.slurm.client.siteconf import ConfRecord, Entry

FILE_NAME = "topology.yaml"
SINCE = (25, 5)
_KEYS = {"nodes": "nodes", "children": "switches"}
"""A switch's keys here, and their names in topology.conf."""


def tree(path: Path, name: str = "") -> list[ConfRecord] | None:
    """The switches of that topology, or of the default. None if it is no tree."""
    for topology in _topologies(path):
        is_chosen = _text(topology, "topology") == name if name else _is_default(topology)
        if is_chosen:
            return list(_switches(path, topology)) if "tree" in topology else None
    return None


def all_switches(path: Path) -> list[ConfRecord]:
    """The switches of every tree in the file."""
    return [switch for topology in _topologies(path) for switch in _switches(path, topology)]


def _topologies(path: Path) -> list[Mapping[str, yaml.Node]]:
    try:
        root = yaml.compose(path.read_text(errors="replace"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(
            f"{path}{line}: is no YAML: {getattr(error, 'problem', error)}"
        ) from error
    return [_mapping(item) for item in _sequence(root)]


def _switches(path: Path, topology: Mapping[str, yaml.Node]) -> Iterator[ConfRecord]:
    switches = _mapping(topology.get("tree")).get("switches")
    for item in _sequence(switches):
        switch = _mapping(item)
        where = f"{path}:{item.start_mark.line + 1}"
        values = {
            name: _entry(path, key, switch[key]) for key, name in _KEYS.items() if key in switch
        }
        yield ConfRecord(names=(_text(switch, "switch"),), location=where, values=values)


def _entry(path: Path, key: str, node: yaml.Node) -> Entry:
    value = node.value if isinstance(node, yaml.ScalarNode) else ""
    return Entry(key=key, name=key, value=value, file=str(path), line=node.start_mark.line + 1)


def _is_default(topology: Mapping[str, yaml.Node]) -> bool:
    return _text(topology, "cluster_default").lower() in ("true", "yes", "on")


def _text(mapping: Mapping[str, yaml.Node], key: str) -> str:
    node = mapping.get(key)
    return node.value if isinstance(node, yaml.ScalarNode) else ""


def _mapping(node: yaml.Node | None) -> Mapping[str, yaml.Node]:
    """The values of a mapping by key. Empty for another kind of node."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _sequence(node: yaml.Node | None) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else []
