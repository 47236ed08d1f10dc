"""Whether a directory on the head and the directory of the same path on the machine are one.

Both may have the same file system, such as by ``join.mounts``. A copy would then write a file over
itself, and its end would remove the user's only copy. The head makes an empty file with a random
name in each directory, and the machine looks for it. The name is random, because an NFS
client may remember for a while that a name is absent if it has asked for the name before.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping

from .tree import TEMPORARY
from .wire import CopyError, Message

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_MARK = re.compile(re.escape(TEMPORARY) + "[0-9a-f]{32}")
_OLD_NS = 86400 * 10**9
_Mark = list[object]
"""The name of the file, "" if the head may not write there; inode and change time of the directory.
"""


@contextlib.contextmanager
def marked(directories: Collection[str]) -> Iterator[Mapping[str, _Mark]]:
    """Mark the existing directories while the context lasts, and yield the marks."""
    marks: dict[str, _Mark] = {}
    try:
        for directory in directories:
            with contextlib.suppress(OSError):
                marks[directory] = _mark(directory)
        yield marks
    finally:
        for directory, (name, *_) in marks.items():
            with contextlib.suppress(OSError):
                os.unlink(f"{directory}/{name}")


def _mark(directory: str) -> _Mark:
    name = f"{TEMPORARY}{secrets.token_hex(16)}"
    try:
        os.close(os.open(f"{directory}/{name}", _FLAGS, 0o600))
    except OSError:
        name = ""  # its user may not write there, or its disk is full
    status = os.stat(directory)
    if name:
        _remove_old(directory, status.st_ctime_ns)
    return [name, status.st_ino, status.st_ctime_ns]


def _remove_old(directory: str, now_ns: int) -> None:
    """Remove the marks of copies that were killed long ago, by the clock of the file system."""
    for entry in os.scandir(directory):
        if _MARK.fullmatch(entry.name):
            status = entry.stat(follow_symlinks=False)
            if status.st_uid == os.geteuid() and status.st_ctime_ns < now_ns - _OLD_NS:
                os.unlink(entry.path)


def shared_directories(marks: Mapping[str, _Mark]) -> frozenset[str]:
    """The directories that this host has in common with the other end. CopyError if a look fails,
    because an unseen directory may be shared.
    """
    return frozenset(path for path, mark in marks.items() if _is_shared(path, mark))


def _is_shared(directory: str, mark: _Mark) -> bool:
    name, inode, changed_at = mark
    try:
        status = os.stat(directory)
        if not name:
            # No program can set the change time of a directory, so two paths with one change time
            # lead to one directory. Two times prove nothing, because any new file changes the time.
            return [status.st_ino, status.st_ctime_ns] == [inode, changed_at]
        os.lstat(_plain(directory, str(name)))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False  # without the directory or the right to enter it nothing can be removed there
    except OSError as error:
        raise CopyError(f"{directory}: {error.strerror}") from None
    else:
        return True


def unmarked_directories(marks: Mapping[str, _Mark]) -> frozenset[str]:
    """The directories in which the head could make no file. The look at the machine may prove that
    such a directory is shared, but never that it is not.
    """
    return frozenset(path for path, (name, *_) in marks.items() if not name)


def check_different(directory: str, mark: _Mark) -> None:
    """CopyError if the head has no mark in the directory, and it may be the same on both hosts."""
    name, inode, _ = mark
    if name:
        return
    try:
        status = os.stat(directory)
    except FileNotFoundError:
        return
    if status.st_ino == inode or _is_fuse(status.st_dev):
        raise CopyError(
            f"{directory}: the head can make no file there, so it is unknown whether the machine"
            " has the same directory"
        )


def _is_fuse(device: int) -> bool:
    """Whether the file system is of FUSE, such as sshfs: its numbers of files are its own."""
    place = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        rows = [line.split(" - ") for line in mounts]
    return any(
        mount.split()[2] == place and source.startswith("fuse") for mount, source, *_ in rows
    )


def _plain(directory: str, name: str) -> str:
    if "/" in name or not name.startswith(TEMPORARY):
        raise CopyError(f"the other end names the file {name!r}", final=True)
    return f"{directory}/{name}"


def is_in(path: str, directories: Collection[str]) -> bool:
    """Whether the file is directly in any of the directories."""
    return os.path.normpath(os.path.dirname(path)) in directories


def marks_of(header: Message) -> Mapping[str, _Mark]:
    """The marks in the header of a copy."""
    return {str(path): list(mark) for path, mark in dict(header["marks"]).items()}
