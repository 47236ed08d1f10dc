"""Locks that one process holds for as long as it works.

flock(2) belongs to the open file, so the kernel releases the lock with the process, however that
ends. On NFS the server keeps the lock (nfs(5)), so it holds among the hosts that share a directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.base import ownfile, writing
from slurm_elastic.state import statedir

_MAX_HOLDER_BYTES = 200


class HeldError(OSError):
    """Another process holds the lock. ``holder``: its host and pid, "" if they are unknown."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(errno.EWOULDBLOCK, "another process holds the lock", str(path))
        self.holder = holder


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock of the file ``path``, which is made if it is missing.

    Raises HeldError at once if another process holds it, and OSError if the file cannot be opened.
    """
    descriptor = take(path)
    try:
        yield
    finally:
        os.close(descriptor)


def take(path: Path) -> int:
    """Take the lock as ``hold``, and return the descriptor. To close it releases the lock."""
    descriptor = _opened(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        holder = _holder(descriptor)
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise HeldError(path, holder) from None
        raise
    with contextlib.suppress(OSError):  # a full or read-only disk; the name is only for people
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.uname().nodename}, pid {os.getpid()}\n".encode(), 0)
    return descriptor


def _holder(descriptor: int) -> str:
    with contextlib.suppress(OSError):
        content = os.pread(descriptor, _MAX_HOLDER_BYTES, 0)
        return content.decode(errors="replace").partition("\n")[0]
    return ""


def _opened(path: Path) -> int:
    """Open the file. On a read-only disk an existing file is enough for flock()."""
    is_new = not path.exists()
    try:
        descriptor = ownfile.opened(path, os.O_RDWR | os.O_CREAT, statedir.FILE)
    except OSError as error:
        if error.errno != errno.EROFS or is_new:
            raise
        return ownfile.opened(path, os.O_RDONLY)
    if is_new and (owner := writing.owner_in(path.parent)) is not None:
        os.fchown(descriptor, *owner)
    return descriptor
