"""``image upload``: copy an image with its label into a cloud, once to each place that needs it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.image import label
from slurm_elastic.model.boot_image import CloudImage, ImageFile
from slurm_elastic.model.image_store import ImageStore

Say = Callable[[str], None]


def image_file(path: Path, name: str | None, seen_as: str | None) -> ImageFile:
    """Return the image with the data of its label. ConfigError if either cannot be read."""
    try:
        image_label = label.read(path)
        size = path.stat().st_size
        with path.open("rb") as data:
            digest = hashlib.file_digest(data, "sha256").hexdigest()
    except (SlurmElasticError, OSError) as error:
        raise ConfigError(str(error) if path.is_file() else f"{path} is no file") from None
    if not size:
        raise ConfigError(f"{path}: found an empty file, expected an image")
    return ImageFile(
        path=str(path.resolve()), form=image_label.kind, size=size, digest=digest,
        name=(name or image_label.name).removesuffix(f".{image_label.kind}"),
        os=image_label.os, version=image_label.version, built=image_label.built,
        software=tuple(image_label.software.split()), seen_as=seen_as,
    )  # fmt: skip


def upload(
    store: ImageStore, file: ImageFile, say: Say, *, again: bool = False, dry_run: bool = False
) -> None:
    """Upload the image to each place of the cloud that does not have it yet.

    ``again``: remove the rest of an earlier, unfinished upload. ConfigError if the cloud does not
    take this format. SlurmElasticError if another image has the name.
    """
    if file.form not in store.forms:
        expected = " or ".join(store.forms)
        raise ConfigError(
            f"{file.path}: found {file.form}, expected {expected} for this cloud; 'image build' "
            f"makes one of the name NAME.{store.forms[0]}"
        )
    steps = store.steps(file)
    images = store.images()
    for place in store.places:
        say_here = _with_place(place, say)
        images_here = [image for image in images if image.place == place]
        complete = (
            image for image in images_here if image.digest == file.digest and not image.unfinished
        )
        if present := next(complete, None):
            say_here(f"there already: {present.name} ({present.id})")
            continue
        _clear_unfinished(store, images_here, file, again and not dry_run, say_here)
        if dry_run:
            for step in steps:
                say_here(f"would {step}")
            continue
        uploaded = store.upload(file, place, say_here)
        say_here(f"{uploaded.name} ({uploaded.id}) is there")


def _with_place(place: str, say: Say) -> Say:
    """Return ``say`` with the place's name before each text, if it has one."""
    return lambda text: say(f"{place}: {text}" if place else text)


def _clear_unfinished(
    store: ImageStore, images_here: Sequence[CloudImage], file: ImageFile, again: bool, say: Say
) -> None:
    """Report unfinished uploads of this file or with its name, and remove them with ``again``.

    SlurmElasticError if another image has the file's name.
    """
    for image in images_here:
        has_name = image.own and image.name == file.name
        if image.unfinished and (has_name or image.digest == file.digest):
            if again:
                store.remove(image)
            outcome = "removed" if again else "no pool takes it, --again removes it"
            say(f"{image.name} ({image.id}) is of an earlier upload, {image.unfinished}: {outcome}")
        elif has_name and image.digest != file.digest:
            raise SlurmElasticError(
                f"the cloud has another image called {image.name} ({image.id}): "
                "name yours by --name"
            )
