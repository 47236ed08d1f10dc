"""Opens files in a directory of ours, and refuses whatever an attacker has put in their place.

An attacker who may write in the directory (by a service of SlurmUser's, or as root of another NFS
client) can put a link, a pipe or another user's file there. Without these checks we would append to
the target of the link, or wait for ever for the other end of the pipe.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def opened(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open the file and return its descriptor. OSError if it is no regular file of the directory's
    owner or of our own. A new file gets ``mode``.
    """
    try:
        descriptor = os.open(path, flags | _FLAGS, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "is a link, expected a file", str(path)) from error
    try:
        _require_ours(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def reader(path: Path) -> BinaryIO:
    """Open the file to read it, with the checks of ``opened``."""
    return os.fdopen(opened(path, os.O_RDONLY), "rb", buffering=1 << 20)


def _require_ours(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    # The directory's owner counts as well as our own number: an NFS server may show both the
    # directory and our files as another user's.
    directory = path.parent.stat().st_uid
    # Root's own number counts only in root's directory: elsewhere a hard link leads to root's file.
    owners = {directory, os.geteuid() or directory}
    if status.st_uid not in owners:
        raise OSError(
            errno.EPERM, f"belongs to uid {status.st_uid}, not to uid {directory}", str(path)
        )
