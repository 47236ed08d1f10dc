"""Machines on KVM hosts of the site's own, by libvirt's Python bindings."""

from __future__ import annotations

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.model.protocols import ImageStore, Provider
from slurm_elastic.providers.base.joining import program_of
from slurm_elastic.providers.base.ownership import ownership_of
from slurm_elastic.providers.libvirt.settings import LibvirtCloud, check


def _open(settings: LibvirtCloud, cluster: Cluster, config: Config | None) -> Provider:
    from slurm_elastic.providers.libvirt.provider import LibvirtProvider

    ownership = ownership_of(settings, cluster, config)
    joining = program_of(config, settings) if config else ""
    return LibvirtProvider(settings, cluster, ownership, joining)


def _images(settings: LibvirtCloud, cluster: Cluster) -> ImageStore:
    from slurm_elastic.providers.libvirt.image_store import VolumeImages

    return VolumeImages(settings, cluster)


CLOUD = CloudKind(settings=LibvirtCloud, open=_open, check=check, images=_images)
