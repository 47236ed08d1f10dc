"""Images that machines boot from: what a site asks for, files of images, images in a cloud."""

from __future__ import annotations

from msgspec import Struct


class ImageChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The image that a pool's machines start from: an ``id``; or the newest whose ``name`` fits a
    pattern (``*``, ``?``, ``[...]``); or the newest of that ``os``, ``version`` (``12`` is also
    12.5) and ``software``, by the tags that its maker gave it.
    """

    id: str | None = None
    """Change it when the pool should start from exactly this image until somebody names another."""
    name: str | None = None
    """Change it when the pool should start from the newest image of a name, as builds make."""
    os: str | None = None
    """Change it when images are chosen by their tags and the pool needs this system."""
    version: str | None = None
    """Change it when images are chosen by their tags and the pool needs this version of it."""
    software: tuple[str, ...] = ()
    """Change it when images are chosen by their tags and the pool's jobs need this software."""


class ImageFile(Struct, frozen=True, kw_only=True):
    """An image to upload as ``name``: the file at ``path`` of ``size`` bytes, its ``form`` (qcow2,
    raw, tar) and SHA-256; ``os``, ``version`` and ``software`` as of ImageChoice, ``built`` is Unix
    time. ``seen_as``: the path or URL by which the cloud itself finds the file, if it reads it.
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
    """An image that a cloud has; on each host where it is several (``place``). ``created`` is Unix
    time, ``size`` bytes (None: the cloud does not say), ``digest`` of the file that was uploaded.
    ``unfinished`` says why no machine may start from it; ``own``: the account owns it.
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
        """Whether its maker said what is in it."""
        return bool(self.digest or self.software)
