"""The unix datagram socket by which slurmctld's programs wake a service.

A datagram is only a hint (``{"event": "resume"}``, ``{"event": "job-end", "job": 7}``). The request
itself is in the spool, so a lost datagram costs one period of the main loop. The thread that acts
on requests waits on the socket itself: a server thread in between would delay each request.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from pathlib import Path
from types import TracebackType

from slurm_elastic.base.processes.unixsocket import bind_socket, remove_socket

MAX_DATAGRAM = 4096
MAX_DRAINED = 1000
"""The most datagrams that one ``wait`` reads, so that a flood of them cannot stop the daemon."""


class WakeSocket:
    """The socket, bound when it is made. It replaces a socket file that a crash has left. OSError
    if it cannot be bound. If there is no ``path``, no program can wake the service, and ``wait``
    only waits.

    The caller must hold the lock of the state directory, so that only one daemon runs.
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
        """End the ``wait`` in which another thread of this process is. If no thread waits, end the
        next ``wait``.
        """
        os.eventfd_write(self._bell, 1)

    def wait(self, timeout: float) -> list[bytes]:
        """Wait for datagrams and return them, oldest first; empty after ``timeout`` seconds or a
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
        """Close the socket and remove its file, unless another process has replaced the file."""
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
