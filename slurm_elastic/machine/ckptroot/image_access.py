"""Give a process of the user's access to an image, which is root's: root opens the directory for
it.

Other processes of the user get no access, whatever the modes of the images: the directory above is
closed to users. A copy for the user would cost time, and memory that the job may not have.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from . import files


def show(directory: Path) -> None:
    """Make the images readable for a process of the user's which has their directory open."""
    directory.parent.chmod(0o750)
    directory.chmod(0o2755)
    for entry in directory.iterdir():
        if entry.name.endswith((".img", ".dmtcp")):
            entry.chmod(0o644)


@contextlib.contextmanager
def handed(directory: Path, uid: int) -> Iterator[int]:
    """Yield a descriptor of the directory, in which a process of the user's may create an image.

    Afterwards the directory and its files are root's again.
    """
    directory.parent.chmod(0o750)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | files.SAFE)
    try:
        os.fchown(descriptor, uid, -1)
        yield descriptor
    finally:
        try:
            os.fchown(descriptor, 0, -1)
            for name in os.listdir(descriptor):
                os.chown(name, 0, -1, dir_fd=descriptor, follow_symlinks=False)
        finally:
            os.close(descriptor)
