"""A cloud in memory, for rehearsals and tests."""

from __future__ import annotations

from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.providers.base.later import opened_alone
from slurm_elastic.providers.fake.settings import FakeCloud

CLOUD = CloudKind(
    settings=FakeCloud,
    open=opened_alone(f"{__name__}.provider:FakeProvider"),
)
