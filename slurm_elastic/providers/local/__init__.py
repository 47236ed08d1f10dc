"""slurmd processes on this host."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.config.found import Found, Place
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.local.settings import LocalCloud
from slurm_elastic.providers.local.validate import check


def _open(settings: LocalCloud, cluster: Cluster, config: Config | None) -> Provider:
    from slurm_elastic.providers.local.provider import LocalProvider

    del config
    return LocalProvider(settings, cluster)


def _found(place: Place) -> Iterable[Found]:
    from slurm_elastic.providers.local.found import found

    return found(place)


CLOUD = CloudKind(settings=LocalCloud, open=_open, check=check, found=_found)
