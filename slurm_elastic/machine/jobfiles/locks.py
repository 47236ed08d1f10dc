"""Locks between the copies of one user on this host.

A user who may read a file can lock it, and any user can take an abstract socket's name. So each
lock is a file in a directory that only this user can enter.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from typing import ClassVar

PLACE = "/run/slurm-elastic-copier/locks"
"""A directory for each uid, made by root."""
_POLL_S = 0.02


def open_place(uid: int, gid: int) -> int:
    """Open the directory of a user's locks, as root, before the process becomes this user."""
    os.makedirs(PLACE, 0o755, exist_ok=True)
    path = f"{PLACE}/{uid}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        os.chown(path, uid, gid)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


class Locks:
    """``place``: the open directory of the locks; None: root has not made it, and nothing is
    locked.
    """

    guarded_by: ClassVar[dict[str, str]] = {
        "descriptor": "to write one file, or one directory's files"
    }

    def __init__(self, place: int | None) -> None:
        self._place = place

    @contextlib.contextmanager
    def held(
        self, file: os.stat_result, timeout: float, wait: Callable[[], object]
    ) -> Iterator[bool]:
        """Hold the lock of a file or directory, or yield False after ``timeout`` seconds. ``wait``
        is called from time to time.
        """
        if self._place is None:
            yield True
            return
        name, until = f"{file.st_dev}-{file.st_ino}", time.monotonic() + timeout
        while (descriptor := self._locked(self._place, name)) is None:
            if time.monotonic() >= until:
                yield False
                return
            wait()
            time.sleep(_POLL_S)
        try:
            yield True
        finally:
            # While it is held, or the next holder's file would go.
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._place)
            os.close(descriptor)

    def _locked(self, place: int, name: str) -> int | None:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=place)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before us may have removed the file that we have opened.
            if os.stat(name, dir_fd=place).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return None
