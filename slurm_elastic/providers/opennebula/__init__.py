"""OpenNebula, through pyone."""

from __future__ import annotations

from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.providers.base.later import later, opened
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud
from slurm_elastic.providers.opennebula.skeleton import SKELETON
from slurm_elastic.providers.opennebula.validate import check

CLOUD = CloudKind(
    settings=OpenNebulaCloud,
    open=opened(f"{__name__}.provider:OpenNebulaProvider"),
    check=check,
    grant=later(f"{__name__}.policy:grant"),
    known_types=later(f"{__name__}.known_types:known_types"),
    found=later(f"{__name__}.found:found"),
    images=later(f"{__name__}.image_store:OneImages"),
    skeleton=SKELETON,
)
