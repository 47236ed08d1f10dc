"""A cloud in memory, for rehearsals and tests."""

from __future__ import annotations

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.fake.settings import FakeCloud


def _open(settings: FakeCloud, cluster: Cluster, config: Config | None) -> Provider:
    from slurm_elastic.providers.fake.provider import FakeProvider

    del config
    return FakeProvider(settings, cluster)


CLOUD = CloudKind(settings=FakeCloud, open=_open)
