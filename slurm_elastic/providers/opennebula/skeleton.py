"""The skeleton of an OpenNebula cloud, for ``init --cloud opennebula``."""

from __future__ import annotations

from slurm_elastic.base.pages import page
from slurm_elastic.config.basics.todos import TODO
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location

SKELETON = Found(
    name="nebula", provider="opennebula", location=Location.ON_PREMISES, usable=True, joins=True,
    what="an OpenNebula front end",
    keys={
        "endpoint": TODO, "auth_file": "/etc/slurm-elastic/one_auth", "catalogue": True,
    },
    todos={
        "credentials": "oneuser create slurm-elastic PASSWORD; put slurm-elastic:PASSWORD into "
        "/etc/slurm-elastic/one_auth, owner {user}, mode 600",
        "endpoint": "the front end's URL, such as http://front-end:2633/RPC2",
        "image": "slurm-elastic image build compute.qcow2; slurm-elastic image upload {name} "
        "compute.qcow2",
        "template": "onetemplate create --name slurm --cpu 4 --vcpu 4 --memory 8192 --disk IMAGE "
        f"--nic NETWORK, with NETWORK reaching the head: {page('opennebula')}",
    },
)  # fmt: skip
