"""The tags of an image that name its cluster and its file, and how long an upload may take. Each
cloud adds tags for the content of the image in its own words. Pure.
"""

from __future__ import annotations

from slurm_elastic.config import Cluster
from slurm_elastic.model.boot_image import ImageFile
from slurm_elastic.providers.base.tags import CLUSTER, NAME, PREFIX

DIGEST = PREFIX + "digest"
BUILT = PREFIX + "built"
_MIN_BYTES_PER_S = 256 << 10
"""Bytes per second. A slower upload counts as failed."""


def image_marks(file: ImageFile, cluster: Cluster) -> dict[str, str]:
    """The tags that name the image's cluster and its file."""
    return {
        CLUSTER: cluster.uuid or "",
        NAME: cluster.name,
        DIGEST: file.digest,
        BUILT: f"{file.built:.0f}",
    }


def upload_limit(size: int, timeout: float) -> float:
    """The time-out (s) of an upload of ``size`` bytes, in a cloud whose calls have this ``timeout``
    (s).
    """
    return timeout + size / _MIN_BYTES_PER_S
