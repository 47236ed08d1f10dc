"""Resolve paths in an image's tree as a machine of the image would: links stay inside the tree.

Links of packages and of a site's files are often absolute, so on this host they would lead to this
host's own files. No process runs in the tree that could exchange a link during a call.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from slurm_elastic.base.errors import SlurmElasticError

_MAX_LINKS = 40
"""The kernel's own limit; see path_resolution(7)."""


def entry(tree: Path, name: str | PurePosixPath) -> Path:
    """Return the path of ``name`` in the tree, with links in its directories resolved. The entry
    itself may be a link.
    """
    path = PurePosixPath(name)
    return target(tree, path.parent) / path.name


def target(tree: Path, name: str | PurePosixPath) -> Path:
    """Return the path that ``name`` leads to in the tree, with all links resolved. It need not
    exist.

    SlurmElasticError if links lead in a circle.
    """
    pending = list(reversed(_parts(name)))
    resolved: list[str] = []
    links = 0
    while pending:
        component = pending.pop()
        if component == "..":
            resolved = resolved[:-1]
            continue
        place = tree.joinpath(*resolved, component)
        if not place.is_symlink():
            resolved.append(component)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise SlurmElasticError(f"/{name} of the image: found links that lead in a circle")
        link_target = os.readlink(place)
        if link_target.startswith("/"):
            resolved = []
        pending += reversed(_parts(link_target))
    return tree.joinpath(*resolved)


def matching(tree: Path, pattern: str) -> Iterator[Path]:
    """Return the entries, links too, that match a pattern such as ``etc/*.wants/x.service``."""
    names = [PurePosixPath()]
    for component in _parts(pattern):
        names = [
            name / child
            for name in names
            if (directory := target(tree, name)).is_dir()
            for child in sorted(fnmatch.filter(os.listdir(directory), component))
        ]
    return (entry(tree, name) for name in names)


def write(tree: Path, name: str, text: str | bytes, mode: int | None = None) -> None:
    """Write a file and create its directories. Without ``mode`` an existing file keeps its mode."""
    path = target(tree, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode is not None:
        path.touch(mode=mode)
        path.chmod(mode)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def _parts(name: str | PurePosixPath) -> list[str]:
    return [component for component in str(name).split("/") if component not in ("", ".")]
