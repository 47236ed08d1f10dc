"""Why the files of a store cannot be used, and what a person can do about it."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from enum import StrEnum
from itertools import count
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base import writing

DISK_FULL_TEXT = "is full"
"""The words for a disk without room."""
MAY_COUNT_TEXT = "the failed write may count all the same"
"""The words for lines that the disk neither kept for certain nor let us remove."""
RESERVE_BYTES = 2**20
"""Free bytes that the disk must have for a file to count as usable. Without this reserve the first
failing write would be the warning, which is too late.
"""
ENOUGH_FREE_BYTES = 4 * 2**20
"""Free bytes that the disk must have before a file that was given up is used again."""


class TroubleKind(StrEnum):
    """The kinds of faults of a file that callers handle differently."""

    FULL = "full"
    LOCKED = "locked"
    CORRUPT = "corrupt"
    LOST = "lost"
    READ_ONLY = "read-only"
    UNUSABLE = "unusable"


class Trouble(Struct, frozen=True, kw_only=True):
    """``text``: the fault, as a phrase after a colon. ``remedy``: a sentence."""

    kind: TroubleKind
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy}"


class LostFileError(OSError):
    """The file at the path is not the opened one."""


def note_may_count(error: OSError) -> None:
    """Have the error say that the lines of the failed write may count all the same. A command ends
    after it, so it cannot cut them off later, and the next writer applies whole lines.
    """
    error.strerror = f"{error.strerror}; {MAY_COUNT_TEXT}"


def locked_error(path: Path) -> OSError:
    """The error for a lock that other processes held for too long."""
    return OSError(errno.EWOULDBLOCK, "another process has its lock", str(path))


_WRITABLE = (
    "mount its disk writable, or give the file back to its owner (ls -l {path}); the unit of a"
    " service needs ReadWritePaths={real} (systemctl edit)"
)
_BY_CODE = {
    sqlite3.SQLITE_FULL: TroubleKind.FULL,
    sqlite3.SQLITE_BUSY: TroubleKind.LOCKED,
    sqlite3.SQLITE_LOCKED: TroubleKind.LOCKED,
    sqlite3.SQLITE_PROTOCOL: TroubleKind.LOCKED,
    sqlite3.SQLITE_CORRUPT: TroubleKind.CORRUPT,
    sqlite3.SQLITE_NOTADB: TroubleKind.CORRUPT,
    sqlite3.SQLITE_READONLY: TroubleKind.READ_ONLY,
}
_BY_NUMBER = {
    errno.ENOSPC: TroubleKind.FULL,
    errno.EDQUOT: TroubleKind.FULL,
    errno.EFBIG: TroubleKind.FULL,
    errno.EROFS: TroubleKind.READ_ONLY,
    errno.EWOULDBLOCK: TroubleKind.LOCKED,
}
_NAMED = (TroubleKind.FULL, TroubleKind.LOCKED, TroubleKind.LOST, TroubleKind.READ_ONLY)
"""Troubles of the file or directory that the system's error names, which may be another one."""
_CLOSED = (errno.EACCES, errno.EPERM)
_LASTING = frozenset(
    {
        errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
        errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENOTSOCK, errno.EAFNOSUPPORT,
    }
)  # fmt: skip
"""Troubles that last until an administrator changes the configuration or the file at the path."""


def passes(error: OSError) -> bool:
    """Whether the trouble may pass by itself, or when an administrator has repaired the disk. An
    unknown trouble may pass, because systemd restarts the service then.
    """
    return error.errno is not None and error.errno not in _LASTING


class JournalError(sqlite3.OperationalError):
    """The journal cannot be written or read; its cause is the system's error. A subclass of
    sqlite's error, so that callers handle it like an error of the view.
    """

    @staticmethod
    @contextlib.contextmanager
    def of_system() -> Iterator[None]:
        """Raise JournalError for each OSError inside."""
        try:
            yield
        except OSError as error:
            raise JournalError(str(error)) from error


def kind_of(error: BaseException) -> TroubleKind:
    """The kind by sqlite's or the system's error code; UNUSABLE for any other code."""
    if isinstance(error, JournalError) and isinstance(error.__cause__, OSError):
        error = error.__cause__
    if isinstance(error, LostFileError):
        return TroubleKind.LOST
    if isinstance(error, OSError):
        return _BY_NUMBER.get(error.errno or 0, TroubleKind.UNUSABLE)
    code: int | None = getattr(error, "sqlite_errorcode", None)
    # A reader makes a file of some kilobytes beside a database that no process has open.
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return TroubleKind.FULL
    if code is not None:
        # The low byte is the primary code of sqlite's extended result codes.
        return _BY_CODE.get(code & 0xFF, TroubleKind.UNUSABLE)
    return TroubleKind.FULL if "disk is full" in str(error) else TroubleKind.UNUSABLE


def trouble_of(error: BaseException, path: Path) -> Trouble:
    """The trouble that ``error``, met with the file at ``path`` or its directory, means."""
    kind = kind_of(error)
    cause = error.__cause__ if isinstance(error, JournalError) else error
    if kind in _NAMED and isinstance(cause, OSError) and cause.filename:
        path = Path(cause.filename)
    closed = path.parent
    if isinstance(cause, OSError) and cause.errno in _CLOSED and cause.filename:
        closed = Path(cause.filename)  # such as one file that root has restored
    # Not Path.is_dir, which raises PermissionError for a user who may not enter the directory.
    place = path if os.path.isdir(path) else path.parent
    what, remedy = {
        TroubleKind.FULL: (
            f"the disk of {place} {DISK_FULL_TEXT}",
            f"make room on it (df {place})",
        ),
        TroubleKind.LOCKED: (
            f"another process has locked {path}",
            f"`fuser -v {path}*` names it: stop that process",
        ),
        TroubleKind.CORRUPT: (
            f"{path} is damaged",
            "nothing while its service runs: it sets the file aside and makes a new one",
        ),
        TroubleKind.LOST: (
            f"{path} was removed or replaced",
            "nothing while its service runs: it writes the file again from its memory",
        ),
        TroubleKind.READ_ONLY: (
            f"{path} cannot be written",
            _WRITABLE.format(path=path, real=Path(os.path.realpath(path)).parent),
        ),
        TroubleKind.UNUSABLE: (
            f"{path} cannot be used",
            f"look at its disk and at the owner and mode of {closed}",
        ),
    }[kind]
    return Trouble(kind=kind, text=f"{what} ({error})", remedy=remedy)


def require_room(directory: Path, size: int) -> None:
    """OSError if ``directory`` does not take a file of ``size`` bytes, or a quota forbids it."""
    with tempfile.TemporaryFile(dir=directory) as file:
        try:
            # statvfs(2) does not know the quota of a user. This call does.
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            error.filename = str(directory)
            raise


def set_aside(path: Path, now: float) -> Path:
    """Rename a damaged file, so that a new file can take its place, and delete the files that
    sqlite has left beside it. Return its new path.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    name = f"{path.name}.damaged-{stamp}"
    aside = path.with_name(name)
    for number in count(2):
        if not aside.exists():
            break
        aside = path.with_name(f"{name}-{number}")
    for beside in ("-wal", "-shm"):  # a new file would take their pages for its own
        path.with_name(path.name + beside).unlink(missing_ok=True)
    os.rename(path, aside)
    # Or a crash could bring the damaged file back under its name.
    writing.sync_directory(path.parent)
    return aside
