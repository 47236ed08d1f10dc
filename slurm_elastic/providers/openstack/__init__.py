"""OpenStack: credentials and catalogue by openstacksdk, requests of our own."""

from __future__ import annotations

from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.providers.base.later import later, opened
from slurm_elastic.providers.openstack.settings import OpenStackCloud
from slurm_elastic.providers.openstack.skeleton import SKELETON
from slurm_elastic.providers.openstack.validate import check

CLOUD = CloudKind(
    settings=OpenStackCloud,
    open=opened(f"{__name__}.provider:OpenStackProvider"),
    check=check,
    grant=later(f"{__name__}.policy:grant"),
    known_types=later(f"{__name__}.known_types:known_types"),
    found=later(f"{__name__}.found:found"),
    images=later(f"{__name__}.image_store:GlanceImages"),
    skeleton=SKELETON,
    maker=later(f"{__name__}.making.maker:StackMaker"),
)
