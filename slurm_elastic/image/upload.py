"""``image upload``: a file with its label into a cloud, once for each place that needs it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.image import label
from slurm_elastic.model.boot_image import CloudImage, ImageFile
from slurm_elastic.model.protocols import ImageStore

Say = Callable[[str], None]


def image_file(path: Path, name: str | None, seen_as: str | None) -> ImageFile:
    """The file with what its label says; ConfigError where either cannot be read."""
    try:
        about = label.read(path)
        size = path.stat().st_size
        with path.open("rb") as data:
            digest = hashlib.file_digest(data, "sha256").hexdigest()
    except (SlurmElasticError, OSError) as error:
        raise ConfigError(str(error) if path.is_file() else f"{path} is no file") from None
    if not size:
        raise ConfigError(f"{path}: found an empty file, expected an image")
    return ImageFile(
        path=str(path.resolve()), form=about.kind, size=size, digest=digest,
        name=(name or about.name).removesuffix(f".{about.kind}"),
        os=about.os, version=about.version, built=about.built,
        software=tuple(about.software.split()), seen_as=seen_as,
    )  # fmt: skip


def upload(
    store: ImageStore, file: ImageFile, say: Say, *, again: bool = False, dry_run: bool = False
) -> None:
    """Have each place of the cloud have it; where it is there already, nothing is done. ``again``
    removes what an earlier upload of the file has left. ConfigError for what the cloud does not
    take, SlurmElasticError where another image has the name.
    """
    if file.form not in store.forms:
        expected = " or ".join(store.forms)
        raise ConfigError(
            f"{file.path}: found {file.form}, expected {expected} for this cloud; 'image build' "
            f"makes one of the name NAME.{store.forms[0]}"
        )
    steps = store.steps(file)
    there = store.images()
    for place in store.places:
        tell = _at(place, say)
        here = [one for one in there if one.place == place]
        same = (one for one in here if one.digest == file.digest and not one.unfinished)
        if whole := next(same, None):
            tell(f"there already: {whole.name} ({whole.id})")
            continue
        _left_over(store, here, file, again and not dry_run, tell)
        if dry_run:
            for step in steps:
                tell(f"would {step}")
            continue
        made = store.upload(file, place, tell)
        tell(f"{made.name} ({made.id}) is there")


def _at(place: str, say: Say) -> Say:
    """``say`` with the place's name, where it has one."""
    return lambda text: say(f"{place}: {text}" if place else text)


def _left_over(
    store: ImageStore, here: Sequence[CloudImage], file: ImageFile, again: bool, say: Say
) -> None:
    """Tell of what an upload of the file, or by its name, has left, and remove it if that is
    wished; refuse a name that another image has.
    """
    for one in here:
        named = one.own and one.name == file.name
        if one.unfinished and (named or one.digest == file.digest):
            if again:
                store.remove(one)
            rest = "removed" if again else "no pool takes it, --again removes it"
            say(f"{one.name} ({one.id}) is of an earlier upload, {one.unfinished}: {rest}")
        elif named and one.digest != file.digest:
            raise SlurmElasticError(
                f"the cloud has another image called {one.name} ({one.id}): name yours by --name"
            )
