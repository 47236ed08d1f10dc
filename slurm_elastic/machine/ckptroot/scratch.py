"""A job's directory on this machine, for files without use after its session.

It is root's, and the session holds its lock for its whole life. Each session removes the
directories of killed sessions. Files that a user must be able to write there get a small file
system of their own, which only the session and its children have mounted. The user cannot fill more
than that, and it ends with them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from . import files
from .kernel import mount_small, unmount, unshare_mounts
from .site import RequestRefused

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | files.SAFE
MAX_FILES = 100_000
"""In the user's part. Its file system has room for fewer, up to 12,000 nodes (``mount_small``)."""
_LOCK_TIMEOUT_S = 5.0
"""Seconds that another session may take to release the directory: it removes it, or is ending."""


class Scratch:
    """The directory of one job, created at its first use."""

    def __init__(self, root: Path, job: int, nodes: int = 0) -> None:
        self._root = root
        self._nodes = nodes  # other nodes of the job, which need room in it
        self._path = root / str(job)
        self._lock: int | None = None
        self._mounted = False

    def path(self) -> Path:
        """Return the directory, which is root's."""
        if self._lock is None:
            _make_own(self._root, 0o711)
            sweep(self._root)
            self._lock = self._take()
        return self._path

    def of_user(self, uid: int, gid: int) -> Path:
        """Return the directory, given to the user for good. RequestRefused if its size cannot be
        limited.
        """
        path = self.path()
        if not self._mounted:
            try:
                unshare_mounts()
                mount_small(str(path), uid, gid, self._nodes)
            except OSError as error:
                raise RequestRefused(
                    f"{path}: no file system of its own: {error.strerror}"
                ) from error
            self._mounted = True
        return path

    def close(self) -> None:
        """Remove the directory. If that fails, a later session removes it."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError, RequestRefused):
            if self._mounted:
                unmount(str(self._path))
            files.remove(self._path)
        os.close(self._lock)
        self._lock, self._mounted = None, False

    def _take(self) -> int:
        """Create and lock the directory. If another session removes it in between, try again."""
        until = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            with contextlib.suppress(FileNotFoundError):
                _make_own(self._path, 0o700)
            lock = locked(self._path)
            if lock is not None:
                return lock
            if time.monotonic() > until:
                raise RequestRefused(f"{self._path}: another session has it")
            time.sleep(0.01)


def sweep(root: Path) -> None:
    """Remove the directories of jobs whose sessions are gone."""
    for path in (path for path in root.iterdir() if path.name.isdigit()):
        with contextlib.suppress(OSError, RequestRefused):
            lock = locked(path)
            if lock is not None:
                try:
                    files.remove(path)
                finally:
                    os.close(lock)


def _make_own(path: Path, mode: int) -> None:
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if path.is_symlink() or path.lstat().st_uid != 0:
        raise RequestRefused(f"{path}: not root's own directory")
    path.chmod(mode)


def locked(path: Path) -> int | None:
    """Return a descriptor of the directory, locked. None if it does not exist, or another session
    has it.
    """
    try:
        lock = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return None
    is_ours = False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It may have been removed and recreated before we had the lock.
        is_ours = os.path.samestat(os.fstat(lock), path.lstat())
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if not is_ours:
            os.close(lock)
    return lock if is_ours else None
