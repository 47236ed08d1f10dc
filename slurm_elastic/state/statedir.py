"""The modes of the state directory, which only SlurmUser may open, and their repair.

A user who can open a file can lock it, and a lock on sqlite's shared memory or on a service's lock
file stops the product. So no other user may open any file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

DIRECTORY, FILE = 0o700, 0o600
"""The modes of the state directory and of all files in it, whatever the umask."""
OTHERS = 0o077
_DEEPEST = 16
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


@contextlib.contextmanager
def private_umask() -> Iterator[None]:
    """Inside, new files are open to this user only, also files that sqlite or a library makes."""
    before = os.umask(OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def close_to_others(path: Path, uid: int) -> int:
    """Remove the rights of users other than ``uid`` from the directory ``path``, then from files in
    it. Return the number of changed files and directories.

    Links are not followed. Files of other owners and unreadable files are logged and stay as they
    are. Raises OSError if the directory itself cannot be opened.
    """
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _close(top, str(path), uid, _DEEPEST)
    finally:
        os.close(top)


def _close(directory: int, name: str, uid: int, depth: int) -> int:
    # The directory first: after that no other user can reach its entries.
    changed = int(_tighten(directory, name, uid))
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries]
    for entry in names:
        try:
            changed += _close_entry(directory, entry, f"{name}/{entry}", uid, depth)
        except FileNotFoundError:  # Gone since the listing.
            pass
        except OSError as error:  # such as lost+found of root: the other files are still closed
            log.warning("%s/%s is not closed to other users: %s", name, entry, error.strerror)
    return changed


def _close_entry(directory: int, entry: str, name: str, uid: int, depth: int) -> int:
    # O_PATH: closing any other descriptor of a file drops this process's POSIX locks on it, and
    # sqlite has such locks.
    descriptor = os.open(entry, os.O_PATH | _FLAGS, dir_fd=directory)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISLNK(mode):
            return 0
        if not stat.S_ISDIR(mode) or depth == 0:
            return int(_tighten(descriptor, name, uid))
        inside = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(descriptor)
    try:
        return _close(inside, name, uid, depth - 1)
    finally:
        os.close(inside)


def _tighten(descriptor: int, name: str, uid: int) -> bool:
    status = os.fstat(descriptor)
    if not status.st_mode & OTHERS:
        return False
    if status.st_uid != uid:
        log.warning("%s belongs to uid %d, not to %d, and stays as it is", name, status.st_uid, uid)
        return False
    # Use the descriptor, because the name may lead to another file since the open. Only rwx bits: a
    # service under RestrictSUIDSGID= may not set setgid (systemd.exec(5)), and nothing needs it.
    os.chmod(f"/proc/self/fd/{descriptor}", status.st_mode & stat.S_IRWXU)
    return True
