"""What a job has beside its memory that may not be there where it goes on: processes that left its
tree, files of this node alone, files that it keeps locked (proc(5), /proc/PID/fdinfo).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from slurm_elastic.ckptroot.proc import status_of
from slurm_elastic.ckptroot.site import Refused

_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - where programs leave files, not ours
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay",
                    "f2fs"})  # fmt: skip
_GONE = " (deleted)"
_MOUNTS = 1 << 20

State = tuple[int, int, int]
"""Inode, size and time of the last change (ns) of a file."""


def stray(tasks: Iterable[int], keeper: int, first: int) -> str:
    """Why a task is none of those that an image has: it is not below the job's first process, whose
    number inside is ``first``, but a child of process 1. Empty where there is none.
    """
    for pid in tasks:
        status = status_of(pid)
        inside = status.get("NSpid", "").split()[-1:]
        lives = status.get("State", "Z")[0] not in "ZX"
        if lives and status.get("PPid") == str(keeper) and inside != [str(first)]:
            return f"process {status.get('Name', pid)} has left the job's tree, as daemons do"
    return ""


def local_files(tasks: Iterable[int], environment: Mapping[bytes, bytes], shared: Path) -> str:
    """Why the job would miss files elsewhere: a task works in, or has open, a file of a temporary
    directory that only this node has; or its own TMPDIR is there and not empty. Empty where it
    would not. A directory on the file system of the images (``shared``) is where these are.
    """
    own = os.fsdecode(environment.get(b"TMPDIR", b"")).rstrip("/")
    places = tuple(p for p in (*_TEMPORARY, own) if p.startswith("/") and _is_local(p, shared))
    for path in _open_paths(tasks):
        if path.startswith(tuple(f"{place}/" for place in places)):
            return f"it has {path} open, which is a file of this node alone"
    if own in places and own not in _TEMPORARY:
        with contextlib.suppress(OSError):
            if os.listdir(own):
                return f"its TMPDIR {own} has files, which are of this node alone"
    return ""


def _open_paths(tasks: Iterable[int]) -> Iterator[str]:
    for pid in tasks:
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/cwd") + "/"
        for number in _descriptors(pid):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                mode = os.stat(f"/proc/{pid}/fd/{number}").st_mode
                if not path.endswith(_GONE) and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    yield path


def locked_files(tasks: Iterable[int]) -> dict[str, State]:
    """The files that the tasks keep locked (flock(2), fcntl(2)), as they are now."""
    found = {}
    for pid in tasks:
        for number in _descriptors(pid):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
                    locked = any(line.startswith("lock:") for line in file)
                if locked:
                    path = os.readlink(f"/proc/{pid}/fd/{number}")
                    found[path] = state_of(f"/proc/{pid}/fd/{number}")
    return found


def state_of(path: str) -> State:
    """The file's state; OSError where there is none."""
    seen = os.stat(path)
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def check_locked(locked: Mapping[str, State]) -> None:
    """Refused where a file has changed since a job that kept it locked was saved: while it was not
    running its lock was nobody's, and what it knows of the file is no longer true.
    """
    for path, before in locked.items():
        try:
            now = state_of(path)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from error
        if now != tuple(before):
            raise Refused(f"{path} has changed since the job, which keeps it locked, was saved")


def _descriptors(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(f"/proc/{pid}/fd")
    return []


def _is_local(path: str, shared: Path) -> bool:
    """Whether that path is on a file system of this node (proc(5), mountinfo)."""
    try:
        wanted = os.stat(path).st_dev
        if wanted == os.stat(shared).st_dev:
            return False
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read(_MOUNTS).splitlines()
    except OSError:
        return False
    for line in lines:
        mount, _, source = line.partition(" - ")
        device = mount.split()[2]
        if device == f"{os.major(wanted)}:{os.minor(wanted)}":
            return source.split()[0] in _LOCAL
    return False
