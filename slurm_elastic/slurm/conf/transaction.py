"""File changes, each atomic, that are all taken back after a failure."""

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
        self._undo: list[tuple[Path, Callable[[], None]]] = []

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

    def roll_back(self, *, except_in: Path | None = None) -> None:
        """Take back every change so far, the last one first. Changes in the directory ``except_in``
        stay until the next call.
        """
        remaining = []
        while self._undo:
            path, undo = self._undo.pop()
            if except_in is not None and _is_part_of(path, except_in):
                remaining.append((path, undo))
                continue
            # A change that cannot be taken back must not keep us from taking back the others.
            with contextlib.suppress(OSError):
                undo()
        self._undo = remaining[::-1]

    @property
    def has_changes(self) -> bool:
        """Whether there are changes that ``roll_back`` would take back."""
        return bool(self._undo)

    def keep_changes(self) -> None:
        """Let all changes that were not taken back stay for good."""
        self._undo.clear()

    def write(self, file: PlannedFile) -> None:
        """Make the file as planned. If it keeps its mode and owner, as the site's slurm.conf does,
        it may be a symbolic link and stays one. Any other link is replaced.
        """
        # Any other link is replaced, as its maker must not choose the file that root overwrites.
        path = file.path.resolve() if file.mode is None else file.path
        self.make_directory(path.parent)
        before = _Before.of(path)
        # Before the change, so that a change that fails half-way is taken back, too.
        self._undo.append((path, lambda: before.restore(path)))
        if file.mode is None:
            writing.replace(path, file.content, before.mode, before.owner)
        else:
            writing.replace(path, file.content, file.mode, None)

    def remove(self, path: Path) -> None:
        """Remove a file if it is there."""
        before = _Before.of(path)
        self._undo.append((path, lambda: before.restore(path)))
        path.unlink(missing_ok=True)

    def make_directory(
        self, path: Path, owner: tuple[int, int] | None = None, mode: int = 0o755
    ) -> None:
        """Make a directory and its parents (0755). Only a new directory gets the owner and mode."""
        if path.is_dir():
            return
        self.make_directory(path.parent)
        path.mkdir()
        self._undo.append((path, path.rmdir))
        with _opened(path) as directory:
            _set_owner_and_mode(directory, owner, mode)

    def make_below(
        self, base: Path, name: str, owner: tuple[int, int] | None = None, mode: int = 0o755
    ) -> None:
        """Make the directory ``base/name`` as ``make_directory`` does, but follow no symbolic link
        below ``base``, because the owner of ``base`` may put any link there.
        """
        with contextlib.ExitStack() as stack:
            inside = stack.enter_context(_opened(base))
            path = base
            for name_part in Path(name).parts:
                path /= name_part
                is_new = False
                with contextlib.suppress(FileExistsError), _name_path_in_errors(path):
                    os.mkdir(name_part, mode, dir_fd=inside)
                    is_new = True
                    self._undo.append((path, path.rmdir))
                inside = stack.enter_context(_opened(path, name_part, inside))
                if is_new:
                    _set_owner_and_mode(inside, owner, mode)


def _is_part_of(path: Path, directory: Path) -> bool:
    """Whether the path is in the directory, is the directory, or has the directory below it."""
    return path.is_relative_to(directory) or directory.is_relative_to(path)


@contextlib.contextmanager
def _name_path_in_errors(path: Path) -> Iterator[None]:
    """Make an OSError name the whole path, also for a name that was opened inside a directory."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def _opened(path: Path, name: str | None = None, inside: int | None = None) -> Iterator[int]:
    """A descriptor of the directory ``path``, or of ``name`` in the directory ``inside``."""
    # The base itself may be a link of the administrator; names below it may not.
    flags = os.O_RDONLY | os.O_DIRECTORY | (os.O_NOFOLLOW if name else 0)
    with _name_path_in_errors(path):
        descriptor = os.open(name or path, flags, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _set_owner_and_mode(directory: int, owner: tuple[int, int] | None, mode: int) -> None:
    # fchmod, because the umask has narrowed the mode that mkdir got.
    os.fchmod(directory, mode)
    if owner is not None:
        os.fchown(directory, *owner)


class _Before:
    """The state of a path before a change: a link, or content, mode and owner, or nothing."""

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
            content, status = path.read_bytes(), path.stat()
        except FileNotFoundError:
            return cls(None, 0o644, None)
        return cls(content, status.st_mode & 0o7777, (status.st_uid, status.st_gid))

    def restore(self, path: Path) -> None:
        if self.link is not None:
            path.unlink(missing_ok=True)
            path.symlink_to(self.link)
        elif self.content is None:
            path.unlink(missing_ok=True)
        else:
            writing.replace(path, self.content, self.mode, self.owner)
