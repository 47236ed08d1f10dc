"""What is mounted where, from the kernel's own list (proc(5), mountinfo): so we never wait for a
server, or for a user's process that serves a file system (fuse(4)), which may not answer.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_MOST = 16 << 20
_OCTAL = re.compile(r"\\([0-7]{3})")  # a blank in a mount point
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay",
                    "f2fs"})  # fmt: skip


def mounts() -> str:
    """The lines of proc(5), mountinfo."""
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="surrogateescape") as file:
        return file.read(_MOST).rpartition("\n")[0]


def mount_points(mountinfo: str) -> list[str]:
    """The paths that something is mounted at, in the order of the lines."""
    return [_point(line) for line in mountinfo.split("\n")]


def file_system(path: str, mountinfo: str) -> str:
    """The type of the file system that ``path`` is on."""
    return _source(path, mountinfo)[0]


def nfs_options(path: str, mountinfo: str) -> frozenset[str]:
    """Those by which NFS is mounted where the path is; none where that is another file system."""
    source = _source(path, mountinfo)
    return frozenset(source[-1].split(",") if source[0] in ("nfs", "nfs4") else ())


def mount_root(path: str, mountinfo: str) -> str:
    """The directory of its file system that is mounted at ``path``; empty if nothing is."""
    lines = [line for line in mountinfo.split("\n") if line and _point(line) == path]
    return lines[-1].split(" ")[3] if lines else ""


def is_local(path: str, shared: Path) -> bool:
    """Whether the path is on a file system of this node, and not on that of ``shared``."""
    try:
        # Before we touch it: if its server, or a user's process, hangs, so would we.
        if file_system(os.path.normpath(path), mounts()) not in _LOCAL:
            return False
        if os.stat(path).st_dev == os.stat(shared).st_dev:
            return False
        return file_system(os.path.realpath(path), mounts()) in _LOCAL
    except OSError:
        return False


def _source(path: str, mountinfo: str) -> list[str]:
    """Type, source and options of the file system that ``path`` is on."""
    found, longest = "", ""
    for line in mountinfo.split("\n"):
        point = _point(line)
        # By the names of mount points, as on btrfs stat(2) and proc(5) name different devices.
        if f"{path}/".startswith(f"{point.rstrip('/')}/") and len(point) >= len(longest):
            found, longest = line, point  # of two at one place, the later one
    return found.partition(" - ")[2].split(" ")


def _point(line: str) -> str:
    return _OCTAL.sub(lambda code: chr(int(code[1], 8)), line.partition(" - ")[0].split(" ")[4])
