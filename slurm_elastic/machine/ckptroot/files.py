"""How root opens, reads, copies and removes files in places where a user may have put other files.

No function here waits for a pipe or a lease, follows a link in the last component of a path, reads
more than its limit, or recurses into deep directories. The directories above a file are either all
root's own, or are walked with the user's rights (``rights``).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from .site import RequestRefused

SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
"""Flags for every opening of a file (open(2)). With O_NONBLOCK no pipe and no lease can block
us.
"""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | SAFE
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_BLOCK_BYTES = 1 << 20
_BATCH_ENTRIES = 1000
MAX_ENTRIES = 1_000_000
"""How many files and directories one call removes at most."""
_NO_HOLES = {errno.EINVAL, errno.ENOTSUP}


def opened(
    path: str | Path,
    flags: int = os.O_RDONLY,
    *,
    owners: Collection[int] = (),
    max_bytes: int | None = None,
    dir_fd: int | None = None,
    mode: int = 0o600,
) -> int:
    """Return a descriptor of the regular file at ``path``, relative to the directory ``dir_fd``.

    A new file gets ``mode``. OSError if it cannot be opened. RequestRefused if it is no regular
    file, its owner is not in ``owners`` (if given), or it is longer than ``max_bytes``.
    """
    descriptor = os.open(path, flags | SAFE, mode, dir_fd=dir_fd)
    try:
        # Check the open file, not the path: the path may lead to another file by then.
        _check(path, os.fstat(descriptor), owners, max_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def held(
    path: str | Path, flags: int = os.O_RDONLY, *, owners: Collection[int] = (),
    max_bytes: int | None = None, mode: int = 0o600,
) -> Iterator[int]:  # fmt: skip
    """Yield the descriptor of ``opened``, and close it at the end of the block."""
    descriptor = opened(path, flags, owners=owners, max_bytes=max_bytes, mode=mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def directory(path: str | Path) -> Iterator[int]:
    """Yield a descriptor of the directory, closed afterwards."""
    descriptor = os.open(path, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check(
    path: str | Path, status: os.stat_result, owners: Collection[int], max_bytes: int | None
) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise RequestRefused(f"{path}: not a regular file")
    if owners and status.st_uid not in owners:
        raise RequestRefused(f"{path}: belongs to uid {status.st_uid}")
    if max_bytes is not None and status.st_size > max_bytes:
        raise RequestRefused(f"{path}: {status.st_size} bytes long, more than {max_bytes}")


def read(path: str | Path, max_bytes: int, *, owners: Collection[int] = ()) -> bytes:
    """Return the content of a regular file of at most ``max_bytes``. Errors as in ``opened``."""
    with open(opened(path, owners=owners, max_bytes=max_bytes), "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:  # it has grown since it was opened
        raise RequestRefused(f"{path}: more than {max_bytes} bytes long")
    return content


def json_of(content: bytes) -> Any:  # noqa: ANN401 - whatever JSON says
    """Return the decoded value. ValueError if it is no JSON, also if it is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def names(directory: int, max_entries: int) -> list[str]:
    """Return the sorted names in an open directory. RequestRefused if there are more than
    ``max_entries``.
    """
    with os.scandir(directory) as entries:
        # One entry more than allowed is enough to refuse. A full list of a huge directory would
        # take all memory.
        entry_names = [entry.name for entry in islice(entries, max_entries + 1)]
    if len(entry_names) > max_entries:
        raise RequestRefused(f"a directory with more than {max_entries} entries")
    return sorted(entry_names)


def remove(path: Path, max_entries: int = MAX_ENTRIES) -> None:
    """Remove the file or directory tree, if it exists. A link itself is removed, not its target.

    After ``max_entries`` it raises RequestRefused and leaves the rest for the next call.
    """
    try:
        # All below goes by descriptors, so that a renamed or replaced directory cannot lead
        # elsewhere.
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _remove(parent, path, max_entries)
    finally:
        os.close(parent)


def _remove(parent: int, path: Path, max_entries: int) -> None:
    try:
        status = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(path.name, dir_fd=parent)
        return
    top = os.open(path.name, _DIRECTORY, dir_fd=parent)
    try:
        _empty(top, path, max_entries)
    finally:
        os.close(top)
    os.rmdir(path.name, dir_fd=parent)


def _empty(top: int, path: Path, max_entries: int) -> None:
    remaining = max_entries
    while batch := _batch(top):
        for name, is_directory in batch:
            if is_directory:
                remaining -= _hollow(top, name, path, remaining)
                # Empty now: its directories were moved up, its files are gone.
                os.rmdir(name, dir_fd=top)
            else:
                os.unlink(name, dir_fd=top)
            remaining = _counted(path, remaining)


def _hollow(top: int, name: str, path: Path, max_entries: int) -> int:
    """Remove a directory's files and move its directories up to ``top``; return the number of its
    entries.
    """
    directory, remaining = os.open(name, _DIRECTORY, dir_fd=top), max_entries
    try:
        while batch := _batch(directory):
            for entry, is_directory in batch:
                if is_directory:
                    fresh = f".{secrets.token_hex(12)}"
                    # Move it to the first level, so that no directory is ever two levels deep. A
                    # recursion could be exhausted by a deep tree.
                    os.rename(entry, fresh, src_dir_fd=directory, dst_dir_fd=top)
                else:
                    os.unlink(entry, dir_fd=directory)
                remaining = _counted(path, remaining)
    finally:
        os.close(directory)
    return max_entries - remaining


def _counted(path: Path, remaining: int) -> int:
    if remaining <= 0:
        raise RequestRefused(
            f"{path}: more is in it than is removed at a time, the rest comes next"
        )
    return remaining - 1


def _batch(directory: int) -> list[tuple[str, bool]]:
    with os.scandir(directory) as entries:
        return [(e.name, e.is_dir(follow_symlinks=False)) for e in islice(entries, _BATCH_ENTRIES)]


def pieces(source: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file with data between two offsets, as (from, to), at most a block long.

    Between these parts are holes (lseek(2), SEEK_DATA), which read as zeros and take no room.
    """
    offset = start
    while offset < end:
        try:
            offset = max(offset, os.lseek(source, offset, os.SEEK_DATA))
            end_of_data = os.lseek(source, offset, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                return
            # A file system without SEEK_DATA: all is data.
            if error.errno not in _NO_HOLES:
                raise
            end_of_data = end
        end_of_data = min(end_of_data, end)
        while offset < end_of_data:
            yield offset, min(offset + _BLOCK_BYTES, end_of_data)
            offset += _BLOCK_BYTES
        offset = end_of_data


def copy(
    source: int, target: int, start: int, end: int, *, shift: int = 0, max_bytes: int | None = None
) -> int:
    """Copy a part of a file to the same offset less ``shift``, holes as holes; return its bytes of
    data.

    RequestRefused if the file ends before ``end``, or has more than ``max_bytes`` of data.
    """
    if os.fstat(source).st_size < end:
        raise RequestRefused(f"a copy ends at byte {os.fstat(source).st_size} of {end}")
    copied = 0
    for offset, stop in pieces(source, start, end):
        copied += stop - offset
        if max_bytes is not None and copied > max_bytes:
            raise RequestRefused(f"more than {max_bytes} bytes of data to copy")
        copy_block(source, target, offset, stop, shift)
    # A hole at the end was not written.
    if os.fstat(target).st_size < end - shift:
        os.ftruncate(target, end - shift)
    return copied


def copy_file(source: int, path: Path, mode: int, max_bytes: int | None) -> int:
    """Copy a whole file to a new file at ``path``; return its bytes of data."""
    with held(path, NEW) as target:
        copied = copy(source, target, 0, os.fstat(source).st_size, max_bytes=max_bytes)
        os.fchmod(target, mode)
    return copied


def copy_block(source: int, target: int, offset: int, stop: int, shift: int) -> None:
    """Copy a part of a file to the same offset less ``shift``."""
    while offset < stop:
        block = os.pread(source, stop - offset, offset)
        if not block:
            raise RequestRefused(f"a copy ends at byte {offset} of {stop}")
        offset += os.pwrite(target, block, offset - shift)
