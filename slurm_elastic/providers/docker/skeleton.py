"""The skeleton of a cloud of Docker engines, for ``init --cloud docker``."""

from __future__ import annotations

from slurm_elastic.base.pages import page
from slurm_elastic.config.basics.todos import TODO
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location

SKELETON = Found(
    name="boxes", provider="docker", location=Location.ON_PREMISES, usable=True, joins=True,
    sized=True, what="Docker engines",
    keys={
        "hosts": {"here": {"url": "unix:///var/run/docker.sock"}}, "image": TODO, "network": TODO,
        "mounts": ["/etc/munge/munge.key:/etc/slurm-elastic/munge.key:ro"],
    },
    todos={
        "rights": f"usermod --append --groups docker {{user}}; other hosts: {page('docker')}",
        "image": "slurm-elastic image build compute.tar; slurm-elastic image upload {name} "
        "compute.tar; it prints the name",
        "network": "docker network create slurm",
    },
)  # fmt: skip
