"""Machines on the site's own KVM hosts, through libvirt's Python bindings."""

from __future__ import annotations

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.base.hosts.hosted_cloud import claims_file
from slurm_elastic.providers.base.later import later, opened
from slurm_elastic.providers.libvirt.settings import LibvirtCloud, check
from slurm_elastic.providers.libvirt.skeleton import SKELETON

_opened = opened(f"{__name__}.provider:LibvirtProvider")


def _open(settings: CloudSettings, cluster: Cluster, config: Config | None) -> Provider:
    provider = _opened(settings, cluster, config)
    has_claims = config is not None and claims_file(settings, config).exists()
    if isinstance(settings, LibvirtCloud) and (settings.hypervisors is not None or has_claims):
        later("slurm_elastic.providers.base.hosts.bmc_switch:attach")(provider, settings, config)
    return provider


CLOUD = CloudKind(
    settings=LibvirtCloud,
    open=_open,
    check=check,
    found=later(f"{__name__}.found:found"),
    images=later(f"{__name__}.image_store:VolumeImages"),
    skeleton=SKELETON,
)
