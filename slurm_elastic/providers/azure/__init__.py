"""Azure: virtual machines by the resource manager's REST interface, with requests of our own."""

from __future__ import annotations

from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.azure.skeleton import SKELETON
from slurm_elastic.providers.azure.validate import check
from slurm_elastic.providers.base.later import later, opened

CLOUD = CloudKind(
    settings=AzureCloud,
    open=opened(f"{__name__}.provider:AzureProvider"),
    check=check,
    grant=later(f"{__name__}.policy:grant"),
    skeleton=SKELETON,
)
