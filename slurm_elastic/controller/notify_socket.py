"""The unix datagram socket by which slurmctld's programs wake a service.

A datagram is only a hint (``{"event": "resume"}``, ``{"event": "job-end", "job": 7}``): what is to
be done stands in the spool, so a lost one costs no more than the daemon's own period.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import stat
import threading
from pathlib import Path
from types import TracebackType

from slurm_elastic.state import statedir

log = logging.getLogger(__name__)

MAX_DATAGRAM = 4096
MAX_DRAINED = 1000
"""The most datagrams of one ``wait``, so that a flood cannot keep the daemon from its work."""


class WakeSocket:
    """Bound on construction (OSError where that fails); a socket file left by a crash is replaced.

    One daemon at a time: the caller holds the lock of the state directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bind_socket(self._socket, path)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._inode = os.stat(path).st_ino
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        """End a ``wait`` from another thread of this process; the next one, if there is none."""
        os.eventfd_write(self._bell, 1)

    def wait(self, timeout: float) -> list[bytes]:
        """All that has come, oldest first, once something has; empty after ``timeout`` seconds or a
        ``ring``.
        """
        # poll and not select: the daemon may hold more than 1024 descriptors (select(2)).
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        poll.poll(max(0.0, timeout) * 1000)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        payloads: list[bytes] = []
        while len(payloads) < MAX_DRAINED:
            try:
                payloads.append(self._socket.recv(MAX_DATAGRAM))
            except BlockingIOError:
                break
        return payloads

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close and remove the file, unless someone else's stands there by now."""
        self._socket.close()
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1
        remove_socket(self._path, self._inode)

    def __enter__(self) -> WakeSocket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Deaf:
    """In place of a wake socket that cannot be made: nobody is heard, and the time passes."""

    def __init__(self) -> None:
        self._bell = threading.Event()

    def ring(self) -> None:
        """End a ``wait`` from another thread of this process; the next one, if there is none."""
        self._bell.set()

    def wait(self, timeout: float) -> list[bytes]:
        """Until then, or a ``ring``."""
        self._bell.wait(max(0.0, timeout))
        self._bell.clear()
        return []


def bind_socket(
    sock: socket.socket, path: Path, *, mode: int = statedir.FILE, backlog: int | None = None
) -> None:
    """Bind ``sock`` to ``path`` with ``mode``; what a dead process left there is replaced.

    With ``backlog`` it also listens, before the name appears.

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
