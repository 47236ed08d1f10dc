"""Images in a datastore: the front end reads the file by itself, and is LOCKED until it has it.

Only then come the attributes by which pools look for images. oned goes on copying whoever has gone
away, so an upload that was broken off is waited for by the next.
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
    Images,
    image,
)
from slurm_elastic.providers.opennebula.requests import SPELLING
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud

PERIOD = 2.0
_URLS = ("http://", "https://")
_APPEND = 1
_MIB = 1 << 20


class OneImages:
    """The images that an account may use; see protocols.ImageStore."""

    forms: tuple[str, ...] = ("qcow2", "raw")
    places: tuple[str, ...] = ("",)

    def __init__(self, settings: OpenNebulaCloud, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._call = FrontEnd(settings).call
        self._found = Images(self._call, settings)

    def images(self) -> Sequence[CloudImage]:
        """Images of type OS, of all owners whose images the account may use."""
        uid = int(self._call("user.info", -1).ID)
        records = self._call("imagepool.info", ALL, -1, -1).IMAGE
        return [_image(one, uid) for one in records if not image(one).unsuited]

    def steps(self, file: ImageFile) -> Sequence[str]:
        """Two; ConfigError for a place that is none for the front end."""
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
        """One that the front end has begun to read is waited for."""
        number = self._begun(file)
        if number is None:
            template = {"TEMPLATE": self._template(file)}
            number = int(self._call("image.allocate", template, self._settings.image_datastore))
            say(f"image {number} made; the front end reads {file.seen_as or file.path}")
        else:
            say(f"image {number} is of an earlier upload; the front end goes on")
        self._await(file, number, say)
        words = {OS: file.os, VERSION: file.version, SOFTWARE: " ".join(file.software)}
        self._call("image.update", number, {"TEMPLATE": words}, _APPEND)
        found = self._call("image.info", number)
        return _image(found, int(found.UID))

    def remove(self, image: CloudImage) -> None:
        """Also one that the front end still reads."""
        self._call("image.delete", int(image.id))

    def start_of(self, pool: Pool) -> str:
        """As machines are started; a template's own is not looked up."""
        number = self._found.of(pool)
        return "" if number is None else str(number)

    def _template(self, file: ImageFile) -> Mapping[str, str]:
        marks = {SPELLING.key(key): text for key, text in image_marks(file, self._cluster).items()}
        with open(file.path, "rb") as data:
            digest = hashlib.file_digest(data, lambda: hashlib.sha1(usedforsecurity=False))
        return {
            "NAME": file.name,
            "TYPE": "OS",
            "PERSISTENT": "NO",
            "PATH": file.seen_as or file.path,
            "FORMAT": file.form,
            "DRIVER": file.form,
            "DEV_PREFIX": "vd",
            "SHA1": digest.hexdigest(),  # the front end compares it, where it loads a URL
            **marks,
        }

    def _begun(self, file: ImageFile) -> int | None:
        for one in self.images():
            if one.own and one.digest == file.digest and one.unfinished:
                return int(one.id)
        return None

    def _await(self, file: ImageFile, number: int, say: Callable[[str], None]) -> None:
        """READY, and as large as the file; else it is deleted again."""
        until = time.monotonic() + upload_limit(file.size, self._settings.timeout)
        while int((found := self._call("image.info", number)).STATE) == LOCKED:
            if time.monotonic() > until:
                text = f"image {number} is still LOCKED; the next upload goes on with it"
                raise ProviderError(self._settings.name, "ImageSlow", text)
            time.sleep(PERIOD)
        if why := _wrong(found, file):
            self._call("image.delete", number)
            say(f"image {number} is deleted again")
            raise ProviderError(self._settings.name, "BadImage", f"image {number}: {why}")
        say(f"image {number} is READY, {int(found.SIZE)} MiB")


def _wrong(found: Any, file: ImageFile) -> str:  # noqa: ANN401 - a pyone object
    """Why an image that is not LOCKED any more is not the file; empty where it may be. oned rounds
    sizes up, by some drivers a MiB too far.
    """
    if int(found.STATE) not in READY:
        told = (found.TEMPLATE or {}).get("ERROR") or "the front end gives no reason"
        return f"not READY: {told}"
    expected = _disk_size(file) / _MIB
    if not expected <= int(found.SIZE) <= expected + 2:
        return (
            f"found a disk of {int(found.SIZE)} MiB, expected {expected:.0f}: the front end has "
            f"another file at {file.seen_as or file.path} (see --path)"
        )
    return ""


def _disk_size(file: ImageFile) -> int:
    """Bytes of the disk that a machine sees: a qcow2 has them at its 24th byte."""
    if file.form != "qcow2":
        return file.size
    with open(file.path, "rb") as opened:
        return int.from_bytes(opened.read(32)[24:], "big")


def _image(record: Any, uid: int) -> CloudImage:  # noqa: ANN401
    one, tags = image(record), record.TEMPLATE or {}
    told = one.candidate
    digest = str(tags.get(SPELLING.key(DIGEST)) or "")
    half = "it has not got its attributes yet" if digest and not tags.get(SOFTWARE) else ""
    return CloudImage(
        id=told.id, name=told.name, os=told.os, version=told.version, software=told.software,
        created=told.created, size=int(record.SIZE or 0) * _MIB or None, digest=digest,
        unfinished=one.broken or half, own=one.uid == uid,
    )  # fmt: skip
