"""The skeleton of an OpenStack cloud, for ``init --cloud openstack``."""

from __future__ import annotations

from slurm_elastic.base.pages import page
from slurm_elastic.config.basics.todos import TODO
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location

SKELETON = Found(
    name="stack", provider="openstack", location=Location.ON_PREMISES, usable=True, joins=True,
    what="an OpenStack project",
    keys={
        "clouds_file": "/etc/slurm-elastic/clouds.yaml", "cloud": TODO, "image": TODO,
        "networks": [TODO], "catalogue": True,
    },
    todos={
        "credentials": "openstack application credential create slurm-elastic; put it into "
        f"/etc/slurm-elastic/clouds.yaml, owner {{user}}, mode 600: {page('openstack')}",
        "cloud": "the name of the project's entry in clouds.yaml",
        "image": "slurm-elastic image build compute.qcow2; slurm-elastic image upload {name} "
        "compute.qcow2; it prints the name",
        "networks": "openstack network list",
        "ports": "let the head reach machines at port {slurmd_port}, and machines the head at "
        "{slurmctld_port}: openstack security group rule create",
    },
)  # fmt: skip
