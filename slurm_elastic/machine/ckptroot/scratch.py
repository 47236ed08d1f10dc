"""A job's directory on this machine, for what is of no use after its session.

It is root's, and the session locks it for as long as it lives. Each session removes what killed
ones have left. Files that a user is to write there get a small file system of their own, which only
the session and its children have mounted: the user cannot fill more than that, and it ends with
them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from . import files
from .kernel import mount_small, unmount, unshare_mounts
from .site import Refused

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | files.SAFE
_PATIENCE = 5.0
"""Seconds that another session may take to let go of the directory: it removes it, or is ending."""


class Scratch:
    """The directory of one job, made when it is first asked for."""

    def __init__(self, root: Path, job: int) -> None:
        self._root = root
        self._path = root / str(job)
        self._lock: int | None = None
        self._mounted = False

    def path(self) -> Path:
        """The directory, root's own."""
        if self._lock is None:
            _own(self._root, 0o711)
            sweep(self._root)
            self._lock = self._take()
        return self._path

    def of_user(self, uid: int, gid: int) -> Path:
        """The same, given to the user for good; Refused if it cannot be bounded."""
        path = self.path()
        if not self._mounted:
            try:
                unshare_mounts()
                mount_small(str(path), uid, gid)
            except OSError as error:
                raise Refused(f"{path}: no file system of its own: {error.strerror}") from error
            self._mounted = True
        return path

    def close(self) -> None:
        """Remove it; a later session removes what we cannot remove now."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError, Refused):
            if self._mounted:
                unmount(str(self._path))
            files.remove(self._path)
        os.close(self._lock)
        self._lock, self._mounted = None, False

    def _take(self) -> int:
        """Lock it. Another session may be removing what we have just made; then we try again."""
        until = time.monotonic() + _PATIENCE
        while True:
            with contextlib.suppress(FileNotFoundError):
                _own(self._path, 0o700)
            lock = locked(self._path)
            if lock is not None:
                return lock
            if time.monotonic() > until:
                raise Refused(f"{self._path}: another session has it")
            time.sleep(0.01)


def sweep(root: Path) -> None:
    """Remove the directories of jobs whose sessions are gone, and nothing else."""
    for path in (path for path in root.iterdir() if path.name.isdigit()):
        with contextlib.suppress(OSError, Refused):
            lock = locked(path)
            if lock is not None:
                try:
                    files.remove(path)
                finally:
                    os.close(lock)


def _own(path: Path, mode: int) -> None:
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if path.is_symlink() or path.lstat().st_uid != 0:
        raise Refused(f"{path}: not root's own directory")
    path.chmod(mode)


def locked(path: Path) -> int | None:
    """A descriptor of the directory, locked; None if there is none, or another session has it."""
    try:
        lock = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return None
    ours = False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It may have been removed, and made anew, before we had the lock.
        ours = os.path.samestat(os.fstat(lock), path.lstat())
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if not ours:
            os.close(lock)
    return lock if ours else None
