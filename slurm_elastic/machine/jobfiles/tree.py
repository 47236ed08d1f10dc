"""A directory whose files are read and written without following links.

Neither end trusts the paths that the other one sends. A path must be relative and must lead down.
Each directory on the way is opened by itself with O_NOFOLLOW, with the rights of the job's user.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from .locks import Locks
from .wire import Block, CopyError, Message

TEMPORARY = ".slurm-elastic-"
"""The beginning of the names of unfinished files, which are never copied."""
_DRAFT = ".tmp"
_MAX_NOTES = 20
_MAX_UNREAD = 50
"""Files in one message, which is a line of bounded length."""
_SYNC_EVERY_BYTES = 64 << 20
_SAMPLE_BYTES = 64 << 10
_LOCK_WAIT_S = 5.0
_DRAFT_TRIES = 10
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Tree:
    """The directory ``path``. ``exclude``: patterns of files to leave out. ``one_file_system``:
    leave out file systems that are mounted below it, because another user may own them. ``notes``:
    the files that were left out, each with the reason. ``unread``: those of them that their user
    may not read.
    """

    guarded_by: ClassVar[dict[str, str]] = {"descriptor": "to write one unfinished file"}

    def __init__(
        self, path: str, exclude: Sequence[str], *, one_file_system: bool = False,
        locks: Locks | None = None,
    ) -> None:  # fmt: skip
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._exclude = exclude
        self._device = os.fstat(self._root).st_dev if one_file_system else None
        self._mounts: set[str] = set()
        self._cleared: set[str] = set()
        self._directory, self._here = "", os.dup(self._root)
        self._temporaries = 0
        self.locks = locks or Locks(None)
        self.notes: list[str] = []
        self.unread: list[tuple[str, str]] = []

    def note(self, path: str, reason: object) -> None:
        """Record that a file is left out, or has another name."""
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(f"{path}: {getattr(reason, 'strerror', None) or reason}")

    def miss(self, path: str, error: OSError) -> None:
        """Record that a file or directory cannot be read."""
        self.note(path, error)
        if isinstance(error, PermissionError) and len(self.unread) < _MAX_UNREAD:
            self.unread.append((path, error.strerror or str(error)))

    def note_mount(self, error: OSError) -> None:
        """Record once that a file system mounted below the directory is left out."""
        if error.filename not in self._mounts:
            self._mounts.add(error.filename)
            self.note(error.filename, error)

    def entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the directories, files and links. A directory comes before its content."""
        walk = os.fwalk(".", dir_fd=self._root, onerror=lambda e: self.note(str(e.filename), e))
        for root, directories, files, here in walk:
            place = f"{root[2:]}/" if root != "." else ""
            if any(name.startswith(TEMPORARY) for name in files):
                _remove_dead_drafts(here)
            entered = []
            for name in (*sorted(directories), *sorted(files)):
                path = place + name
                if self._matches(path):
                    continue
                try:
                    status = os.lstat(name, dir_fd=here)
                except OSError as error:
                    self.miss(path, error)
                    continue
                if stat.S_ISDIR(status.st_mode):
                    if self._device not in (None, status.st_dev):
                        self.note_mount(_mounted(path))
                        continue
                    if os.access(name, os.R_OK | os.X_OK, dir_fd=here, effective_ids=True):
                        entered.append(name)
                    else:
                        self.miss(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
                elif not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
                    self.note(path, "a special file, which is not copied")
                    continue
                yield path, status
            directories[:] = entered

    def excludes(self, path: str) -> bool:
        """Whether the path, or a directory on the way to it, is not copied."""
        names = path.split("/")
        return any(self._matches("/".join(names[: i + 1])) for i in range(len(names)))

    def _matches(self, path: str) -> bool:
        """Whether a pattern matches the path, or the name alone if the pattern has no slash."""
        name = path.rpartition("/")[2]
        return name.startswith(TEMPORARY) or any(
            fnmatch.fnmatchcase(path if "/" in pattern else name, pattern)
            for pattern in self._exclude
        )

    def status(self, path: str) -> os.stat_result | None:
        """The status of a file or link itself; None if there is none."""
        name = self._enter(path)
        try:
            return os.lstat(name, dir_fd=self._here)
        except FileNotFoundError:
            return None

    def link_target(self, path: str) -> str:
        """The target of a link."""
        return os.readlink(self._enter(path), dir_fd=self._here)

    def open(self, path: str) -> int:
        """Open a file to read it."""
        # O_NONBLOCK: a file may have become a pipe since it was listed, whose open would wait for a
        # writer.
        return os.open(self._enter(path), _READ | os.O_NONBLOCK, dir_fd=self._here)

    def remove(self, path: str, *, directory: bool = False) -> None:
        """Remove a file, a link or an empty directory."""
        name = self._enter(path)
        if directory:
            os.rmdir(name, dir_fd=self._here)
        else:
            os.unlink(name, dir_fd=self._here)

    def make_directory(self, path: str, mode: int) -> None:
        """Make a directory. An existing directory stays as it is."""
        name = self._enter(path)
        try:
            os.mkdir(name, 0o700, dir_fd=self._here)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=self._here).st_mode):
                raise
        else:
            # No set-user-ID, set-group-ID or sticky bit. The owner may always enter, or nothing
            # could be copied into it.
            os.chmod(name, mode & 0o777 | 0o700, dir_fd=self._here)

    def write_link(self, path: str, target: str) -> None:
        """Make a link, or replace a file or link by it."""
        temporary = self._temporary(path)
        os.symlink(target, temporary, dir_fd=self._here)
        self.place_draft(temporary, path)

    def write(
        self, path: str, message: Message, blocks: Iterator[Block], *, sync: bool,
        may_replace: Callable[[], bool] = lambda: True,
    ) -> os.stat_result | None:  # fmt: skip
        """Write a file with the mode and time of ``message``. It appears complete or not at all.
        ``sync``: it is on the disk afterwards. Return its status from before others could reach it;
        None if ``may_replace``, which is asked when the content is there, forbids the file.
        """
        with self.draft(path, message, blocks, sync=sync) as draft:
            status = os.lstat(draft, dir_fd=self._here)
            if not may_replace():
                return None
            self.place_draft(draft, path)
            return status

    @contextlib.contextmanager
    def draft(
        self, path: str, message: Message, blocks: Iterator[Block], *, sync: bool
    ) -> Iterator[str]:
        """Write the file beside its path, and yield the name for ``place_draft``. The draft goes
        away if the context does not place it.
        """
        self._enter(path)
        if self._directory not in self._cleared:
            # A copy that was killed has left its own, and this may be the next try.
            self._cleared.add(self._directory)
            _remove_dead_drafts(self._here)
        draft, descriptor = self._new_draft(path)
        try:
            self._write_draft(descriptor, message, blocks, sync=sync)
            yield draft
        finally:
            with contextlib.suppress(OSError):  # it has its path
                os.unlink(draft, dir_fd=self._here)
            os.close(descriptor)

    def _new_draft(self, path: str) -> tuple[str, int]:
        """Create a draft and lock it. Return its name and descriptor."""
        for _ in range(_DRAFT_TRIES):
            draft = self._temporary(path)
            descriptor = os.open(draft, _NEW, 0o600, dir_fd=self._here)
            if _is_locked(self._here, draft, descriptor):
                return draft, descriptor
            os.close(descriptor)
        raise OSError(errno.EBUSY, "other copies remove each unfinished file", path)

    def _write_draft(
        self, descriptor: int, message: Message, blocks: Iterator[Block], *, sync: bool
    ) -> None:
        write_blocks(descriptor, blocks, sync=sync)
        # Set-user-ID and set-group-ID bits are dropped, because the other end is not trusted.
        os.fchmod(descriptor, int(message["mode"]) & 0o777)
        os.utime(descriptor, ns=(int(message["m"]), int(message["m"])))
        if sync:
            os.fsync(descriptor)

    def set_mode(self, path: str, mode: int) -> None:
        """Change the mode of a file."""
        descriptor = os.open(self._enter(path), _NAMED, dir_fd=self._here)
        try:
            os.chmod(f"/proc/self/fd/{descriptor}", mode & 0o777)
        finally:
            os.close(descriptor)

    def place_draft(self, draft: str, path: str) -> None:
        """Give a draft its path, in the directory that it is in."""
        name = self._enter(path)
        os.rename(draft, name, src_dir_fd=self._here, dst_dir_fd=self._here)

    @contextlib.contextmanager
    def only_writer(self, path: str) -> Iterator[None]:
        """Keep the other copies of this user on this host from replacing files of the directory of
        ``path``, for the moment between a look at a file and its change.
        """
        self._enter(path)
        # If another process holds the lock for longer, continue without the lock.
        with self.locks.held(os.fstat(self._here), _LOCK_WAIT_S, lambda: None):
            yield

    def _temporary(self, path: str) -> str:
        self._enter(path)
        self._temporaries += 1
        return f"{TEMPORARY}{os.getpid()}-{self._temporaries}{_DRAFT}"

    def _enter(self, path: str) -> str:
        """Open the directory of the path and return the last name. CopyError if the path leads out
        of the tree, NotADirectoryError if a link is on the way.
        """
        directory, _, name = path.rpartition("/")
        names = path.split("/")
        if not all(names) or "\0" in path or not {".", ".."}.isdisjoint(names):
            raise CopyError(f"the other end names the file {path!r}", final=True)
        if directory != self._directory:
            opened = _open_below(self._root, names[:-1], self._device)
            os.close(self._here)
            self._directory, self._here = directory, opened
        return name


def _is_locked(directory: int, draft: str, descriptor: int) -> bool:
    """Lock a new draft. False if another copy of the user took it for a dead draft before."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # it is removed now
        return False
    except OSError:  # this file system has no locks, so nobody removes drafts
        return True
    try:
        os.lstat(draft, dir_fd=directory)
    except FileNotFoundError:
        return False
    return True


def _remove_dead_drafts(directory: int) -> None:
    """Remove the drafts of copies that were killed. A copy that works holds a lock on its draft."""
    for name in os.listdir(directory):
        if name.startswith(TEMPORARY) and name.endswith(_DRAFT):
            with contextlib.suppress(OSError):
                _remove_dead_draft(directory, name)


def _remove_dead_draft(directory: int, name: str) -> None:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=directory)
    finally:
        os.close(descriptor)


def _mounted(path: str) -> OSError:
    return OSError(errno.EXDEV, "another file system is mounted there, which is not copied", path)


def _open_below(root: int, names: Sequence[str], device: int | None) -> int:
    """Open a directory. OSError (EXDEV) if it is not on this ``device``."""
    descriptor = os.dup(root)
    for number, name in enumerate(names, start=1):
        try:
            below = os.open(name, _READ | os.O_DIRECTORY, dir_fd=descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotADirectoryError(errno.ENOTDIR, "a link is on the way") from None
            raise
        finally:
            os.close(descriptor)
        descriptor = below
        if device not in (None, os.fstat(descriptor).st_dev):
            os.close(descriptor)
            raise _mounted("/".join(names[:number]))
    return descriptor


def open_below(directory: str, path: str, flags: int, mode: int) -> int:
    """Open a file at a path below the directory. OSError if the file, or a directory on the way, is
    a link.
    """
    *above, name = path.split("/")
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        place = _open_below(root, above, None)
    finally:
        os.close(root)
    try:
        return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=place)
    finally:
        os.close(place)


def write_blocks(descriptor: int, blocks: Iterator[Block], *, sync: bool) -> None:
    """Write all blocks; a hole is left out, so the file must be new. ``sync``: so that an fsync
    after it is short.
    """
    unsynced = 0
    for block in blocks:
        if isinstance(block, int):
            # The hole may be the end of the file.
            os.ftruncate(descriptor, os.lseek(descriptor, block, os.SEEK_CUR))
            continue
        unwritten = memoryview(block)
        while unwritten:
            unwritten = unwritten[os.write(descriptor, unwritten) :]
        unsynced += len(block)
        # The other end waits, so no sync may take long: one at the end of a large file would.
        if sync and unsynced >= _SYNC_EVERY_BYTES:
            os.fdatasync(descriptor)
            unsynced = 0


def sample(descriptor: int, begin: int, size: int) -> str:
    """A digest of the first and the last bytes of a part of a file. A log that grows keeps it."""
    length = min(size, _SAMPLE_BYTES)
    first = os.pread(descriptor, length, begin)
    last = os.pread(descriptor, length, begin + size - length)
    return hashlib.sha256(first + last).hexdigest()


def stamp(status: os.stat_result) -> list[int]:
    """The size and time of a file. A file has changed if its stamp has changed."""
    return [status.st_size, status.st_mtime_ns]
