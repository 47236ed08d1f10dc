"""Images of the engines: a tar file is imported on each host, with its labels, in one request."""

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
from slurm_elastic.providers.base.hosts.hosts import until
from slurm_elastic.providers.base.image_marks import image_marks, upload_limit
from slurm_elastic.providers.base.tags import PREFIX as TAGS
from slurm_elastic.providers.docker.client import DockerClient
from slurm_elastic.providers.docker.engines import Engines
from slurm_elastic.providers.docker.requests import PREFIX
from slurm_elastic.providers.docker.settings import DockerCloud

# A container has all labels of its image. If an image had the label of machines, every container
# started from it by hand would look like a machine of ours and be ended.
LABELS = f"{PREFIX}image."
DIGEST, OS, VERSION, SOFTWARE = (f"{LABELS}{w}" for w in ("digest", "os", "version", "software"))
LATEST = ":latest"
_NAME = re.compile(r"[a-z0-9]+([._/:-]+[a-z0-9]+)*")


class EngineImages:
    """The images of all hosts of a cloud. See image_store.ImageStore. An engine never has an
    incomplete image.
    """

    forms: tuple[str, ...] = ("tar",)

    def __init__(self, settings: DockerCloud, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._engines = Engines(settings)
        self.places: tuple[str, ...] = tuple(settings.hosts)

    def images(self) -> Sequence[CloudImage]:
        """One entry for each name. An image without a name cannot be used."""
        with self._engines.limited():
            return [
                image
                for host in self.places
                for row in self._engines.call(host, lambda client: list(client.images()))
                for image in _named(row, host)
            ]

    def steps(self, file: ImageFile) -> Sequence[str]:
        """The only step of an upload. ConfigError for a name that engines do not accept."""
        if not _NAME.fullmatch(file.name):
            expected = "small letters and digits, with . _ - / and a tag after : between"
            raise ConfigError(f"--name: found {file.name!r}, expected {expected}")
        return (f"import {file.size >> 20} MiB as {file.name}, with its labels",)

    def upload(self, file: ImageFile, place: str, say: Callable[[str], None]) -> CloudImage:
        """Import the file. An engine that does not get the whole file creates no image."""
        say(f"{file.size >> 20} MiB are imported as {file.name}")
        limit = time.monotonic() + upload_limit(file.size, self._settings.api_timeout)
        with until(limit):
            output = self._engines.call(place, lambda client: self._import(client, file))
            if error_text := _error_in(output):
                raise ProviderError(self._settings.name, "ImportFailed", f"{place}: {error_text}")
            row = self._engines.call(place, lambda client: client.images(name=file.name))
        images = [image for r in row for image in _named(r, place) if image.digest == file.digest]
        if not images:
            text = f"{place}: the engine has no {file.name} with the labels of the file"
            raise ProviderError(self._settings.name, "BadImage", text)
        say(f"machines start from it when the cloud's settings have 'image: {file.name}'")
        return images[0]

    def remove(self, image: CloudImage) -> None:
        """Delete the image. The engine refuses if a container uses it."""
        with self._engines.limited():
            self._engines.call(image.place, lambda client: client.remove_image(image.id))

    def start_of(self, pool: Pool) -> str:  # noqa: ARG002 - all have one image
        """The image name in the settings."""
        return _with_tag(self._settings.image)

    def _import(self, client: DockerClient, file: ImageFile) -> str:
        name, _, tag = _with_tag(file.name).rpartition(":")
        marks = image_marks(file, self._cluster).items()
        labels = {key.replace(TAGS, LABELS): value for key, value in marks}
        labels |= {OS: file.os, VERSION: file.version, SOFTWARE: " ".join(file.software)}
        changes = [_label(key, value) for key, value in labels.items()]
        with open(file.path, "rb") as data:
            return str(client.import_image(src=data, repository=name, tag=tag, changes=changes))


def _label(key: str, value: str) -> str:
    """An instruction of a Dockerfile. There a ``$`` begins a variable, so it is escaped."""
    quoted_value = msgspec.json.encode(value).decode().replace("$", "\\$")
    return f"LABEL {key}={quoted_value}"


def _error_in(output: str) -> str:
    """The error in an engine's output; empty if there is none. The engine answers 200 first, and
    reports later errors as lines of JSON.
    """
    for line in output.splitlines():
        try:
            message = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(message, Mapping) and message.get("error"):
            return str(message["error"])
    return ""


def _with_tag(name: str) -> str:
    """The name with its tag."""
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
