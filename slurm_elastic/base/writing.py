"""Writes files. A file is written whole or not at all, and is on the disk before it gets its name.

A user who may write in a directory can put a link there under any name that can be guessed. A draft
therefore has a random name and is created exclusively (mkstemp(3)). One step, a rename or a link,
puts it in its place. If a program is killed, its draft stays, and the next write of the same file
removes it once it is a day old.
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
"""A uid and a gid."""
_DRAFT = ".draft"
_BESIDE = "(-journal|-wal|-shm)?"
"""Files that sqlite creates beside its database."""
_ABANDONED_AFTER_S = 86400.0
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_THROUGH_NO_LINK = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def replace(path: Path, content: bytes, mode: int = 0o600, owner: Owner | None = None) -> None:
    """Write ``content`` to ``path`` in place of a file or link there.

    OSError if ``path`` is a device or a pipe: root would replace /dev/null for the whole host.
    """
    require_no_device(path)
    with draft(path, content, mode, owner) as draft_path:
        _rename(draft_path, path, content)
    sync_directory(path.parent)


def create(path: Path, content: bytes, mode: int = 0o600) -> bool:
    """Write ``content`` to ``path`` unless the name exists. Return whether the file is new."""
    with draft(path, content, mode) as draft_path:
        try:
            os.link(draft_path, path)
        except FileExistsError:
            return False
    sync_directory(path.parent)
    return True


def make_directories(path: Path, mode: int = 0o755) -> list[Path]:
    """Make the directory and its missing parents with this mode, whatever the umask. Return the
    new ones.
    """
    missing = [place for place in (*reversed(path.parents), path) if not place.exists()]
    for directory in missing:
        directory.mkdir()
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
    return missing


def append(path: Path, content: bytes, mode: int = 0o600) -> int:
    """Append to the file, which is created if it is missing. Return its new size (bytes)."""
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
    """Write a file that the caller of a command has named, as the shell's ``>`` does.

    The content goes into any file that is there, even /dev/stdout. A new file gets the umask's
    rights.
    """
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    if executable and path.is_file():
        path.chmod(0o755)


@contextlib.contextmanager
def draft(
    path: Path, content: bytes = b"", mode: int = 0o600, owner: Owner | None = None
) -> Iterator[Path]:
    """Create a file beside ``path``, for the caller to rename or link. At the end of the block the
    file is removed if it still has its draft name.

    No descriptor of the file stays open, because the caller may open the file with sqlite: if the
    process closes any descriptor of a file, it loses its POSIX locks on that file (fcntl(2)).
    """
    directory, prefix = path.absolute().parent, f".{path.name}."
    _clear(directory, prefix, {os.geteuid(), *(owner or ())[:1]})
    try:
        descriptor, name = tempfile.mkstemp(_DRAFT, prefix, directory)
    except OSError as error:
        raise _about(error, path) from error
    draft_path = Path(name)
    try:
        try:
            os.fchmod(descriptor, mode)
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, *owner)
            if content:
                _write(descriptor, content)
        finally:
            os.close(descriptor)
        yield draft_path
    except OSError as error:
        # A write names no file, and a rename names the draft.
        is_of_write = error.filename is None and error.errno in _FULL
        if is_of_write or error.filename == name:
            raise _about(error, path) from error
        raise
    finally:
        draft_path.unlink(missing_ok=True)


def open_draft(path: Path) -> IO[bytes]:
    """Open a draft to write all of it. OSError if another user of its directory has put a link in
    its place.
    """
    descriptor = os.open(path, _THROUGH_NO_LINK)
    status = os.fstat(descriptor)
    # O_NOFOLLOW does not notice a hard link, but the file of a hard link has a second name.
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EEXIST, "is no longer the file that was created", str(path))
    return os.fdopen(descriptor, "wb", buffering=1 << 20)


def owner_in(directory: Path) -> Owner | None:
    """The owner that a new file in ``directory`` needs, or None if this process cannot choose an
    owner.

    Root gives its files to the directory's owner, who must be able to use them.
    """
    if os.geteuid() != 0:
        return None
    status = directory.stat()
    return status.st_uid, status.st_gid


def sync_directory(directory: Path) -> None:
    """Get the names in the directory onto the disk, as far as that is possible."""
    with contextlib.suppress(OSError):
        require_synced(directory)


def require_synced(directory: Path) -> None:
    """Get the names in the directory onto the disk. OSError if the disk fails, but not if the file
    system cannot sync directories.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


def _clear(directory: Path, prefix: str, owners: Collection[int]) -> None:
    """Remove old drafts with this prefix and these owners, and sqlite's files beside them.

    Other files stay, because the directory may belong to another user.
    """
    draft_name = re.compile(rf"{re.escape(prefix)}\w{{8}}{re.escape(_DRAFT)}{_BESIDE}")
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if not draft_name.fullmatch(entry.name):
                continue
            status = entry.stat(follow_symlinks=False)
            is_old = status.st_mtime < time.time() - _ABANDONED_AFTER_S
            if is_old and stat.S_ISREG(status.st_mode) and status.st_uid in owners:
                os.unlink(entry.path)


def _rename(draft_path: Path, path: Path, content: bytes) -> None:
    try:
        os.replace(draft_path, path)
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
    """OSError if ``path`` is there but is no file or directory, for example a device or a pipe."""
    try:
        mode = path.stat().st_mode
    except OSError:  # nothing is there, or a link that leads to nothing
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EEXIST, "exists and is no regular file", str(path))


def _about(error: OSError, path: Path) -> OSError:
    """The error with ``path`` in place of the draft's name, which means nothing to a reader."""
    return OSError(error.errno, error.strerror, str(path))


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
    os.fsync(descriptor)
