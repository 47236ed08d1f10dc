"""Paths in an image's tree, as a machine of the image has them: its links lead nowhere else.

Links of packages and of a site's files are absolute as often as not, and on this host they lead to
this host's own files. Nothing runs in the tree meanwhile that could exchange one.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from slurm_elastic.base.errors import SlurmElasticError

_LINKS = 40
"""As many as the kernel follows; see path_resolution(7)."""


def entry(tree: Path, name: str | PurePosixPath) -> Path:
    """Where ``name`` (with or without its first slash) is in the tree, though it may be a link."""
    path = PurePosixPath(name)
    return target(tree, path.parent) / path.name


def target(tree: Path, name: str | PurePosixPath) -> Path:
    """Where ``name`` leads to in the tree, which need not be there; SlurmElasticError for links
    that lead in a circle.
    """
    rest = list(reversed(_parts(name)))
    found: list[str] = []
    links = 0
    while rest:
        part = rest.pop()
        if part == "..":
            found = found[:-1]
            continue
        place = tree.joinpath(*found, part)
        if not place.is_symlink():
            found.append(part)
            continue
        links += 1
        if links > _LINKS:
            raise SlurmElasticError(f"/{name} of the image: found links that lead in a circle")
        told = os.readlink(place)
        if told.startswith("/"):
            found = []
        rest += reversed(_parts(told))
    return tree.joinpath(*found)


def matching(tree: Path, pattern: str) -> Iterator[Path]:
    """The entries, links too, that fit a pattern such as ``etc/*.wants/x.service``."""
    names = [PurePosixPath()]
    for part in _parts(pattern):
        names = [
            name / one
            for name in names
            if (place := target(tree, name)).is_dir()
            for one in sorted(fnmatch.filter(os.listdir(place), part))
        ]
    return (entry(tree, name) for name in names)


def write(tree: Path, name: str, text: str | bytes, mode: int | None = None) -> None:
    """The file, with the directories that it needs; it keeps its mode where none is given."""
    place = target(tree, name)
    place.parent.mkdir(parents=True, exist_ok=True)
    if mode is not None:
        place.touch(mode=mode)
        place.chmod(mode)
    place.write_bytes(text.encode() if isinstance(text, str) else text)


def _parts(name: str | PurePosixPath) -> list[str]:
    return [part for part in str(name).split("/") if part not in ("", ".")]
