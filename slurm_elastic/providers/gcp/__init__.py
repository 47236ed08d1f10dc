"""Google Compute Engine: credentials by google-auth, requests of our own."""

from __future__ import annotations

from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.providers.base.later import later, opened
from slurm_elastic.providers.gcp.settings import GcpCloud
from slurm_elastic.providers.gcp.skeleton import SKELETON
from slurm_elastic.providers.gcp.validate import check

CLOUD = CloudKind(
    settings=GcpCloud,
    open=opened(f"{__name__}.provider:GcpProvider"),
    check=check,
    grant=later(f"{__name__}.policy:grant"),
    skeleton=SKELETON,
)
