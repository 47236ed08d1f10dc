"""Unix sockets: who is connected, and how the socket file is made and removed."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from pathlib import Path

from msgspec import Struct

_SO_PEERGROUPS = 59
"""asm-generic/socket.h. Python has no name for it. We read at most 256 groups."""


class Peer(Struct, frozen=True, kw_only=True):
    """The other end, as the kernel sees it: a uid and its groups, or (uid -1) an ``address``."""

    uid: int = -1
    groups: frozenset[int] = frozenset()
    address: str = ""


def peer_of(link: socket.socket) -> Peer:
    """The user at the other end, with all groups, at the time of its connect(2) (unix(7))."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, gid = struct.unpack("3i", credentials)
    groups: tuple[int, ...] = ()
    with contextlib.suppress(OSError):
        # Linux before 4.13 does not have this option.
        packed = link.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
        groups = struct.unpack(f"{len(packed) // 4}I", packed)
    return Peer(uid=uid, groups=frozenset((gid, *groups)))


def bind_socket(
    sock: socket.socket,
    path: Path,
    *,
    mode: int = 0o600,
    owner: int = -1,
    backlog: int | None = None,
) -> None:
    """Bind ``sock`` to ``path`` with ``mode``. A socket that a dead process left is replaced.

    With ``backlog`` the socket listens before its name appears. ``owner``: a uid (-1: our own).

    FileExistsError if ``path`` exists and is no socket, because then it is not ours.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} exists and is no socket")
    # Bound under another name and renamed, so that no client can connect before the mode is right.
    # The path through /proc also works if ``path`` is longer than the 107 bytes of unix(7).
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        temporary = f".{path.name}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        sock.bind(f"/proc/self/fd/{directory}/{temporary}")
        os.chmod(temporary, mode, dir_fd=directory)
        if owner >= 0:
            os.chown(temporary, owner, -1, dir_fd=directory, follow_symlinks=False)
        if backlog is not None:
            sock.listen(backlog)
        os.rename(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)


def remove_socket(path: Path, inode: int) -> None:
    """Remove the socket file, unless another process has replaced it."""
    with contextlib.suppress(OSError):
        if os.lstat(path).st_ino == inode:
            os.unlink(path)
