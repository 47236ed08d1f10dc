"""The tags of an image beyond what is in it, whose words each cloud has its own; and how long an
upload may take. Pure.
"""

from __future__ import annotations

from slurm_elastic.config import Cluster
from slurm_elastic.model.boot_image import ImageFile
from slurm_elastic.providers.base.tags import CLUSTER, NAME, PREFIX

DIGEST = PREFIX + "digest"
BUILT = PREFIX + "built"
_SLOWEST = 256 << 10
"""Bytes a second; an upload that is slower has failed."""


def image_marks(file: ImageFile, cluster: Cluster) -> dict[str, str]:
    """Whose image it is, and of which file."""
    return {
        CLUSTER: cluster.uuid or "",
        NAME: cluster.name,
        DIGEST: file.digest,
        BUILT: f"{file.built:.0f}",
    }


def upload_limit(size: int, timeout: float) -> float:
    """Seconds for so many bytes, in a cloud of that time-out."""
    return timeout + size / _SLOWEST
