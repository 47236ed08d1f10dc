"""A disk of the node's own, to which an image is written while its job stands still.

The shared directory may be as slow as the network, and NFS writes a file out when it is closed.
A job saved while it works continues as soon as its image is on this disk. The image is copied to
the shared directory afterwards.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from . import files
from .scratch import Scratch
from .site import HelperSite, RequestRefused

_DIRECTORY = "slurm-elastic-stage"
"""Our own directory on the disk. The site may use the disk for other purposes, too."""
_IMAGE = "image"
_MAX_FILES = 100_000


class NodeDisk:
    """One job's part of the disk. If the disk is not used, ``tell`` is called once with
    the reason.
    """

    def __init__(self, site: HelperSite, job: int, tell: Callable[[str], None]) -> None:
        self._keep_free = site.keep_free
        self._scratch = Scratch(site.stage / _DIRECTORY, job) if site.stage else None
        self._tell = tell
        self._reported = False

    @contextlib.contextmanager
    def directory(self, image: Path, need: int, max_bytes: int) -> Iterator[tuple[Path, int]]:
        """Yield the directory for a new image of about ``need`` bytes, and the maximum bytes of the
        image.

        The directory is new and on this disk; ``move`` then copies the image to its place. If there
        is no such disk, or no room on it, the directory is ``image`` itself and the maximum
        ``max_bytes``.
        """
        new_directory, room = self._new(need)
        try:
            yield (new_directory, min(room, max_bytes)) if new_directory else (image, max_bytes)
        finally:
            if new_directory:
                with contextlib.suppress(OSError, RequestRefused):  # the job's next save removes it
                    files.remove(new_directory)

    def close(self) -> None:
        """Remove all files of the job on this disk."""
        if self._scratch:
            self._scratch.close()

    def _new(self, need: int) -> tuple[Path | None, int]:
        if not self._scratch:
            return None, 0
        try:
            path = self._scratch.path() / _IMAGE
            files.remove(path)
            room = self._room(path.parent, need)
            path.mkdir(mode=0o700)
        except (OSError, RequestRefused) as error:
            if not self._reported:
                self._tell(f"its images go to the shared directory at once: stage: {error}")
            self._reported = True
            return None, 0
        return path, room

    def _room(self, path: Path, need: int) -> int:
        file_system = os.statvfs(path)
        free = file_system.f_frsize * file_system.f_bavail
        room = free - self._keep_free.of(file_system.f_frsize * file_system.f_blocks)
        if need > room:
            raise RequestRefused(f"{need >> 20} MiB needed, {max(room, 0) >> 20} MiB left")
        return room


def move(staged: Path, image: Path, max_bytes: int) -> None:
    """Move the files of an image to their place, at most ``max_bytes`` of data. RequestRefused or
    OSError.
    """
    if staged == image:
        return
    with files.directory(staged) as directory:
        for name in files.names(directory, _MAX_FILES):
            with files.held(staged / name) as source:
                mode = stat.S_IMODE(os.fstat(source).st_mode)
                max_bytes -= files.copy_file(source, image / name, mode, max_bytes)
            os.unlink(name, dir_fd=directory)
