"""Images in glance: made unfinished, filled, compared, and only then told apart from a half one.

A record has no data at first (``queued``) and is ``active`` with its last byte. Until one request
takes the mark of an unfinished image away and gives it its name and the words that pools look for,
no pool finds it. The size is among its properties.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_elastic.base.errors import ProviderError, TransientError
from slurm_elastic.config import Cluster
from slurm_elastic.model.boot_image import CloudImage, ImageFile
from slurm_elastic.model.cluster import Pool
from slurm_elastic.providers.base.image_marks import DIGEST, image_marks, upload_limit
from slurm_elastic.providers.openstack.catalog import Catalog, candidate, image_pages
from slurm_elastic.providers.openstack.project import Project
from slurm_elastic.providers.openstack.settings import OpenStackCloud

UNFINISHED = "slurm_elastic_unfinished"
SIZE = "slurm_elastic_size"
_PATCH = "application/openstack-images-v2.1-json-patch"


class GlanceImages:
    """One project's; see protocols.ImageStore."""

    forms: tuple[str, ...] = ("qcow2", "raw")
    places: tuple[str, ...] = ("",)

    def __init__(self, settings: OpenStackCloud, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._project = Project(settings)
        self._catalog = Catalog(settings, self._call)

    def images(self) -> Sequence[CloudImage]:
        """In all states, snapshots left out."""
        records = image_pages(self._call)
        return [_image(one) for one in records if one.get("image_type") != "snapshot"]

    def steps(self, file: ImageFile) -> Sequence[str]:
        """Three."""
        return (
            f"make a private image of {file.form} in glance, and send it {file.size >> 20} MiB",
            "compare size and checksum with those of the file",
            f"name it {file.name}, and give it the properties that pools look for",
        )

    def upload(self, file: ImageFile, place: str, say: Callable[[str], None]) -> CloudImage:  # noqa: ARG002
        """The record is deleted where its data does not come whole; else it is left unfinished."""
        made = self._call("image", "POST", "/images", self._record(file))
        number = str(made["id"])
        try:
            say(f"image {number} made, private; {file.size >> 20} MiB are sent")
            seconds = upload_limit(file.size, self._settings.timeout)
            with open(file.path, "rb") as data:
                self._project.send("image", f"/images/{number}/file", data, seconds)
            found = self._call("image", "GET", f"/images/{number}")
            self._compare(file, found)
        except BaseException:
            self._take_back(number, say)
            raise
        say(f"active, {found['os_hash_algo']} and size are those of the file")
        path = f"/images/{number}"
        return _image(self._call("image", "PATCH", path, _finish(file), _PATCH))

    def remove(self, image: CloudImage) -> None:
        """Glance stops what is still being sent to it."""
        self._call("image", "DELETE", f"/images/{image.id}")

    def start_of(self, pool: Pool) -> str:
        """As machines are started."""
        return self._catalog.image(pool.image)

    def _record(self, file: ImageFile) -> Mapping[str, object]:
        marks = {_key(key): text for key, text in image_marks(file, self._cluster).items()}
        return {
            "name": f"unfinished {file.name}",
            "disk_format": file.form,
            "container_format": "bare",
            "visibility": "private",
            UNFINISHED: "yes",
            SIZE: str(file.size),
            **marks,
        }

    def _compare(self, file: ImageFile, found: Mapping[str, Any]) -> None:
        """ProviderError where glance has another content, or shows it to others."""
        told = (found.get("status"), found.get("size"), found.get("visibility"))
        if told != ("active", file.size, "private"):
            text = f"the image is {told[0]}, {told[1]} bytes, {told[2]}"
            expected = f"active, {file.size} bytes, private"
            raise ProviderError(self._settings.name, "BadImage", f"{text}; expected {expected}")
        name = str(found.get("os_hash_algo") or "")
        if name not in hashlib.algorithms_available:
            raise ProviderError(self._settings.name, "BadImage", "glance tells no checksum of it")
        with open(file.path, "rb") as data:
            digest = hashlib.file_digest(data, name).hexdigest()
        if digest != found.get("os_hash_value"):
            text = f"the image's {name} is not that of {file.path}"
            raise ProviderError(self._settings.name, "BadImage", text)

    def _take_back(self, number: str, say: Callable[[str], None]) -> None:
        try:
            self._call("image", "DELETE", f"/images/{number}")
            say(f"broken off; image {number} is deleted again")
        except ProviderError as error:
            say(f"broken off; unfinished image {number} is left, which no pool takes: {error}")

    def _call(
        self, service: str, method: str, path: str, body: object = None, content: str = ""
    ) -> Any:  # noqa: ANN401
        answer = self._project.call(service, method, path, body, content)
        if answer is None and method != "DELETE":
            raise TransientError(self._settings.name, "BadAnswer", f"{method} {path}: no content")
        return answer


def _key(tag: str) -> str:
    """Our tags as properties are spelled."""
    return tag.replace(":", "_").replace("-", "_")


def _finish(file: ImageFile) -> Sequence[Mapping[str, str]]:
    """One request, of which glance does all or nothing."""
    told = {
        "os_distro": file.os,
        "os_version": file.version,
        "slurm_elastic_software": " ".join(file.software),
    }
    return [
        {"op": "replace", "path": "/name", "value": file.name},
        *({"op": "add", "path": f"/{key}", "value": text} for key, text in told.items()),
        {"op": "remove", "path": f"/{UNFINISHED}"},
    ]


def _image(record: Mapping[str, Any]) -> CloudImage:
    one, status, size = candidate(record), str(record.get("status")), record.get("size")
    # A snapshot of a server inherits all properties: one of another size is not of the file.
    whole = str(record.get(SIZE) or "") == str(size) or UNFINISHED in record
    half = "its upload did not come to its end" if UNFINISHED in record else ""
    return CloudImage(
        id=one.id, name=one.name, os=one.os, version=one.version, software=one.software,
        created=one.created, size=size,
        digest=str(record.get(_key(DIGEST)) or "") if whole else "",
        unfinished=half or ("" if status == "active" else f"it is {status}"),
        own=record.get("visibility") == "private",
    )  # fmt: skip
