"""Machines on the site's own KVM hosts, through libvirt's Python bindings."""

from __future__ import annotations

from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.providers.base.later import later, opened
from slurm_elastic.providers.libvirt.settings import LibvirtCloud, check
from slurm_elastic.providers.libvirt.skeleton import SKELETON

CLOUD = CloudKind(
    settings=LibvirtCloud,
    open=opened(f"{__name__}.provider:LibvirtProvider"),
    check=check,
    found=later(f"{__name__}.found:found"),
    images=later(f"{__name__}.image_store:VolumeImages"),
    skeleton=SKELETON,
)
