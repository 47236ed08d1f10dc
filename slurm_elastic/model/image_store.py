"""Questions about a cloud's images, of the administrator and never of the services."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from slurm_elastic.model.boot_image import CloudImage, ImageFile
from slurm_elastic.model.cluster import Pool


class ImageStore(Protocol):
    """A cloud's images, for the administrator. ``forms``: the file formats that it accepts.
    ``places``: the hosts that each need an image of their own; one place "" if the cloud has no
    such hosts. Every call may raise the five ProviderErrors.
    """

    forms: tuple[str, ...]
    places: tuple[str, ...]

    def images(self) -> Sequence[CloudImage]:
        """All images that the account sees and pools could use, including unfinished ones."""
        ...

    def steps(self, file: ImageFile) -> Sequence[str]:
        """The steps of an upload, one sentence each, without a call of the cloud. ConfigError if a
        needed setting is missing.
        """
        ...

    def upload(self, file: ImageFile, place: str, say: Callable[[str], None]) -> CloudImage:
        """Upload the file and return the image, verified as complete. ``say`` gets the text of each
        step. After an interruption no pool uses the incomplete image.
        """
        ...

    def remove(self, image: CloudImage) -> None:
        """Delete the incomplete image of an interrupted upload."""
        ...

    def start_of(self, pool: Pool) -> str:
        """The id of the image that machines of the pool start from now; "" if unknown."""
        ...
