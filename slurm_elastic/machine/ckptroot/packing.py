"""Pack single files into an image and unpack them, with the rights of the caller."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from . import files
from .site import RequestRefused


@dataclass(frozen=True)
class Item:
    """A file, directory, link or pipe.

    ``pieces``: parts of the file that have data, as (from, to); the image has them one after the
    other. ``target``: of a symbolic link. ``same``: path of the first packed name of the same file.
    """

    path: str
    mode: int
    gid: int
    mtime_ns: int
    size: int = 0
    pieces: tuple[tuple[int, int], ...] = ()
    target: str = ""
    same: str = ""


def item_of(fields: dict[str, Any]) -> Item:
    """Return an item from the image's index."""
    return Item(**{**fields, "pieces": tuple(map(tuple, fields["pieces"]))})


def pack(
    path: str,
    status: os.stat_result,
    names: dict[tuple[int, int], str],
    data: int,
    offset: int,
    max_bytes: int,
) -> tuple[Item, int]:
    """Append the file at ``path`` to the image's data at ``offset``.

    Return its item, and the offset for the next one. ``names``: the files packed so far.
    RequestRefused for more than ``max_bytes`` in total. OSError if the file cannot be read.
    """
    item = Item(path, status.st_mode, status.st_gid, status.st_mtime_ns)
    if stat.S_ISLNK(status.st_mode):
        return replace(item, target=os.readlink(path)), offset
    if not stat.S_ISREG(status.st_mode):
        return item, offset
    # Hard links stay one file: programs such as sem_open(3) depend on that.
    first_name = names.setdefault((status.st_dev, status.st_ino), path)
    if first_name != path:
        return replace(item, same=first_name), offset
    # The path may lead to another file since the lstat: only a file of the same owner is read.
    with files.held(path, owners=(status.st_uid,)) as source:
        size, pieces = os.fstat(source).st_size, []
        for start, stop in files.pieces(source, 0, size):
            if offset + stop - start > max_bytes:
                raise RequestRefused(f"its files in {path} and others are more than may travel")
            files.copy_block(source, data, start, stop, start - offset)
            offset += stop - start
            pieces.append((start, stop))
    return replace(item, size=size, pieces=tuple(pieces)), offset


def unpack(item: Item, data: int, offset: int, make_way: Callable[[str], None]) -> int:
    """Create the item from the data at ``offset``; return the offset of the next item's data.

    ``make_way`` is called to move an existing file away. Directories stay writable until
    ``finish``.
    """
    # The image has only the job's own directories. Those of others may be missing here.
    os.makedirs(os.path.dirname(item.path), mode=0o700, exist_ok=True)
    if stat.S_ISDIR(item.mode):
        _make_directory(item, make_way)
    elif stat.S_ISLNK(item.mode):
        if not (os.path.islink(item.path) and os.readlink(item.path) == item.target):
            make_way(item.path)
            os.symlink(item.target, item.path)
        _touch(item)
    elif stat.S_ISFIFO(item.mode):
        if not stat.S_ISFIFO(_mode_of(item.path)):
            make_way(item.path)
            os.mkfifo(item.path, 0o600)
        finish(item)
    elif item.same:
        _link(item, make_way)
    else:
        return _write(item, data, offset, make_way)
    return offset


def _make_directory(item: Item, make_way: Callable[[str], None]) -> None:
    if not stat.S_ISDIR(_mode_of(item.path)):
        make_way(item.path)
        os.mkdir(item.path, 0o700)
    elif _mode_of(item.path) & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(item.path, stat.S_IMODE(_mode_of(item.path)) | stat.S_IRWXU)


def _mode_of(path: str) -> int:
    """Return the mode of the path itself (a link is not followed), or 0 if there is no file."""
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return 0


def _link(item: Item, make_way: Callable[[str], None]) -> None:
    if os.path.lexists(item.path):
        if os.path.samestat(os.lstat(item.path), os.lstat(item.same)):
            return
        make_way(item.path)
    os.link(item.same, item.path)


def _write(item: Item, data: int, offset: int, make_way: Callable[[str], None]) -> int:
    end = offset + sum(stop - start for start, stop in item.pieces)
    if not _is_same(item, data, offset):
        make_way(item.path)
        with files.held(item.path, files.NEW) as target:
            for start, stop in item.pieces:
                files.copy_block(data, target, offset, offset + stop - start, offset - start)
                offset += stop - start
            # A hole at the end has no data, so the length must be set.
            os.ftruncate(target, item.size)
    finish(item)
    return end


def _is_same(item: Item, data: int, offset: int) -> bool:
    """Return whether the file exists with the same content."""
    try:
        existing = files.opened(item.path)
    except (OSError, RequestRefused):
        return False
    try:
        if os.fstat(existing).st_size != item.size:
            return False
        stop_by_start = dict(item.pieces)
        for start, stop in files.pieces(existing, 0, item.size):
            block = os.pread(existing, stop - start, start)
            # Zeros that are written compare equal to a hole.
            if stop_by_start.get(start) != stop and any(block):
                return False
        for start, stop in item.pieces:
            if os.pread(existing, stop - start, start) != os.pread(data, stop - start, offset):
                return False
            offset += stop - start
        return True
    finally:
        os.close(existing)


def finish(item: Item) -> None:
    """Give the item its group, mode and time.

    Call it for a directory after all of its entries, because directories are often read-only for
    their owner.
    """
    if os.lstat(item.path).st_gid != item.gid:
        # The user may no longer be in the group. The file then keeps the user's own.
        with contextlib.suppress(PermissionError):
            os.chown(item.path, -1, item.gid)
    if stat.S_IMODE(os.lstat(item.path).st_mode) != stat.S_IMODE(item.mode):
        os.chmod(item.path, stat.S_IMODE(item.mode))
    _touch(item)


def _touch(item: Item) -> None:
    """Set the item's time. This sets its ctime to now, so an existing file counts as written by
    this run.
    """
    os.utime(item.path, ns=(item.mtime_ns, item.mtime_ns), follow_symlinks=False)
