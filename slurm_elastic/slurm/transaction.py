"""File changes, each atomic, that are all taken back on failure."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from slurm_elastic.slurm.plan import PlannedFile


class Transaction:
    """A ``with`` block whose file changes are all taken back if it ends by an exception."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.roll_back()

    def roll_back(self) -> None:
        """Take back every change so far, the last one first."""
        while self._undo:
            # One that cannot be taken back must not keep the others from it.
            with contextlib.suppress(OSError):
                self._undo.pop()()

    def write(self, file: PlannedFile) -> None:
        """Make the file as planned, through a symbolic link if it is one."""
        path = file.path.resolve()
        self.make_directory(path.parent)
        before = _Before.of(path)
        mode = file.mode if file.mode is not None else before.mode
        self._undo.append(lambda: before.restore(path))
        replace_file(path, file.content, mode, before.owner)

    def remove(self, path: Path) -> None:
        """Remove a file; none there is no error."""
        before = _Before.of(path)
        self._undo.append(lambda: before.restore(path))
        path.unlink(missing_ok=True)

    def make_directory(self, path: Path, owner: tuple[int, int] | None = None) -> None:
        """Make a directory (0755) with its parents; only what is made gets the owner."""
        if path.is_dir():
            return
        self.make_directory(path.parent)
        path.mkdir()
        self._undo.append(path.rmdir)
        path.chmod(0o755)
        if owner is not None:
            os.chown(path, *owner)


class _Before:
    """What was at a path: content, mode and owner, or nothing."""

    def __init__(self, content: bytes | None, mode: int, owner: tuple[int, int] | None) -> None:
        self.content, self.mode, self.owner = content, mode, owner

    @classmethod
    def of(cls, path: Path) -> _Before:
        try:
            content, found = path.read_bytes(), path.stat()
        except FileNotFoundError:
            return cls(None, 0o644, None)
        return cls(content, found.st_mode & 0o7777, (found.st_uid, found.st_gid))

    def restore(self, path: Path) -> None:
        if self.content is None:
            path.unlink(missing_ok=True)
        else:
            replace_file(path, self.content, self.mode, self.owner)


def replace_file(path: Path, content: bytes, mode: int, owner: tuple[int, int] | None) -> None:
    """Put ``content`` at ``path``: all of it or, after a crash, what was there before."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as temporary:
            temporary.write(content)
            os.fchmod(descriptor, mode)
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, *owner)
            temporary.flush()
            os.fsync(descriptor)
        _rename(name, path, content)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _rename(name: str, path: Path, content: bytes) -> None:
    try:
        os.replace(name, path)
    except OSError as error:
        # A file that is a mount point of its own (containers) can only be written in place.
        if error.errno != errno.EBUSY:
            raise
        path.write_bytes(content)
