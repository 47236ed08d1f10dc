"""Writes files: whole or not at all, on the disk before they go by their name, and through nothing
that somebody else has put in the way.

Who may write in a directory can put a link under any name there that can be foreseen. So a draft
has a name that nobody foresees, is made by us or not at all, and takes its place in one step. One
that a killed program has left goes when its file is written again a day later.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

Owner = tuple[int, int]
"""A user's number and a group's."""
_DRAFT = ".draft"
_BESIDE = "(-journal|-wal|-shm)?"
"""What sqlite has beside its file."""
_LEFT = 86400.0
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
_THROUGH_NO_LINK = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def replace(path: Path, content: bytes, mode: int = 0o600, owner: Owner | None = None) -> None:
    """Put it at ``path``, in the place of what is there, be it a link. OSError for what a name of
    /dev leads to: root would take it away from all others.
    """
    require_no_device(path)
    with draft(path, content, mode, owner) as made:
        _rename(made, path, content)
    sync_directory(path.parent)


def create(path: Path, content: bytes, mode: int = 0o600) -> bool:
    """The same, unless something is there by then, which stays. Whether it was put there."""
    with draft(path, content, mode) as made:
        try:
            os.link(made, path)
        except FileExistsError:
            return False
    sync_directory(path.parent)
    return True


def append(path: Path, content: bytes, mode: int = 0o600) -> int:
    """Put it at the end of the file, which is made where there is none; how long that is then."""
    is_new = not path.exists()
    descriptor = os.open(path, _THROUGH_NO_LINK | os.O_APPEND | os.O_CREAT, mode)
    try:
        _write(descriptor, content)
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if is_new:
        sync_directory(path.parent)
    return size


def as_told(path: Path, content: bytes | str, *, executable: bool = False) -> None:
    """Write a file that the caller of a command has named, as the shell's ``>`` does: into what is
    there, be it /dev/stdout, with the rights that the umask leaves.
    """
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    if executable and path.is_file():
        path.chmod(0o755)


@contextlib.contextmanager
def draft(
    path: Path, content: bytes = b"", mode: int = 0o600, owner: Owner | None = None
) -> Iterator[Path]:
    """A file beside ``path``, to be renamed or linked; it is gone at the end otherwise. It is
    closed: sqlite may open it, whose POSIX locks the closing of any descriptor would drop.
    """
    directory, prefix = path.absolute().parent, f".{path.name}."
    _clear(directory, prefix, {os.geteuid(), *(owner or ())[:1]})
    try:
        descriptor, name = tempfile.mkstemp(_DRAFT, prefix, directory)
    except OSError as error:
        raise _about(error, path) from error
    made = Path(name)
    try:
        try:
            os.fchmod(descriptor, mode)
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, *owner)
            if content:
                _write(descriptor, content)
        finally:
            os.close(descriptor)
        yield made
    finally:
        made.unlink(missing_ok=True)


def open_draft(path: Path) -> IO[bytes]:
    """Open a draft to write all of it. OSError if another user of its directory has put a link in
    its place.
    """
    descriptor = os.open(path, _THROUGH_NO_LINK)
    status = os.fstat(descriptor)
    # O_NOFOLLOW does not notice a hard link, but the file of a hard link has a second name.
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EEXIST, "is not the draft that was made", str(path))
    return os.fdopen(descriptor, "wb", buffering=1 << 20)


def owner_in(directory: Path) -> Owner | None:
    """Whom a file there is to belong to: root leaves it to the directory's owner, who is to use it;
    nobody else can choose (None).
    """
    if os.geteuid() != 0:
        return None
    found = directory.stat()
    return found.st_uid, found.st_gid


def sync_directory(directory: Path) -> None:
    """Have the names in it on the disk, where that can be."""
    with contextlib.suppress(OSError):
        require_synced(directory)


def require_synced(directory: Path) -> None:
    """The same; OSError where the disk fails, and not where the file system cannot do that."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


def _clear(directory: Path, prefix: str, owners: Collection[int]) -> None:
    """Remove drafts of these that their programs have left, with what sqlite has beside them, and
    nothing that looks otherwise.
    """
    draft_name = re.compile(rf"{re.escape(prefix)}\w{{8}}{re.escape(_DRAFT)}{_BESIDE}")
    with contextlib.suppress(OSError), os.scandir(directory) as found:
        for one in found:
            if not draft_name.fullmatch(one.name):
                continue
            seen = one.stat(follow_symlinks=False)
            is_old = seen.st_mtime < time.time() - _LEFT
            if is_old and stat.S_ISREG(seen.st_mode) and seen.st_uid in owners:
                os.unlink(one.path)


def _rename(made: Path, path: Path, content: bytes) -> None:
    try:
        os.replace(made, path)
    except OSError as error:
        # A file that is a mount point of its own (containers) can only be written in place.
        if error.errno != errno.EBUSY:
            raise _about(error, path) from error
        descriptor = os.open(path, _THROUGH_NO_LINK | os.O_TRUNC)
        try:
            _write(descriptor, content)
        finally:
            os.close(descriptor)


def require_no_device(path: Path) -> None:
    """OSError for what is there and is no file, as a device or a pipe."""
    try:
        mode = path.stat().st_mode
    except OSError:  # none, or a link to none
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EEXIST, "found no file, expected one or none", str(path))


def _about(error: OSError, path: Path) -> OSError:
    """The same about the file that was asked for: its draft is nothing to a reader."""
    return OSError(error.errno, error.strerror, str(path))


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
    os.fsync(descriptor)
