"""slurmd processes on this host."""

from __future__ import annotations

from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.providers.base.later import later, opened_alone
from slurm_elastic.providers.local.settings import LocalCloud
from slurm_elastic.providers.local.validate import check

CLOUD = CloudKind(
    settings=LocalCloud,
    open=opened_alone(f"{__name__}.provider:LocalProvider"),
    check=check,
    found=later(f"{__name__}.found:found"),
)
