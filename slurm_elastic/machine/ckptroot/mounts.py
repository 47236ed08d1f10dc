"""Look mounts up in the kernel's list (proc(5), mountinfo).

This avoids a wait for a file server, or for a user's process that serves a file system (fuse(4)):
they may never answer.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_MAX_CHARACTERS = 16 << 20
_OCTAL = re.compile(r"\\([0-7]{3})")  # a blank in a mount point
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay",
                    "f2fs"})  # fmt: skip


def mounts() -> str:
    """Return the lines of proc(5), mountinfo."""
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="surrogateescape") as file:
        return file.read(_MAX_CHARACTERS).rpartition("\n")[0]


def mount_points(mountinfo: str) -> list[str]:
    """Return the mount points in the order of the lines."""
    return [_point(line) for line in mountinfo.split("\n")]


def file_system(path: str, mountinfo: str) -> str:
    """Return the type of the file system that ``path`` is on."""
    return _source(path, mountinfo)[0]


def nfs_options(path: str, mountinfo: str) -> frozenset[str]:
    """Return the NFS mount options for the path; empty if it is on another file system."""
    source = _source(path, mountinfo)
    return frozenset(source[-1].split(",") if source[0] in ("nfs", "nfs4") else ())


def mount_root(path: str, mountinfo: str) -> str:
    """Return which directory of its file system is mounted at ``path``; "" if none is."""
    lines = [line for line in mountinfo.split("\n") if line and _point(line) == path]
    return lines[-1].split(" ")[3] if lines else ""


def is_local(path: str, shared: Path) -> bool:
    """Return whether the path is on a file system of this node, which does not contain
    ``shared``.
    """
    try:
        # Check before stat: if its server, or a user's process, hangs, stat would hang, too.
        if file_system(os.path.normpath(path), mounts()) not in _LOCAL:
            return False
        if os.stat(path).st_dev == os.stat(shared).st_dev:
            return False
        return file_system(os.path.realpath(path), mounts()) in _LOCAL
    except OSError:
        return False


def _source(path: str, mountinfo: str) -> list[str]:
    """Return type, source and options of the file system that ``path`` is on."""
    best_line, longest = "", ""
    for line in mountinfo.split("\n"):
        point = _point(line)
        # Compare names of mount points: on btrfs, stat(2) and proc(5) show different device
        # numbers.
        if f"{path}/".startswith(f"{point.rstrip('/')}/") and len(point) >= len(longest):
            best_line, longest = line, point  # of two mounts at one point, the later one
    return best_line.partition(" - ")[2].split(" ")


def _point(line: str) -> str:
    return _OCTAL.sub(lambda code: chr(int(code[1], 8)), line.partition(" - ")[0].split(" ")[4])
