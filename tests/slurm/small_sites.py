"""The small slurm.conf of tests/data/slurm-conf, each with one cloud and one pool."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from slurm_elastic.config import Config, configfile
from slurm_elastic.slurm.conf import plan
from slurm_elastic.slurm.conf.plan import ConfPlan
from tests.slurm.site_cases import ROOT

DIRECTORY = ROOT / "data" / "slurm-conf"
CONFIGURATION = """\
cluster: {{name: {cluster}}}
slurm: {{conf: {conf}}}
allow: {{groups: [users], max_time: 1d}}
limits: {{dollars_per_hour: 2.0}}
clouds:
  - name: aws
    provider: aws
    location: public
    region: eu-central-1
    image: ami-00000000
    types: {{c5.xlarge: {{cpus: 4, memory: 8G, price: 0.194}}}}
pools:
  - {{name: burst, cloud: aws, nodes: "burst[1-4]", cpus: 4, memory: 8G, instance_types: [c5.xlarge]}}
"""


def copy(name: str, directory: Path) -> Path:
    """A copy of the site's files; the path of its slurm.conf."""
    etc = directory / "etc"
    shutil.copytree(DIRECTORY / name, etc)
    return etc / "slurm.conf"


def config(conf: Path) -> Config:
    """The cloud for this slurm.conf, whose ClusterName it takes over."""
    cluster = re.search(r"^ClusterName=(\S+)", conf.read_text(), re.MULTILINE)
    assert cluster is not None
    text = CONFIGURATION.format(cluster=cluster[1].lower(), conf=conf)
    return configfile.parse(text, "slurm-elastic.yaml")


def planned(name: str, directory: Path, extra: str = "", **options: tuple[int, int]) -> ConfPlan:
    """The plan for a copy of the site, with ``extra`` lines at its end."""
    conf = copy(name, directory)
    if extra:
        conf.write_text(f"{conf.read_text()}{extra}\n")
    return plan.make(config(conf), **options)
