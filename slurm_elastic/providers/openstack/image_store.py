"""Images in glance. An image is created with an unfinished mark, filled, compared, and then
finished in one request.

A record without data is ``queued``; it becomes ``active`` with its last byte. No pool finds the
image until one request removes the mark and sets the name and the properties that pools search for.
The size of the file is among the properties.
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
    """The images of one project. See image_store.ImageStore."""

    forms: tuple[str, ...] = ("qcow2", "raw")
    places: tuple[str, ...] = ("",)

    def __init__(self, settings: OpenStackCloud, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._project = Project(settings)
        self._catalog = Catalog(settings, self._call)

    def images(self) -> Sequence[CloudImage]:
        """The images in all states, without snapshots."""
        records = image_pages(self._settings.name, self._call)
        return [_image(record) for record in records if record.get("image_type") != "snapshot"]

    def steps(self, file: ImageFile) -> Sequence[str]:
        """The three steps of an upload."""
        return (
            f"make a private image of {file.form} in glance, and send it {file.size >> 20} MiB",
            "compare size and checksum with those of the file",
            f"name it {file.name}, and give it the properties that pools look for",
        )

    def upload(self, file: ImageFile, place: str, say: Callable[[str], None]) -> CloudImage:  # noqa: ARG002
        """Upload the file. If the data does not arrive completely, the record is deleted again; if
        that fails too, it keeps its unfinished mark.
        """
        created = self._call("image", "POST", "/images", self._record(file))
        image_id = str(created["id"])
        try:
            say(f"image {image_id} made, private; {file.size >> 20} MiB are sent")
            seconds = upload_limit(file.size, self._settings.api_timeout)
            with open(file.path, "rb") as data:
                self._project.send("image", f"/images/{image_id}/file", data, seconds)
            uploaded = self._call("image", "GET", f"/images/{image_id}")
            self._compare(file, uploaded)
        # Also when the user interrupts the upload: a private image of some GiB must not stay
        # behind.
        except BaseException:
            self._take_back(image_id, say)
            raise
        say(f"active, {uploaded['os_hash_algo']} and size are those of the file")
        path = f"/images/{image_id}"
        return _image(self._call("image", "PATCH", path, _finish(file), _PATCH))

    def remove(self, image: CloudImage) -> None:
        """Delete the image. Glance stops a running upload to it."""
        self._call("image", "DELETE", f"/images/{image.id}")

    def start_of(self, pool: Pool) -> str:
        """The image that machines of the pool start from."""
        return self._catalog.image(pool.image)

    def _record(self, file: ImageFile) -> Mapping[str, object]:
        marks = {_key(key): text for key, text in image_marks(file, self._cluster).items()}
        return {
            "name": f"unfinished {file.name}",
            "disk_format": file.form,
            "container_format": "bare",
            # Nobody else may start from the image before it is complete.
            "visibility": "private",
            UNFINISHED: "yes",
            SIZE: str(file.size),
            **marks,
        }

    def _compare(self, file: ImageFile, uploaded: Mapping[str, Any]) -> None:
        """ProviderError if glance has different content, or if others can see the image."""
        observed = (uploaded.get("status"), uploaded.get("size"), uploaded.get("visibility"))
        if observed != ("active", file.size, "private"):
            text = f"the image is {observed[0]}, {observed[1]} bytes, {observed[2]}"
            expected = f"active, {file.size} bytes, private"
            raise ProviderError(self._settings.name, "BadImage", f"{text}; expected {expected}")
        name = str(uploaded.get("os_hash_algo") or "")
        if name not in hashlib.algorithms_available:
            raise ProviderError(self._settings.name, "BadImage", "glance shows no checksum of it")
        with open(file.path, "rb") as data:
            digest = hashlib.file_digest(data, name).hexdigest()
        if digest != uploaded.get("os_hash_value"):
            text = f"the image's {name} is not that of {file.path}"
            raise ProviderError(self._settings.name, "BadImage", text)

    def _take_back(self, image_id: str, say: Callable[[str], None]) -> None:
        try:
            self._call("image", "DELETE", f"/images/{image_id}")
            say(f"broken off; image {image_id} is deleted again")
        except ProviderError as error:
            say(f"broken off; unfinished image {image_id} is left, which no pool takes: {error}")

    def _call(
        self, service: str, method: str, path: str, body: object = None, content: str = ""
    ) -> Any:  # noqa: ANN401
        answer = self._project.call(service, method, path, body, content)
        if answer is None and method != "DELETE":
            raise TransientError(self._settings.name, "BadAnswer", f"{method} {path}: no content")
        return answer


def _key(tag: str) -> str:
    """The key of our tag as glance spells it in properties."""
    return tag.replace(":", "_").replace("-", "_")


def _finish(file: ImageFile) -> Sequence[Mapping[str, str]]:
    """The changes with which one request completes the image. Glance applies all of them or
    none.
    """
    properties = {
        "os_distro": file.os,
        "os_version": file.version,
        "slurm_elastic_software": " ".join(file.software),
    }
    return [
        {"op": "replace", "path": "/name", "value": file.name},
        *({"op": "add", "path": f"/{key}", "value": text} for key, text in properties.items()),
        {"op": "remove", "path": f"/{UNFINISHED}"},
    ]


def _image(record: Mapping[str, Any]) -> CloudImage:
    image, status, size = candidate(record), str(record.get("status")), record.get("size")
    # A snapshot of a server inherits all properties. An image of another size is not of the file.
    is_from_file = str(record.get(SIZE) or "") == str(size) or UNFINISHED in record
    unfinished = "its upload did not come to its end" if UNFINISHED in record else ""
    return CloudImage(
        id=image.id, name=image.name, os=image.os, version=image.version, software=image.software,
        created=image.created, size=size,
        digest=str(record.get(_key(DIGEST)) or "") if is_from_file else "",
        unfinished=unfinished or ("" if status == "active" else f"it is {status}"),
        own=record.get("visibility") == "private",
    )  # fmt: skip
