"""How root opens, reads, copies and removes files where somebody else may have put something else.

Nothing here waits for a pipe or a lease, follows a link in the last part of a path, reads more than
it was told to, or recurses into deep directories. The directories above a file are either all
root's own, or walked with the user's rights (``rights``).
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

from .site import Refused

SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
"""Flags for every opening of a file (open(2)); with O_NONBLOCK no pipe or lease holds us up."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | SAFE
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_BLOCK = 1 << 20
_BATCH = 1000
ENTRIES = 1_000_000
"""How many files and directories one call removes at most."""
_NO_HOLES = {errno.EINVAL, errno.ENOTSUP}


def opened(
    path: str | Path,
    flags: int = os.O_RDONLY,
    *,
    owners: Collection[int] = (),
    most: int | None = None,
    at: int | None = None,
    mode: int = 0o600,
) -> int:
    """A descriptor of the regular file at ``path``, relative to the directory ``at``; a new one
    gets ``mode``.

    Raises OSError if it cannot be opened, and Refused if it is no regular file, belongs to nobody
    among ``owners`` (if any are given), or is longer than ``most`` bytes.
    """
    descriptor = os.open(path, flags | SAFE, mode, dir_fd=at)
    try:
        _check(path, os.fstat(descriptor), owners, most)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def held(
    path: str | Path, flags: int = os.O_RDONLY, *, owners: Collection[int] = (),
    most: int | None = None, mode: int = 0o600,
) -> Iterator[int]:  # fmt: skip
    """Like ``opened``, and closed afterwards."""
    descriptor = opened(path, flags, owners=owners, most=most, mode=mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def directory(path: str | Path) -> Iterator[int]:
    """A descriptor of the directory, closed afterwards."""
    descriptor = os.open(path, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check(
    path: str | Path, found: os.stat_result, owners: Collection[int], most: int | None
) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"{path}: not a regular file")
    if owners and found.st_uid not in owners:
        raise Refused(f"{path}: belongs to uid {found.st_uid}")
    if most is not None and found.st_size > most:
        raise Refused(f"{path}: {found.st_size} bytes long, more than {most}")


def read(path: str | Path, most: int, *, owners: Collection[int] = ()) -> bytes:
    """The whole content of a regular file of at most ``most`` bytes; errors as in ``opened``."""
    with open(opened(path, owners=owners, most=most), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:  # it has grown since
        raise Refused(f"{path}: more than {most} bytes long")
    return content


def json_of(content: bytes) -> Any:  # noqa: ANN401 - whatever JSON says
    """The value; ValueError where it is no JSON, or one of brackets without end."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def names(directory: int, most: int) -> list[str]:
    """The names in an open directory; Refused if there are more than ``most``."""
    with os.scandir(directory) as entries:
        found = [entry.name for entry in islice(entries, most + 1)]
    if len(found) > most:
        raise Refused(f"a directory with more than {most} entries")
    return sorted(found)


def remove(path: Path, most: int = ENTRIES) -> None:
    """Remove whatever is there, if anything; of a link, the link itself.

    After ``most`` entries it raises Refused and leaves the rest for another time.
    """
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _remove(parent, path, most)
    finally:
        os.close(parent)


def _remove(parent: int, path: Path, most: int) -> None:
    try:
        found = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(path.name, dir_fd=parent)
        return
    top = os.open(path.name, _DIRECTORY, dir_fd=parent)
    try:
        _empty(top, path, most)
    finally:
        os.close(top)
    os.rmdir(path.name, dir_fd=parent)


def _empty(top: int, path: Path, most: int) -> None:
    left = most
    while batch := _batch(top):
        for name, is_directory in batch:
            if is_directory:
                left -= _hollow(top, name, path, left)
                os.rmdir(name, dir_fd=top)
            else:
                os.unlink(name, dir_fd=top)
            left = _counted(path, left)


def _hollow(top: int, name: str, path: Path, most: int) -> int:
    """Remove a directory's files and move its directories up to ``top``; how many
    entries it had.
    """
    directory, left = os.open(name, _DIRECTORY, dir_fd=top), most
    try:
        while batch := _batch(directory):
            for entry, is_directory in batch:
                if is_directory:
                    fresh = f".{secrets.token_hex(12)}"
                    # To the first level: so nothing is ever two levels deep, however deep it was.
                    os.rename(entry, fresh, src_dir_fd=directory, dst_dir_fd=top)
                else:
                    os.unlink(entry, dir_fd=directory)
                left = _counted(path, left)
    finally:
        os.close(directory)
    return most - left


def _counted(path: Path, left: int) -> int:
    if left <= 0:
        raise Refused(f"{path}: more is in it than is removed at a time, the rest comes next")
    return left - 1


def _batch(directory: int) -> list[tuple[str, bool]]:
    with os.scandir(directory) as entries:
        return [(e.name, e.is_dir(follow_symlinks=False)) for e in islice(entries, _BATCH)]


def pieces(source: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a file, between two places, that have data: each (from, to), at most a block
    long.

    What lies between them are holes (lseek(2), SEEK_DATA), which read as zeros and take no room.
    """
    at = start
    while at < end:
        try:
            at = max(at, os.lseek(source, at, os.SEEK_DATA))
            stop = os.lseek(source, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                return
            if error.errno not in _NO_HOLES:
                raise
            stop = end
        stop = min(stop, end)
        while at < stop:
            yield at, min(at + _BLOCK, stop)
            at += _BLOCK
        at = stop


def copy(
    source: int, target: int, start: int, end: int, *, shift: int = 0, most: int | None = None
) -> int:
    """Copy a part of a file to the same place less ``shift``, holes as holes; how many bytes of
    data it had. Raises Refused if the file ends before ``end``, or if these are more than ``most``.
    """
    if os.fstat(source).st_size < end:
        raise Refused(f"a copy ends at byte {os.fstat(source).st_size} of {end}")
    done = 0
    for at, stop in pieces(source, start, end):
        done += stop - at
        if most is not None and done > most:
            raise Refused(f"more than {most} bytes of data to copy")
        copy_block(source, target, at, stop, shift)
    if os.fstat(target).st_size < end - shift:
        os.ftruncate(target, end - shift)
    return done


def copy_file(source: int, path: Path, mode: int, most: int | None) -> int:
    """Copy a whole file to a new one at ``path``; how many bytes of data it had."""
    with held(path, NEW) as target:
        done = copy(source, target, 0, os.fstat(source).st_size, most=most)
        os.fchmod(target, mode)
    return done


def copy_block(source: int, target: int, at: int, stop: int, shift: int) -> None:
    """Copy a part to the same place less ``shift``."""
    while at < stop:
        block = os.pread(source, stop - at, at)
        if not block:
            raise Refused(f"a copy ends at byte {at} of {stop}")
        at += os.pwrite(target, block, at - shift)
