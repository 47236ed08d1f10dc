"""The label of an image: a JSON file beside it that says what the image contains.

It uses the terms of joining.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import SlurmElasticError, reason_of


class Label(Struct, frozen=True, kw_only=True):
    """What an image contains.

    ``software``: names with versions, such as ``slurm-24.11.5``. ``version`` and ``codename`` are
    of the Debian release. ``built`` is Unix time. ``secret``: the image contains the munge key.
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
        """The release of Slurm in the image: ``24.11``."""
        versions = [
            w.removeprefix("slurm-") for w in self.software.split() if w.startswith("slurm-")
        ]
        return ".".join(versions[0].split(".")[:2]) if versions else ""


def label_file(image: Path) -> Path:
    """Return the path of an image's label."""
    return image.with_name(f"{image.name}.json")


def write(path: Path, label: Label) -> None:
    """Write the label atomically."""
    writing.replace(path, msgspec.json.format(msgspec.json.encode(label)), 0o644)


def read(image: Path) -> Label:
    """Return an image's label. SlurmElasticError if it is missing or cannot be read."""
    path = label_file(image)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Label)
    except FileNotFoundError:
        raise SlurmElasticError(
            f"{image} has no label ({path.name}): 'slurm-elastic image build' writes one"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise SlurmElasticError(f"{path} cannot be read: {reason_of(error)}") from None


def labels(directory: Path) -> Iterator[Label]:
    """Return the labels of all images in a directory, newest first. Files without a label are
    skipped.
    """
    image_labels = []
    for path in directory.glob("*.json"):
        image = path.with_suffix("")
        if image.exists():
            try:
                image_labels.append(read(image))
            except SlurmElasticError:
                continue  # another program's file
    return iter(sorted(image_labels, key=lambda label: label.built, reverse=True))
