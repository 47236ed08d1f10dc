"""The skeleton of a cloud of KVM hosts, for ``init --cloud libvirt``."""

from __future__ import annotations

from slurm_elastic.base.pages import page
from slurm_elastic.config.basics.todos import TODO
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location

SKELETON = Found(
    name="lab", provider="libvirt", location=Location.ON_PREMISES, usable=True, joins=True,
    sized=True, what="KVM hosts",
    keys={
        "hosts": {"here": {"uri": "qemu:///system"}}, "image": TODO, "network": TODO,
    },
    todos={
        "rights": f"usermod --append --groups libvirt {{user}}; other hosts: {page('libvirt')}",
        "image": "slurm-elastic image build compute.qcow2; slurm-elastic image upload {name} "
        "compute.qcow2; it prints the volume",
        "network": "virsh -c qemu:///system net-list --all; a bridge, because the head does not "
        "reach machines behind libvirt's own network 'default'",
    },
)  # fmt: skip
