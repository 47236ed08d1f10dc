"""The label of an image: a file beside it that says what is in it, by the words of joining.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import SlurmElasticError, why


class Label(Struct, frozen=True, kw_only=True):
    """An image's ``name`` and ``file``; ``software`` are words such as ``slurm-24.11.5``.

    ``codename`` is the release of Debian, ``built`` is Unix time; ``secret``: the munge key is in
    it.
    """

    name: str
    file: str
    kind: str
    os: str
    version: str
    codename: str
    software: str
    built: float
    secret: bool = False

    @property
    def slurm(self) -> str:
        """Its release of Slurm: ``24.11``."""
        words = [w.removeprefix("slurm-") for w in self.software.split() if w.startswith("slurm-")]
        return ".".join(words[0].split(".")[:2]) if words else ""


def label_file(image: Path) -> Path:
    """Where an image's label is."""
    return image.with_name(f"{image.name}.json")


def write(path: Path, label: Label) -> None:
    """Put it there, in one step."""
    writing.replace(path, msgspec.json.format(msgspec.json.encode(label)), 0o644)


def read(image: Path) -> Label:
    """The label of an image; SlurmElasticError where it has none that can be read."""
    path = label_file(image)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Label)
    except FileNotFoundError:
        raise SlurmElasticError(
            f"{image} has no label ({path.name}): 'slurm-elastic image build' writes one"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise SlurmElasticError(f"{path} cannot be read: {why(error)}") from None


def labels(directory: Path) -> Iterator[Label]:
    """All images in a directory, the newest first."""
    found = []
    for path in directory.glob("*.json"):
        image = path.with_suffix("")
        if image.exists():
            try:
                found.append(read(image))
            except SlurmElasticError:
                continue  # another program's file
    return iter(sorted(found, key=lambda label: label.built, reverse=True))
