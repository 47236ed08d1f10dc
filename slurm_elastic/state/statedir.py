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
"""Files that are made in it have these modes, whatever the umask."""
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
    """Take from everybody but ``uid`` the rights that modes give in the directory ``path``, itself
    first; say how many files and directories had any.

    No link is followed, and nothing of another owner is touched: that is logged, as is what cannot
    be looked at. Raises OSError where the directory itself cannot be opened.
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
        # As of another user's lost+found: it keeps nothing else open.
        except OSError as error:
            log.warning("%s/%s is not closed to other users: %s", name, entry, error.strerror)
    return changed


def _close_entry(directory: int, entry: str, name: str, uid: int, depth: int) -> int:
    # Closing a descriptor that was opened with O_PATH drops none of sqlite's locks on the file.
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
    # By its descriptor: what stands under the name by now may be something else. Without setgid,
    # which a service under RestrictSUIDSGID= may not give (systemd.exec(5)), nor needs.
    os.chmod(f"/proc/self/fd/{descriptor}", status.st_mode & stat.S_IRWXU)
    return True
