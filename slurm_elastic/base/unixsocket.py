"""Unix sockets: who is at the other end, and the file: whose it is, and when it goes."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from pathlib import Path

from msgspec import Struct

_SO_PEERGROUPS = 59
"""asm-generic/socket.h; Python has no name for it, and takes 256 groups at most."""


class Peer(Struct, frozen=True, kw_only=True):
    """Who asks, by the kernel: a uid with its groups, or (-1) an ``address``."""

    uid: int = -1
    groups: frozenset[int] = frozenset()
    address: str = ""


def peer_of(link: socket.socket) -> Peer:
    """Who is at the other end, with all groups, as it was when it connected (unix(7))."""
    raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, gid = struct.unpack("3i", raw)
    groups: tuple[int, ...] = ()
    with contextlib.suppress(OSError):
        raw = link.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
        groups = struct.unpack(f"{len(raw) // 4}I", raw)
    return Peer(uid=uid, groups=frozenset((gid, *groups)))


def bind_socket(
    sock: socket.socket,
    path: Path,
    *,
    mode: int = 0o600,
    owner: int = -1,
    backlog: int | None = None,
) -> None:
    """Bind ``sock`` to ``path`` with ``mode``; what a dead process left there is replaced.

    With ``backlog`` it also listens, before the name appears. ``owner``: a uid (-1: our own).

    Anything else than a socket there is an error: it is not ours.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} exists and is no socket")
    # Bound beside and renamed, so that nobody can connect before the mode is right. The way by
    # /proc fits where the path is longer than a socket's may be (107 bytes, unix(7)).
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
    """Remove the socket file if it is still that very one."""
    with contextlib.suppress(OSError):
        if os.lstat(path).st_ino == inode:
            os.unlink(path)
