"""The unix socket of the local agent: who may speak, and one answer a line.

The socket is SlurmUser's own (root may always connect), and the kernel says who is at the other end
before a thread is spent: nobody else can cost the agent anything but a moment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

from slurm_elastic.base.bounded import Seats

log = logging.getLogger(__name__)

MAX_LINE = 4 * 1024 * 1024
CLIENTS = 16
"""Served at a time: the daemon and a few commands of operators."""
_IDLE = 30.0
_REFUSED = b'{"ok":false,"code":"NotPermitted","message":"only root and SlurmUser may ask"}\n'
_BUSY = b'{"ok":false,"code":"Busy","message":"too many clients at a time"}\n'


class Server(Seats, socketserver.UnixStreamServer):
    """Serves ``answer`` at ``path`` to the users ``uids``; anyone else gets NotPermitted."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, uids: Set[int], answer: Callable[[bytes], bytes]) -> None:
        self.uids = uids
        self.answer = answer
        self.seats = threading.BoundedSemaphore(CLIENTS)
        self._turned_away: set[int] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Left by an agent that was killed; the caller holds the lock, so nobody listens on it.
        path.unlink(missing_ok=True)
        super().__init__(str(path), _Conversation)

    def server_bind(self) -> None:
        """Nobody but its owner can connect, from the first moment on (bind(2) takes this mode)."""
        os.fchmod(self.fileno(), 0o600)
        super().server_bind()
        others = sorted(self.uids - {0, os.getuid()})
        if len(others) == 1 and os.getuid() == 0:
            os.chown(str(self.server_address), others[0], -1, follow_symlinks=False)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401, ARG002
        """Before a thread is spent: who it is, and whether there is a seat."""
        try:
            uid = peer(request)
        except OSError:
            return False
        if uid not in self.uids:
            if uid not in self._turned_away:
                log.warning("refused uid=%d", uid)
                self._turned_away.add(uid)
            return _turn_away(request, _REFUSED)
        return self.seats.acquire(blocking=False) or _turn_away(request, _BUSY)


class _Conversation(socketserver.StreamRequestHandler):
    server: Server
    timeout = _IDLE

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while line := self.rfile.readline(MAX_LINE):
                self.wfile.write(self.server.answer(line) + b"\n")


def _turn_away(request: socket.socket, why: bytes) -> bool:
    """Say why, if that takes no waiting; False."""
    with contextlib.suppress(OSError):
        request.setblocking(False)
        request.send(why)
    return False


def peer(connection: socket.socket) -> int:
    """The uid of the other end, by the kernel (SO_PEERCRED, unix(7))."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("3i", raw)
    return int(uid)
