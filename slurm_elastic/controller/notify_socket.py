"""The unix datagram socket by which slurmctld's programs wake a service.

A datagram is only a hint (``{"event": "resume"}``, ``{"event": "job-end", "job": 7}``): what is to
be done stands in the spool, so a lost one costs no more than the daemon's own period. It is waited
for by the thread that acts on it: no other one (``server``) is on the way of a request.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from pathlib import Path
from types import TracebackType

from slurm_elastic.base.unixsocket import bind_socket, remove_socket

MAX_DATAGRAM = 4096
MAX_DRAINED = 1000
"""The most datagrams of one ``wait``, so that a flood cannot keep the daemon from its work."""


class WakeSocket:
    """Bound on construction (OSError where that fails); a socket file left by a crash is replaced.
    Without a ``path`` nobody is heard, and the time passes.

    One daemon at a time: the caller holds the lock of the state directory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            if path is not None:
                bind_socket(self._socket, path)
                self._inode = os.stat(path).st_ino
        except OSError:
            self._socket.close()
            raise
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
        with contextlib.suppress(BlockingIOError):
            while len(payloads) < MAX_DRAINED:
                payloads.append(self._socket.recv(MAX_DATAGRAM))
        return payloads

    def close(self) -> None:
        """Close and remove the file, unless someone else's stands there by now."""
        self._socket.close()
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1
        if self._path is not None:
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
