"""Images as volumes of the hosts' storage pools, each with a label beside it: libvirt has no tags.

Before anything else there is a volume ``NAME.unfinished``, and while it is there no machine starts
from NAME (``domains.image``). It goes last, when the image was read back whole and has its label,
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
from slurm_elastic.providers.base.hosts import seconds_left, until
from slurm_elastic.providers.base.image_marks import image_marks, upload_limit
from slurm_elastic.providers.libvirt.domains import UNFINISHED, found, kind_of, new_volume, send
from slurm_elastic.providers.libvirt.hosts import LibvirtHosts, bindings
from slurm_elastic.providers.libvirt.settings import LibvirtCloud

LABEL = ".json"
_LONGEST = 1 << 16
"""Bytes of a label; what is longer is another program's."""
_PAUSE = 0.3
Say = Callable[[str], None]


class VolumeLabel(Struct, frozen=True, kw_only=True):
    """The content of ``NAME.json``: what is in an image, and the marks that all images have."""

    os: str
    version: str
    software: tuple[str, ...]
    size: int
    digest: str
    built: float
    marks: Mapping[str, str]


class VolumeImages:
    """The images of all hosts of a cloud; see protocols.ImageStore."""

    forms: tuple[str, ...] = ("qcow2", "raw")

    def __init__(self, settings: LibvirtCloud, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._hosts = LibvirtHosts(settings)
        self.places: tuple[str, ...] = tuple(settings.hosts)

    def images(self) -> Sequence[CloudImage]:
        """Labelled ones, unfinished ones, and the one that machines start from."""
        with self._hosts.limited():
            return [
                one
                for host in self.places
                for one in self._call(host, partial(_listed, self._settings, host))
            ]

    def steps(self, file: ImageFile) -> Sequence[str]:
        """Three."""
        name, storage = volume_name(file), self._settings.storage
        return (
            f"send {file.size >> 20} MiB as volume {name} of storage pool {storage}",
            "read it back and compare it with the file",
            f"put its label beside it, {name}{LABEL}",
        )

    def upload(self, file: ImageFile, place: str, say: Say) -> CloudImage:
        """The volume that it made goes again where it does not come to its end."""
        name = volume_name(file)
        self._short(place, partial(_begin, self._settings, name))
        try:
            say(f"{file.size >> 20} MiB are sent as {name}")
            limit = time.monotonic() + 2 * upload_limit(file.size, self._settings.timeout)
            with until(limit):
                self._call(place, partial(_fill, self._settings, file, self._label(file), say))
        except BaseException:
            self._take_back(place, name, say)
            raise
        self._short(place, partial(_finish, self._settings, name))
        say(f"machines start from it when the cloud's settings have 'image: {name}'")
        return _image(name, place, self._label(file))

    def remove(self, image: CloudImage) -> None:
        """Nothing but what is marked as unfinished."""
        self._short(image.place, partial(_drop, self._settings, image.id))

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
            self._short(host, partial(_drop, self._settings, name))
            say(f"broken off; {name} is deleted again")
        except ProviderError as error:
            say(f"broken off; unfinished {name} is left, from which no machine starts: {error}")

    def _short(self, host: str, do: Callable[[Any], object]) -> None:
        with self._hosts.limited():
            self._call(host, do)

    def _call(self, host: str, do: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        return self._hosts.call(host, do)


def volume_name(file: ImageFile) -> str:
    """The volume's, which says its form."""
    return f"{file.name}.{file.form}"


def _begin(settings: LibvirtCloud, name: str, connection: Any) -> None:  # noqa: ANN401
    """The mark; ProviderError where it, or a volume of the name, is there already."""
    pool = connection.storagePoolLookupByName(settings.storage)
    if found(pool.storageVolLookupByName, name + UNFINISHED):
        text = f"an upload of {name} was broken off, or is under way; --again removes it"
        raise ProviderError(settings.name, "UnfinishedImage", text)
    if found(pool.storageVolLookupByName, name):
        text = f"there is another volume called {name}: name yours by --name"
        raise ProviderError(settings.name, "NameTaken", text)
    new_volume(pool, name + UNFINISHED, 512, "raw")


def _fill(
    settings: LibvirtCloud,
    file: ImageFile,
    label: VolumeLabel,
    say: Say,
    connection: Any,  # noqa: ANN401
) -> None:
    pool, name = connection.storagePoolLookupByName(settings.storage), volume_name(file)
    # As raw: libvirt would begin a qcow2 of its own. What it is, is seen by its content.
    target = new_volume(pool, name, file.size, "raw")
    with open(file.path, "rb") as data:
        send(connection, target, file.size, data.read)
    _await_form(pool, name, file.form)
    back = hashlib.sha256()
    for piece in _read(connection, pool.storageVolLookupByName(name), file.size):
        back.update(piece)
    if back.hexdigest() != file.digest:
        text = f"{name} has another content than {file.path}"
        raise ProviderError(settings.name, "BadImage", text)
    say("read back, it is as the file")
    about = msgspec.json.encode(label)
    beside = new_volume(pool, name + LABEL, len(about), "raw")
    send(connection, beside, len(about), io.BytesIO(about).read)


def _await_form(pool: Any, name: str, form: str) -> None:  # noqa: ANN401
    """Libvirt looks at a volume's content when it reads its pool anew."""
    while True:
        with suppress(bindings().libvirtError):  # another volume is being made
            pool.refresh()
            if kind_of(pool.storageVolLookupByName(name)) == form:
                return
        time.sleep(min(_PAUSE, seconds_left()))


def _read(connection: Any, target: Any, size: int) -> Iterator[bytes]:  # noqa: ANN401
    stream = connection.newStream()
    target.download(stream, 0, size)
    while piece := stream.recv(1 << 18):
        seconds_left()
        yield piece
    stream.finish()


def _finish(settings: LibvirtCloud, name: str, connection: Any) -> None:  # noqa: ANN401
    pool = connection.storagePoolLookupByName(settings.storage)
    if mark := found(pool.storageVolLookupByName, name + UNFINISHED):
        mark.delete()


def _drop(settings: LibvirtCloud, name: str, connection: Any) -> None:  # noqa: ANN401
    """The mark goes last, and without it nothing does: the volume may be in use."""
    pool = connection.storagePoolLookupByName(settings.storage)
    if not found(pool.storageVolLookupByName, name + UNFINISHED):
        return
    for one in (name + LABEL, name, name + UNFINISHED):
        if there := found(pool.storageVolLookupByName, one):
            there.delete()


def _listed(settings: LibvirtCloud, host: str, connection: Any) -> list[CloudImage]:  # noqa: ANN401
    pool = connection.storagePoolLookupByName(settings.storage)
    there = {one.name(): one for one in pool.listAllVolumes()}
    bases = {name.removesuffix(end) for name in there for end in (LABEL, UNFINISHED)
             if name.endswith(end)}  # fmt: skip
    listed = []
    for name in sorted(bases | ({settings.image} & there.keys())):
        label = _label_in(connection, there.get(name + LABEL))
        half = name + UNFINISHED in there
        if half or (name in there and (label or name == settings.image)):
            listed.append(_image(name, host, label, half=half))
    return listed


def _label_in(connection: Any, there: Any) -> VolumeLabel | None:  # noqa: ANN401
    if there is None or there.info()[1] > _LONGEST:
        return None
    text = b"".join(_read(connection, there, there.info()[1]))
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(text, type=VolumeLabel)
    return None


def _image(name: str, host: str, label: VolumeLabel | None, *, half: bool = False) -> CloudImage:
    unfinished = "its upload did not come to its end, or is under way" if half else ""
    short = name.removesuffix(".qcow2").removesuffix(".raw")
    if label is None:
        return CloudImage(id=name, name=short, place=host, unfinished=unfinished)
    return CloudImage(
        id=name, name=short, place=host, os=label.os, version=label.version,
        software=frozenset(label.software), created=label.built, size=label.size,
        digest=label.digest, unfinished=unfinished,
    )  # fmt: skip
