"""The five realistic sites of tests/data/sites, and a configuration with two clouds for each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.config import Config, configfile
from slurm_elastic.slurm.conf import dryrun

ROOT = Path(__file__).parents[1]
SITES = ROOT / "data" / "sites"
NAMES = ("small", "accounting", "own-lua", "topology", "private")
SOME = ("small", "own-lua")
"""What the first tier installs at; the others are in the release tier, and in its checks of texts."""
CLUSTERS = {
    "small": "small",
    "accounting": "physics",
    "own-lua": "bio",
    "topology": "weather",
    "private": "clinic",
}
ISOLATED = pytest.mark.skipif(
    dryrun.isolation() is None, reason="no network namespaces here: only the lesser check runs"
)
"""The mark of tests that start a throw-away slurmctld."""
VERSIONS = ((22, 5), (24, 11))
TOPOLOGY_LINES = (
    "SwitchName=elastic-aws Nodes=pub[1-8],pubgpu[1-2]",
    "SwitchName=elastic-onprem Nodes=op[1-2]",
    "SwitchName=core Switches=rack[1-2],elastic-aws,elastic-onprem",
)


def in_tiers(*more: str) -> list[Any]:
    """The sites' names, and ``more`` of them, as a test's parameter: some of them in the first tier."""
    others = [pytest.param(name, marks=pytest.mark.release) for name in NAMES if name not in SOME]
    return [*SOME, *more, *others]


def copy(name: str, directory: Path) -> Path:
    """A copy of the site's files; the path of its slurm.conf."""
    etc = directory / "etc"
    shutil.copytree(SITES / name, etc)
    return etc / "slurm.conf"


def config(name: str, conf: Path) -> Config:
    """The clouds of tests/data/sites/slurm-elastic.yaml for this site; for a group where no slurmdbd
    knows accounts and QOS.
    """
    return configfile.parse(config_text(name).replace("CONF", str(conf)), "slurm-elastic.yaml")


def config_text(name: str) -> str:
    """The text of that configuration, with CONF for the path of slurm.conf."""
    text = (SITES / "slurm-elastic.yaml").read_text().replace("CLUSTER", CLUSTERS[name])
    if "slurmdbd" not in (SITES / name / "slurm.conf").read_text():
        text = text.replace("accounts: [burst], qos: [cloud]", "groups: [users]")
    return text


def add_topology(conf: Path) -> None:
    """Add the lines that the admin of the topology site adds before the install."""
    path = conf.parent / "topology.conf"
    kept = [line for line in path.read_text().splitlines() if "SwitchName=core" not in line]
    path.write_text("\n".join((*kept, *TOPOLOGY_LINES, "")))
