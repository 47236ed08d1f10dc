"""File changes, each atomic, that are all taken back on failure."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from slurm_elastic.base import writing
from slurm_elastic.slurm.conf.plan import PlannedFile


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
        """Make the file as planned. One that keeps its mode and owner (the site's slurm.conf) may
        be a symbolic link and stays one; elsewhere a link is replaced.
        """
        # Elsewhere a link is replaced: whoever made it must not choose what root writes over.
        path = file.path.resolve() if file.mode is None else file.path
        self.make_directory(path.parent)
        before = _Before.of(path)
        # Before the change, so that one that breaks off half-way is taken back, too.
        self._undo.append(lambda: before.restore(path))
        if file.mode is None:
            writing.replace(path, file.content, before.mode, before.owner)
        else:
            writing.replace(path, file.content, file.mode, None)

    def remove(self, path: Path) -> None:
        """Remove a file; none there is no error."""
        before = _Before.of(path)
        self._undo.append(lambda: before.restore(path))
        path.unlink(missing_ok=True)

    def make_directory(
        self, path: Path, owner: tuple[int, int] | None = None, mode: int = 0o755
    ) -> None:
        """Make a directory with its parents (0755); only what is made gets the owner and mode."""
        if path.is_dir():
            return
        self.make_directory(path.parent)
        path.mkdir()
        self._undo.append(path.rmdir)
        with _opened(path) as made:
            _give(made, owner, mode)

    def make_below(
        self, base: Path, name: str, owner: tuple[int, int] | None = None, mode: int = 0o755
    ) -> None:
        """As ``make_directory`` for ``base/name``, but through no symbolic link: whom ``base``
        belongs to may put there what it likes.
        """
        with contextlib.ExitStack() as stack:
            inside = stack.enter_context(_opened(base))
            path = base
            for part in Path(name).parts:
                path /= part
                made = False
                with contextlib.suppress(FileExistsError), _naming(path):
                    os.mkdir(part, mode, dir_fd=inside)
                    made = True
                    self._undo.append(path.rmdir)
                inside = stack.enter_context(_opened(path, part, inside))
                if made:
                    _give(inside, owner, mode)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Have an OSError name the whole path, also of what is looked up in an open directory."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def _opened(path: Path, name: str | None = None, inside: int | None = None) -> Iterator[int]:
    """A descriptor of the directory ``path``, or of ``name`` in the directory ``inside``."""
    flags = os.O_RDONLY | os.O_DIRECTORY | (os.O_NOFOLLOW if name else 0)
    with _naming(path):
        descriptor = os.open(name or path, flags, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _give(directory: int, owner: tuple[int, int] | None, mode: int) -> None:
    os.fchmod(directory, mode)
    if owner is not None:
        os.fchown(directory, *owner)


class _Before:
    """The thing that was at a path: a symbolic link, or content, mode and owner, or nothing."""

    def __init__(
        self,
        content: bytes | None,
        mode: int,
        owner: tuple[int, int] | None,
        link: str | None = None,
    ) -> None:
        self.content, self.mode, self.owner, self.link = content, mode, owner, link

    @classmethod
    def of(cls, path: Path) -> _Before:
        if path.is_symlink():
            return cls(None, 0o644, None, os.readlink(path))
        try:
            content, found = path.read_bytes(), path.stat()
        except FileNotFoundError:
            return cls(None, 0o644, None)
        return cls(content, found.st_mode & 0o7777, (found.st_uid, found.st_gid))

    def restore(self, path: Path) -> None:
        if self.link is not None:
            path.unlink(missing_ok=True)
            path.symlink_to(self.link)
        elif self.content is None:
            path.unlink(missing_ok=True)
        else:
            writing.replace(path, self.content, self.mode, self.owner)
