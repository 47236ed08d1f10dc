"""A disk of the node's own, which an image is written to while its job stands still.

The shared directory may be as slow as the network, and on NFS a file is written out when it is
closed. So a job that is saved while it works runs on as soon as its image is on this disk, and the
image is copied afterwards.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from . import files
from .scratch import Scratch
from .site import Refused, Site

_OWN = "slurm-elastic-stage"
"""Our own directory there, as the site may use the disk for other things, too."""
_IMAGE = "image"
_FILES = 100_000


class NodeDisk:
    """One job's part of the disk. ``tell`` is told once if we do not use it, and why."""

    def __init__(self, site: Site, job: int, tell: Callable[[str], None]) -> None:
        self._keep_free = site.keep_free
        self._scratch = Scratch(site.stage / _OWN, job) if site.stage else None
        self._tell = tell
        self._told = False

    @contextlib.contextmanager
    def directory(self, image: Path, need: int, most: int) -> Iterator[tuple[Path, int]]:
        """Where to write an image of about ``need`` bytes first, and how many bytes it may have
        there; ``move`` takes it on. That is a new directory on this disk, or ``image`` itself with
        ``most`` if there is no such disk or too little room on it.
        """
        made, room = self._new(need)
        try:
            yield (made, min(room, most)) if made else (image, most)
        finally:
            if made:
                with contextlib.suppress(OSError, Refused):  # the job's next save removes it
                    files.remove(made)

    def close(self) -> None:
        """Remove all that the job has here."""
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
        except (OSError, Refused) as error:
            if not self._told:
                self._tell(f"its images go to the shared directory at once: stage: {error}")
            self._told = True
            return None, 0
        return path, room

    def _room(self, path: Path, need: int) -> int:
        there = os.statvfs(path)
        free = there.f_frsize * there.f_bavail
        room = free - self._keep_free.of(there.f_frsize * there.f_blocks)
        if need > room:
            raise Refused(f"{need >> 20} MiB needed, {max(room, 0) >> 20} MiB left")
        return room


def move(made: Path, image: Path, most: int) -> None:
    """Move the files of an image to their place, at most ``most`` bytes of data; Refused or OSError
    if that fails.
    """
    if made == image:
        return
    with files.directory(made) as place:
        for name in files.names(place, _FILES):
            with files.held(made / name) as source:
                mode = stat.S_IMODE(os.fstat(source).st_mode)
                most -= files.copy_file(source, image / name, mode, most)
            os.unlink(name, dir_fd=place)
