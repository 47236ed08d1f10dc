"""Images in a datastore. The front end reads the file itself; until then the image is LOCKED.

After that the image gets the attributes by which pools find it. oned keeps copying if the caller
goes away, so the next upload waits for an upload that was interrupted.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_elastic.base.errors import ConfigError, ProviderError
from slurm_elastic.config import Cluster
from slurm_elastic.model.boot_image import CloudImage, ImageFile
from slurm_elastic.model.cluster import Pool
from slurm_elastic.providers.base.image_marks import DIGEST, image_marks, upload_limit
from slurm_elastic.providers.opennebula.front_end import FrontEnd
from slurm_elastic.providers.opennebula.images import (
    ALL,
    LOCKED,
    OS,
    READY,
    SOFTWARE,
    VERSION,
    OneImageList,
    image,
)
from slurm_elastic.providers.opennebula.requests import SPELLING
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud

POLL_EVERY_S = 2.0
_URLS = ("http://", "https://")
# oned's update merges with 1 and replaces the whole template with 0.
_APPEND = 1
_MIB = 1 << 20


class OneImages:
    """The images that an account may use. See image_store.ImageStore."""

    forms: tuple[str, ...] = ("qcow2", "raw")
    places: tuple[str, ...] = ("",)

    def __init__(self, settings: OpenNebulaCloud, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._call = FrontEnd(settings).call
        self._images = OneImageList(self._call, settings)

    def images(self) -> Sequence[CloudImage]:
        """Images of type OS, from all owners whose images the account may use."""
        uid = int(self._call("user.info", -1).ID)
        records = self._call("imagepool.info", ALL, -1, -1).IMAGE
        return [_image(record, uid) for record in records if not image(record).unsuited]

    def steps(self, file: ImageFile) -> Sequence[str]:
        """The two steps of an upload. ConfigError if the front end cannot read from the place."""
        place = file.seen_as or file.path
        if not place.startswith(("/", *_URLS)):
            expected = "an absolute path on the front end, or a URL of http or https"
            raise ConfigError(f"--path: found {place!r}, expected {expected}")
        store = self._settings.image_datastore
        return (
            f"have the front end read {place} into datastore {store}, as {file.name}",
            "give it the attributes that pools look for, once it is READY",
        )

    def upload(self, file: ImageFile, place: str, say: Callable[[str], None]) -> CloudImage:  # noqa: ARG002
        """Upload the file. If the front end is already reading it, wait for that."""
        image_id = self._find_unfinished(file)
        if image_id is None:
            template = {"TEMPLATE": self._template(file)}
            image_id = int(self._call("image.allocate", template, self._settings.image_datastore))
            say(f"image {image_id} made; the front end reads {file.seen_as or file.path}")
        else:
            say(f"image {image_id} is of an earlier upload; the front end is still reading")
        self._wait_until_ready(file, image_id, say)
        attributes = {OS: file.os, VERSION: file.version, SOFTWARE: " ".join(file.software)}
        # Last, because pools find an image by these attributes: an image that is not READY must not
        # be found.
        self._call("image.update", image_id, {"TEMPLATE": attributes}, _APPEND)
        uploaded = self._call("image.info", image_id)
        return _image(uploaded, int(uploaded.UID))

    def remove(self, image: CloudImage) -> None:
        """Delete the image, even if the front end is still reading it."""
        self._call("image.delete", int(image.id))

    def start_of(self, pool: Pool) -> str:
        """The image that machines of the pool start from; empty if the template has its own."""
        image_id = self._images.of(pool)
        return "" if image_id is None else str(image_id)

    def _template(self, file: ImageFile) -> Mapping[str, str]:
        marks = {SPELLING.key(key): text for key, text in image_marks(file, self._cluster).items()}
        with open(file.path, "rb") as data:
            # oned takes MD5 or SHA-1. It is a check of the transfer, not of who made the file.
            digest = hashlib.file_digest(data, lambda: hashlib.sha1(usedforsecurity=False))
        return {
            "NAME": file.name,
            "TYPE": "OS",
            # Only one machine at a time could use a persistent image.
            "PERSISTENT": "NO",
            "PATH": file.seen_as or file.path,
            "FORMAT": file.form,
            "DRIVER": file.form,
            "DEV_PREFIX": "vd",
            "SHA1": digest.hexdigest(),  # the front end compares it if it loads a URL
            **marks,
        }

    def _find_unfinished(self, file: ImageFile) -> int | None:
        for candidate in self.images():
            if candidate.own and candidate.digest == file.digest and candidate.unfinished:
                return int(candidate.id)
        return None

    def _wait_until_ready(self, file: ImageFile, image_id: int, say: Callable[[str], None]) -> None:
        """Wait until the image is READY and check its size. A wrong image is deleted again."""
        give_up_at = time.monotonic() + upload_limit(file.size, self._settings.api_timeout)
        while int((record := self._call("image.info", image_id)).STATE) == LOCKED:
            if time.monotonic() > give_up_at:
                text = f"image {image_id} is still LOCKED; the next upload continues with it"
                raise ProviderError(self._settings.name, "ImageSlow", text)
            time.sleep(POLL_EVERY_S)
        if problem := _why_wrong(record, file):
            # The front end may have read another file of that name.
            self._call("image.delete", image_id)
            say(f"image {image_id} is deleted again")
            raise ProviderError(self._settings.name, "BadImage", f"image {image_id}: {problem}")
        say(f"image {image_id} is READY, {int(record.SIZE)} MiB")


def _why_wrong(record: Any, file: ImageFile) -> str:  # noqa: ANN401 - a pyone object
    """Why the image is not the file, although it is no longer LOCKED; empty if it may be. oned
    rounds sizes up, and with some drivers adds another MiB.
    """
    if int(record.STATE) not in READY:
        error_text = (record.TEMPLATE or {}).get("ERROR") or "the front end gives no reason"
        return f"not READY: {error_text}"
    expected = _disk_size(file) / _MIB
    if not expected <= int(record.SIZE) <= expected + 2:
        return (
            f"found a disk of {int(record.SIZE)} MiB, expected {expected:.0f}: the front end has "
            f"another file at {file.seen_as or file.path} (see --path)"
        )
    return ""


def _disk_size(file: ImageFile) -> int:
    """The size of the disk that a machine sees (bytes). A qcow2 file has it at byte 24."""
    if file.form != "qcow2":
        return file.size
    with open(file.path, "rb") as opened:
        return int.from_bytes(opened.read(32)[24:], "big")


def _image(record: Any, uid: int) -> CloudImage:  # noqa: ANN401
    parsed, tags = image(record), record.TEMPLATE or {}
    candidate = parsed.candidate
    digest = str(tags.get(SPELLING.key(DIGEST)) or "")
    unfinished = "it has not got its attributes yet" if digest and not tags.get(SOFTWARE) else ""
    return CloudImage(
        id=candidate.id, name=candidate.name, os=candidate.os, version=candidate.version,
        software=candidate.software, created=candidate.created,
        size=int(record.SIZE or 0) * _MIB or None, digest=digest,
        unfinished=parsed.broken or unfinished, own=parsed.uid == uid,
    )  # fmt: skip
