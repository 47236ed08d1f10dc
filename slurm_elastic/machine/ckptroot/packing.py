"""Packs single files into an image and unpacks them, with the rights of whoever calls."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from . import files
from .site import Refused


@dataclass(frozen=True)
class Item:
    """A file, directory, link or pipe. ``pieces`` are the parts of the file that have data, (from,
    to) each; the image has them one after the other. ``same`` is the path of another name of the
    file.
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
    """An item from the image's index."""
    return Item(**{**fields, "pieces": tuple(map(tuple, fields["pieces"]))})


def pack(
    path: str,
    seen: os.stat_result,
    names: dict[tuple[int, int], str],
    data: int,
    at: int,
    most: int,
) -> tuple[Item, int]:
    """The item for what is at ``path``, and where the next one's data begin; its own are appended
    at ``at`` of the image's data. ``names`` are the files packed so far. Refused for more than
    ``most`` bytes altogether, OSError if the file cannot be read.
    """
    item = Item(path, seen.st_mode, seen.st_gid, seen.st_mtime_ns)
    if stat.S_ISLNK(seen.st_mode):
        return replace(item, target=os.readlink(path)), at
    if not stat.S_ISREG(seen.st_mode):
        return item, at
    first = names.setdefault((seen.st_dev, seen.st_ino), path)
    if first != path:
        return replace(item, same=first), at
    with files.held(path, owners=(seen.st_uid,)) as source:
        size, pieces = os.fstat(source).st_size, []
        for start, stop in files.pieces(source, 0, size):
            if at + stop - start > most:
                raise Refused(f"its files in {path} and others are more than may travel")
            files.copy_block(source, data, start, stop, start - at)
            at += stop - start
            pieces.append((start, stop))
    return replace(item, size=size, pieces=tuple(pieces)), at


def unpack(item: Item, data: int, at: int, make_way: Callable[[str], None]) -> int:
    """Lay out the item, whose data begin at ``at`` of the image's; where the next one's begin.
    ``make_way`` is called to move away what is there. Directories stay writable until ``finish``.
    """
    os.makedirs(os.path.dirname(item.path), mode=0o700, exist_ok=True)
    if stat.S_ISDIR(item.mode):
        _open_up(item, make_way)
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
        return _write(item, data, at, make_way)
    return at


def _open_up(item: Item, make_way: Callable[[str], None]) -> None:
    if not stat.S_ISDIR(_mode_of(item.path)):
        make_way(item.path)
        os.mkdir(item.path, 0o700)
    elif _mode_of(item.path) & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(item.path, stat.S_IMODE(_mode_of(item.path)) | stat.S_IRWXU)


def _mode_of(path: str) -> int:
    """The mode of a path itself, not of what a link points to; 0 if there is nothing."""
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


def _write(item: Item, data: int, at: int, make_way: Callable[[str], None]) -> int:
    end = at + sum(stop - start for start, stop in item.pieces)
    if not _is_same(item, data, at):
        make_way(item.path)
        with files.held(item.path, files.NEW) as target:
            for start, stop in item.pieces:
                files.copy_block(data, target, at, at + stop - start, at - start)
                at += stop - start
            os.ftruncate(target, item.size)
    finish(item)
    return end


def _is_same(item: Item, data: int, at: int) -> bool:
    """Whether the file is there already, with the same content."""
    try:
        there = files.opened(item.path)
    except (OSError, Refused):
        return False
    try:
        if os.fstat(there).st_size != item.size:
            return False
        wanted = dict(item.pieces)
        for start, stop in files.pieces(there, 0, item.size):
            mine = os.pread(there, stop - start, start)
            if wanted.get(start) != stop and any(mine):
                return False
        for start, stop in item.pieces:
            if os.pread(there, stop - start, start) != os.pread(data, stop - start, at):
                return False
            at += stop - start
        return True
    finally:
        os.close(there)


def finish(item: Item) -> None:
    """Give the item its group, mode and time. For a directory this comes after everything in it, as
    directories that their owner may only read are common.
    """
    if os.lstat(item.path).st_gid != item.gid:
        with contextlib.suppress(PermissionError):
            os.chown(item.path, -1, item.gid)
    if stat.S_IMODE(os.lstat(item.path).st_mode) != stat.S_IMODE(item.mode):
        os.chmod(item.path, stat.S_IMODE(item.mode))
    _touch(item)


def _touch(item: Item) -> None:
    """Set its time. This also sets its ctime to now, so that a file that was here already counts as
    this run's from now on.
    """
    os.utime(item.path, ns=(item.mtime_ns, item.mtime_ns), follow_symlinks=False)
