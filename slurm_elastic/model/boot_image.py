"""Images that machines boot from: what a site asks for, files of images, images in a cloud."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class ImageChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects the image that a pool's machines start from. ``id``: exactly this image. ``name``:
    the newest image whose name matches the pattern (``*``, ``?``, ``[...]``). ``os``, ``version``
    (``12`` also matches 12.5), ``software``: the newest image with these tags.
    """

    id: str | None = None
    """Change it when the pool should start from exactly this image until another one is named."""
    name: str | None = None
    """Change it when the pool should start from the newest image of a name, as builds make."""
    os: str | None = None
    """Change it when images are chosen by their tags and the pool needs this system."""
    version: str | None = None
    """Change it when images are chosen by their tags and the pool needs this version of it."""
    software: tuple[str, ...] = ()
    """Change it when images are chosen by their tags and the pool's jobs need this software."""


class Replacement(StrEnum):
    """When machines make room for machines from a new image."""

    BY_HAND = "by_hand"
    WHEN_CHANGED = "when_changed"


class ImageFile(Struct, frozen=True, kw_only=True):
    """An image file to upload as ``name``. ``form``: qcow2, raw or tar. ``size``: bytes.
    ``digest``: SHA-256. ``os``, ``version``, ``software``: see ImageChoice. ``built``: Unix time.
    ``seen_as``: the path or URL at which the cloud reads the file itself, None if we upload it.
    """

    path: str
    name: str
    form: str
    size: int
    digest: str
    os: str
    version: str
    software: tuple[str, ...]
    built: float
    seen_as: str | None = None


class CloudImage(Struct, frozen=True, kw_only=True):
    """An image in a cloud. ``place``: the host that has it, if the cloud keeps an image per host.
    ``created``: Unix time. ``size``: bytes, None if unknown. ``digest``: SHA-256 of the uploaded
    file. ``unfinished``: why no machine may start from it, "" if machines may. ``own``: our account
    owns it.
    """

    id: str
    name: str
    place: str = ""
    os: str = ""
    version: str = ""
    software: frozenset[str] = frozenset()
    created: float = 0.0
    size: int | None = None
    digest: str = ""
    unfinished: str = ""
    own: bool = True

    @property
    def tagged(self) -> bool:
        """Whether the image has tags that describe its content."""
        return bool(self.digest or self.software)
