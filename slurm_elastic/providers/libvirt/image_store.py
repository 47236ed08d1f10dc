"""Images as volumes in the hosts' storage pools. Each has a label beside it, because libvirt has no
tags.

An upload first creates the volume ``NAME.unfinished``. While it exists, no machine starts from NAME
(``domains.image``). It is deleted last, after the image was read back completely and has its label
``NAME.json``.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.config import Cluster
from slurm_elastic.model.boot_image import CloudImage, ImageFile
from slurm_elastic.model.cluster import Pool
from slurm_elastic.providers.base.hosts.hosts import seconds_left, until
from slurm_elastic.providers.base.image_marks import image_marks, upload_limit
from slurm_elastic.providers.libvirt.domains import UNFINISHED, kind_of, lookup, new_volume, send
from slurm_elastic.providers.libvirt.hosts import LibvirtHosts, bindings
from slurm_elastic.providers.libvirt.settings import LibvirtCloud

LABEL = ".json"
_MAX_LABEL_BYTES = 1 << 16
"""A longer file is not a label, but belongs to another program."""
_POLL_EVERY_S = 0.3
Say = Callable[[str], None]


class VolumeLabel(Struct, frozen=True, kw_only=True):
    """The content of ``NAME.json``: a description of the image, and the marks that all
    images have.
    """

    os: str
    version: str
    software: tuple[str, ...]
    size: int
    digest: str
    built: float
    marks: Mapping[str, str]


class VolumeImages:
    """The images of all hosts of a cloud. See image_store.ImageStore."""

    forms: tuple[str, ...] = ("qcow2", "raw")

    def __init__(self, settings: LibvirtCloud, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._hosts = LibvirtHosts(settings)
        self.places: tuple[str, ...] = tuple(settings.hosts)

    def images(self) -> Sequence[CloudImage]:
        """Labelled images, unfinished images, and the image from which machines start."""
        with self._hosts.limited():
            return [
                image
                for host in self.places
                for image in self._call(host, partial(_listed, self._settings, host))
            ]

    def steps(self, file: ImageFile) -> Sequence[str]:
        """The three steps of an upload."""
        name, storage = volume_name(file), self._settings.storage_pool
        return (
            f"send {file.size >> 20} MiB as volume {name} of storage pool {storage}",
            "read it back and compare it with the file",
            f"put its label beside it, {name}{LABEL}",
        )

    def upload(self, file: ImageFile, place: str, say: Say) -> CloudImage:
        """Upload the file. If the upload does not finish, its volume is deleted again."""
        name = volume_name(file)
        self._call_in_time(place, partial(_begin, self._settings, name))
        try:
            say(f"{file.size >> 20} MiB are sent as {name}")
            # Twice the time, because the file is sent and then read back.
            limit = time.monotonic() + 2 * upload_limit(file.size, self._settings.api_timeout)
            with until(limit):
                self._call(place, partial(_fill, self._settings, file, self._label(file), say))
        # Also for Ctrl-C, with which people end long uploads.
        except BaseException:
            self._take_back(place, name, say)
            raise
        self._call_in_time(place, partial(_finish, self._settings, name))
        say(f"machines start from it when the cloud's settings have 'image: {name}'")
        return _image(name, place, self._label(file))

    def remove(self, image: CloudImage) -> None:
        """Delete an image, but only if it is marked as unfinished."""
        self._call_in_time(image.place, partial(_delete_unfinished, self._settings, image.id))

    def start_of(self, pool: Pool) -> str:  # noqa: ARG002 - all have one image
        """The volume that the settings name."""
        return self._settings.image

    def _label(self, file: ImageFile) -> VolumeLabel:
        return VolumeLabel(
            os=file.os, version=file.version, software=file.software, size=file.size,
            digest=file.digest, built=file.built, marks=image_marks(file, self._cluster),
        )  # fmt: skip

    def _take_back(self, host: str, name: str, say: Say) -> None:
        try:
            self._call_in_time(host, partial(_delete_unfinished, self._settings, name))
            say(f"broken off; {name} is deleted again")
        except ProviderError as error:
            say(f"broken off; unfinished {name} is left, from which no machine starts: {error}")

    def _call_in_time(self, host: str, do: Callable[[Any], object]) -> None:
        with self._hosts.limited():
            self._call(host, do)

    def _call(self, host: str, do: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        return self._hosts.call(host, do)


def volume_name(file: ImageFile) -> str:
    """The name of the volume, which ends with its form."""
    return f"{file.name}.{file.form}"


def _begin(settings: LibvirtCloud, name: str, connection: Any) -> None:  # noqa: ANN401
    """Create the mark. ProviderError if the mark or a volume of this name exists already."""
    pool = connection.storagePoolLookupByName(settings.storage_pool)
    if lookup(pool.storageVolLookupByName, name + UNFINISHED):
        text = f"an upload of {name} was broken off, or is under way; --again removes it"
        raise ProviderError(settings.name, "UnfinishedImage", text)
    if lookup(pool.storageVolLookupByName, name):
        text = f"there is another volume called {name}: name yours by --name"
        raise ProviderError(settings.name, "NameTaken", text)
    # The mark before the volume: an upload that dies in between leaves nothing that looks complete.
    new_volume(pool, name + UNFINISHED, 512, "raw")


def _fill(
    settings: LibvirtCloud,
    file: ImageFile,
    label: VolumeLabel,
    say: Say,
    connection: Any,  # noqa: ANN401
) -> None:
    pool, name = connection.storagePoolLookupByName(settings.storage_pool), volume_name(file)
    # As raw: for qcow2 libvirt would create a header of its own. The real form is recognised by its
    # content.
    target = new_volume(pool, name, file.size, "raw")
    with open(file.path, "rb") as data:
        send(connection, target, file.size, data.read)
    _await_form(pool, name, file.form)
    digest = hashlib.sha256()
    for piece in _read(connection, pool.storageVolLookupByName(name), file.size):
        digest.update(piece)
    if digest.hexdigest() != file.digest:
        text = f"{name} has another content than {file.path}"
        raise ProviderError(settings.name, "BadImage", text)
    say("read back, it is as the file")
    label_bytes = msgspec.json.encode(label)
    # After the comparison: an image with a label counts as proven.
    label_volume = new_volume(pool, name + LABEL, len(label_bytes), "raw")
    send(connection, label_volume, len(label_bytes), io.BytesIO(label_bytes).read)


def _await_form(pool: Any, name: str, form: str) -> None:  # noqa: ANN401
    """Wait until libvirt shows the form. It looks at a volume's content only when it refreshes the
    pool.
    """
    while True:
        with suppress(bindings().libvirtError):  # fails while another volume is being created
            pool.refresh()
            if kind_of(pool.storageVolLookupByName(name)) == form:
                return
        time.sleep(min(_POLL_EVERY_S, seconds_left()))


def _read(connection: Any, target: Any, size: int) -> Iterator[bytes]:  # noqa: ANN401
    stream = connection.newStream()
    target.download(stream, 0, size)
    while piece := stream.recv(1 << 18):
        # TimeoutError when the limit of the upload is over: a slow stream raises nothing itself.
        seconds_left()
        yield piece
    stream.finish()


def _finish(settings: LibvirtCloud, name: str, connection: Any) -> None:  # noqa: ANN401
    pool = connection.storagePoolLookupByName(settings.storage_pool)
    if mark := lookup(pool.storageVolLookupByName, name + UNFINISHED):
        mark.delete()


def _delete_unfinished(settings: LibvirtCloud, name: str, connection: Any) -> None:  # noqa: ANN401
    """Delete an unfinished image, its mark last. An image without the mark is kept, because it may
    be in use.
    """
    pool = connection.storagePoolLookupByName(settings.storage_pool)
    if not lookup(pool.storageVolLookupByName, name + UNFINISHED):
        return
    for volume_name in (name + LABEL, name, name + UNFINISHED):
        if volume := lookup(pool.storageVolLookupByName, volume_name):
            volume.delete()


def _listed(settings: LibvirtCloud, host: str, connection: Any) -> list[CloudImage]:  # noqa: ANN401
    pool = connection.storagePoolLookupByName(settings.storage_pool)
    volume_by_name = {volume.name(): volume for volume in pool.listAllVolumes()}
    marked_names = {name.removesuffix(end) for name in volume_by_name for end in (LABEL, UNFINISHED)
             if name.endswith(end)}  # fmt: skip
    listed = []
    for name in sorted(marked_names | ({settings.image} & volume_by_name.keys())):
        label = _label_in(connection, volume_by_name.get(name + LABEL))
        is_unfinished = name + UNFINISHED in volume_by_name
        if is_unfinished or (name in volume_by_name and (label or name == settings.image)):
            listed.append(_image(name, host, label, is_unfinished=is_unfinished))
    return listed


def _label_in(connection: Any, volume: Any) -> VolumeLabel | None:  # noqa: ANN401
    if volume is None or volume.info()[1] > _MAX_LABEL_BYTES:
        return None
    text = b"".join(_read(connection, volume, volume.info()[1]))
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(text, type=VolumeLabel)
    return None


def _image(
    name: str, host: str, label: VolumeLabel | None, *, is_unfinished: bool = False
) -> CloudImage:
    unfinished = "its upload did not come to its end, or is under way" if is_unfinished else ""
    readable_name = name.removesuffix(".qcow2").removesuffix(".raw")
    if label is None:
        return CloudImage(id=name, name=readable_name, place=host, unfinished=unfinished)
    return CloudImage(
        id=name, name=readable_name, place=host, os=label.os, version=label.version,
        software=frozenset(label.software), created=label.built, size=label.size,
        digest=label.digest, unfinished=unfinished,
    )  # fmt: skip
