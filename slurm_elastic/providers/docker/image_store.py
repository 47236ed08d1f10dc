"""Images of the engines: a tar file imported on each host, with its labels, in one request."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from slurm_elastic.base.errors import ConfigError, ProviderError
from slurm_elastic.config import Cluster
from slurm_elastic.model.boot_image import CloudImage, ImageFile
from slurm_elastic.model.cluster import Pool
from slurm_elastic.policies.launch.images import software_of
from slurm_elastic.providers.base.hosts import until
from slurm_elastic.providers.base.image_marks import image_marks, upload_limit
from slurm_elastic.providers.base.tags import PREFIX as TAGS
from slurm_elastic.providers.docker.client import Client
from slurm_elastic.providers.docker.engines import Engines
from slurm_elastic.providers.docker.requests import PREFIX
from slurm_elastic.providers.docker.settings import DockerCloud

# A container has all labels of its image. By the label that machines have, whatever anybody runs of
# the image would be taken for a machine, and ended.
LABELS = f"{PREFIX}image."
DIGEST, OS, VERSION, SOFTWARE = (f"{LABELS}{w}" for w in ("digest", "os", "version", "software"))
LATEST = ":latest"
_NAME = re.compile(r"[a-z0-9]+([._/:-]+[a-z0-9]+)*")


class EngineImages:
    """The images of all hosts of a cloud; see protocols.ImageStore. None is ever there by half."""

    forms: tuple[str, ...] = ("tar",)

    def __init__(self, settings: DockerCloud, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._engines = Engines(settings)
        self.places: tuple[str, ...] = tuple(settings.hosts)

    def images(self) -> Sequence[CloudImage]:
        """One for each name; those without are nobody's to start from."""
        with self._engines.limited():
            return [
                one
                for host in self.places
                for row in self._engines.call(host, lambda client: list(client.images()))
                for one in _named(row, host)
            ]

    def steps(self, file: ImageFile) -> Sequence[str]:
        """One; ConfigError for a name that engines do not take."""
        if not _NAME.fullmatch(file.name):
            expected = "small letters and digits, with . _ - / and a tag after : between"
            raise ConfigError(f"--name: found {file.name!r}, expected {expected}")
        return (f"import {file.size >> 20} MiB as {file.name}, with its labels",)

    def upload(self, file: ImageFile, place: str, say: Callable[[str], None]) -> CloudImage:
        """An engine that gets less than the whole file makes no image."""
        say(f"{file.size >> 20} MiB are imported as {file.name}")
        limit = time.monotonic() + upload_limit(file.size, self._settings.timeout)
        with until(limit):
            told = self._engines.call(place, lambda client: self._import(client, file))
            if why := _complaint(told):
                raise ProviderError(self._settings.name, "ImportFailed", f"{place}: {why}")
            row = self._engines.call(place, lambda client: client.images(name=file.name))
        found = [one for r in row for one in _named(r, place) if one.digest == file.digest]
        if not found:
            text = f"{place}: the engine has no {file.name} with the labels of the file"
            raise ProviderError(self._settings.name, "BadImage", text)
        say(f"machines start from it when the cloud's settings have 'image: {file.name}'")
        return found[0]

    def remove(self, image: CloudImage) -> None:
        """Not what a container uses."""
        with self._engines.limited():
            self._engines.call(image.place, lambda client: client.remove_image(image.id))

    def start_of(self, pool: Pool) -> str:  # noqa: ARG002 - all have one image
        """The name that the settings have."""
        return _whole(self._settings.image)

    def _import(self, client: Client, file: ImageFile) -> str:
        name, _, tag = _whole(file.name).rpartition(":")
        marks = image_marks(file, self._cluster).items()
        labels = {key.replace(TAGS, LABELS): value for key, value in marks}
        labels |= {OS: file.os, VERSION: file.version, SOFTWARE: " ".join(file.software)}
        changes = [_label(key, value) for key, value in labels.items()]
        with open(file.path, "rb") as data:
            return str(client.import_image(src=data, repository=name, tag=tag, changes=changes))


def _label(key: str, value: str) -> str:
    """An instruction of a Dockerfile, which would replace what follows a ``$``."""
    quoted = msgspec.json.encode(value).decode().replace("$", "\\$")
    return f"LABEL {key}={quoted}"


def _complaint(told: str) -> str:
    """An engine answers 200 and writes what went wrong after that, a line of JSON each."""
    for line in told.splitlines():
        try:
            words = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(words, Mapping) and words.get("error"):
            return str(words["error"])
    return ""


def _whole(name: str) -> str:
    """A name with its tag."""
    return name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}{LATEST}"


def _named(row: Mapping[str, Any], host: str) -> Iterator[CloudImage]:
    labels = row.get("Labels") or {}
    for name in row.get("RepoTags") or ():
        if name.startswith("<none>"):
            continue
        yield CloudImage(
            id=name, name=name.removesuffix(LATEST), place=host, os=labels.get(OS, ""),
            version=labels.get(VERSION, ""), software=software_of(labels.get(SOFTWARE, "")),
            created=float(row.get("Created") or 0), size=int(row.get("Size") or 0),
            digest=labels.get(DIGEST, ""),
        )  # fmt: skip
