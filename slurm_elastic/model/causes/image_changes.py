"""The steps by which machines make room for machines from a new image (``replace: when_changed``,
``features.image_replacement``).
"""

from __future__ import annotations

from slurm_elastic.base.units import counted
from slurm_elastic.model.causes.cause import Cause


class ImageChanged(Cause, frozen=True, kw_only=True):
    """The machines leave after their jobs, because new machines of the ``pool`` start from
    ``image``. ``is_first``: no machine has come up from this image yet, so only one leaves.
    """

    pool: str
    image: str
    is_first: bool

    @property
    def words(self) -> str:
        caution = (
            "; one older machine leaves now, the others when one from this image has registered"
        )
        return (
            f"pool {self.pool} starts machines from image {self.image} now"
            f"{caution if self.is_first else ''}"
        )


class NewImageWorks(Cause, frozen=True, kw_only=True):
    """A machine of the ``pool`` from ``image`` has registered."""

    pool: str
    image: str

    @property
    def words(self) -> str:
        return f"a machine of pool {self.pool} from image {self.image} has registered"


class NewImageFails(Cause, frozen=True, kw_only=True):
    """No machine of the ``pool`` from ``image`` has registered, and ``failures`` machines in a row
    did not come up. Older machines stay.
    """

    pool: str
    image: str
    failures: int

    @property
    def words(self) -> str:
        failed = counted(self.failures, "machine")
        return (
            f"image {self.image} of pool {self.pool} does not work: {failed} did not come up, and "
            f"machines from older images stay. Name a working image, or see `slurm-elastic explain`"
            f" of the node; then `slurm-elastic clear {self.pool}`"
        )


ImageStep = ImageChanged | NewImageWorks | NewImageFails
"""All causes about a pool's new image."""
