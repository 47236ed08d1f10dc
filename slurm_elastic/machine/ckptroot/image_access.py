"""Lets a process of the user's get at an image, which is root's: root opens the directory for it.

Nobody else gets in, whatever the modes of the images are: the directory above is closed to users. A
copy for the user would take time and memory that the job may not have.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from . import files


def show(directory: Path) -> None:
    """Let a process of the user's that has the images' directory open read them."""
    directory.parent.chmod(0o750)
    directory.chmod(0o2755)
    for entry in directory.iterdir():
        if entry.name.endswith((".img", ".dmtcp")):
            entry.chmod(0o644)


@contextlib.contextmanager
def handed(directory: Path, uid: int) -> Iterator[int]:
    """A descriptor of the directory, for a process of the user's that is to make an image there.
    The directory is root's again afterwards.
    """
    directory.parent.chmod(0o750)
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | files.SAFE)
    try:
        os.fchown(place, uid, -1)
        yield place
    finally:
        try:
            os.fchown(place, 0, -1)
            for name in os.listdir(place):
                os.chown(name, 0, -1, dir_fd=place, follow_symlinks=False)
        finally:
            os.close(place)
