"""``slurm-elastic-gres.conf``: the lines for cloud nodes, included by gres.conf. Pure except for
reading.

slurmd counts no GPU whose file is not named, and slurmctld then drains the node. slurmctld itself
reads the lines of cloud nodes at its start, before there is a machine. Our lines therefore name
files, and switch a site's AutoDetect off for our nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.pages import page
from slurm_elastic.config import Config, PoolSettings
from slurm_elastic.config.sections.devices import Device, devices
from slurm_elastic.model.cluster import Pool
from slurm_elastic.slurm.client.siteconf import ConfLine, Entry, SiteConf, names, read_lines

SITE_FILE = "gres.conf"
_FILES = frozenset({"file", "multiplefiles"})
FILE_NAME = "slurm-elastic-gres.conf"
_HEAD = """\
# Devices of the cloud nodes, included by gres.conf.
# Written by `slurm-elastic conf install`; change slurm-elastic.yaml and install again.
"""


def site_lines(site: SiteConf) -> tuple[ConfLine, ...]:
    """The lines of the site's gres.conf with its Includes in place. Empty without such a file."""
    path = path_of(site)
    return read_lines(path, ignore=FILE_NAME) if path.is_file() else ()


def flattened(lines: Sequence[ConfLine], our_text: str) -> str:
    """The site's lines and ours as one file."""
    return "".join(f"{line.text}\n" for line in lines) + our_text


def render(config: Config, pools: Sequence[Pool], site: SiteConf) -> str:
    """Our file beside the site's lines. Empty if we need none.

    Raises ConfigError with every line of the site's that conflicts with ours, and every pool whose
    device files are unknown.
    """
    lines = site_lines(site)
    named, detects = named_nodes(lines), _detects(lines)
    # A slurmd without any kind of gres does not read gres.conf.
    is_read = site.option("GresTypes") is not None or any(pool.gres for pool in pools)
    problems: list[str] = []
    text: list[str] = []
    for pool, settings in zip(pools, config.pools, strict=True):
        nodes = [node for node in pool.nodes if node not in named]
        if nodes:
            problems += _for_all(settings, lines, is_read=is_read)
            text += _of_pool(settings, nodes, detects, problems)
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    return _HEAD + "".join(f"{line}\n" for line in text) if text else ""


def named_nodes(lines: Sequence[ConfLine]) -> Set[str]:
    """The nodes that gres.conf names. Their devices are as the site says."""
    heads = [line.entries[0] for line in lines if line.is_record]
    return {name for head in heads for name in names(head)}


def _detects(lines: Sequence[ConfLine]) -> bool:
    """Whether the site lets Slurm detect the GPUs of all nodes."""
    entries = [entry for line in lines if not line.is_record for entry in line.entries]
    return any(e.key == "autodetect" and e.value.lower() != "off" for e in entries)


def lines_for_all(lines: Sequence[ConfLine]) -> Iterator[str]:
    """A remedy for each line without nodes, because such a line also holds for cloud nodes."""
    for entry in map(_name_for_all, lines):
        if entry is not None:
            yield _remedy(entry, "cloud nodes")


def _for_all(pool: PoolSettings, lines: Sequence[ConfLine], *, is_read: bool) -> Iterator[str]:
    """Report lines without nodes, which also hold for cloud nodes.

    They would double the devices of a pool with such devices. On a machine without their files
    slurmd ends ("can't stat gres.conf file"), also if the node has no gres: no such machine ever
    joins.
    """
    kinds = {name.partition(":")[0] for name in pool.gres}
    for line in lines:
        entry = _name_for_all(line)
        if entry is None:
            continue
        has_files = any(other.key in _FILES for other in line.entries)
        if entry.value in kinds:
            yield _remedy(entry, f"the nodes of pool {pool.name}")
        elif has_files and is_read:
            yield _remedy(
                entry,
                f"the nodes of pool {pool.name}",
                "; their slurmd ends if a machine lacks such a file",
            )


def _name_for_all(line: ConfLine) -> Entry | None:
    """The Name of a line without NodeName. None for other lines."""
    entry = line.entries[0]
    return entry if entry.key == "name" and not line.is_record else None


def _remedy(entry: Entry, nodes: str, effect: str = "") -> str:
    return (
        f"{entry.location}: Name={entry.value} without NodeName holds for {nodes}, too{effect};"
        " expected NodeName= with the site's own nodes before it"
    )


def _of_pool(
    pool: PoolSettings, nodes: Sequence[str], detects: bool, problems: list[str]
) -> list[str]:
    # slurmctld 22.05 ends itself if it would have to detect the GPUs of cloud nodes ("Cannot use
    # AutoDetect on cloud node"). 24.11 does not.
    start = f"NodeName={compress(nodes)} AutoDetect=off"
    try:
        device_lines = [f"{start} {_device(device)}" for device in devices(pool.gres, pool.devices)]
    except ValueError as error:
        problems.append(
            f"pool {pool.name}: gres {error} is a part of a GPU (MIG), whose files differ from"
            f" machine to machine type; expected `devices` with them, or lines for {nodes[0]} in"
            f" gres.conf ({page('gpus')})"
        )
        return []
    return device_lines or ([start] if detects else [])


def _device(device: Device) -> str:
    name, _, kind = device.gres.partition(":")
    typed = f" Type={kind}" if kind else ""
    return f"Name={name}{typed} {'MultipleFiles' if device.several else 'File'}={device.files}"


def least(types: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The gres that all of these machine types have, by the most specific names, with the smallest
    count of each.
    """
    names = set(types[0]).intersection(*types[1:])
    specific_names = {
        name for name in names if not any(other.startswith(f"{name}:") for other in names)
    }
    return {name: min(counts[name] for counts in types) for name in sorted(specific_names)}


def path_of(site: SiteConf) -> Path:
    """The site's gres.conf, which includes our file."""
    return site.directory / SITE_FILE
