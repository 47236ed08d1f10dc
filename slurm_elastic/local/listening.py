"""The unix socket of the local agent: who may speak, and one answer a line."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import socketserver
import struct
from collections.abc import Callable, Set
from pathlib import Path

log = logging.getLogger(__name__)

MAX_LINE = 4 * 1024 * 1024
_REFUSED_LINE = 64 * 1024
_IDLE = 30.0
_REFUSED = b'{"ok":false,"code":"NotPermitted","message":"only root and SlurmUser may ask"}\n'


class Server(socketserver.ThreadingUnixStreamServer):
    """Serves ``answer`` at ``path`` to the users ``uids``; anyone else gets NotPermitted."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, uids: Set[int], answer: Callable[[bytes], bytes]) -> None:
        self.uids = uids
        self.answer = answer
        path.parent.mkdir(parents=True, exist_ok=True)
        # Left by an agent that was killed; the caller holds the lock, so nobody listens on it.
        path.unlink(missing_ok=True)
        super().__init__(str(path), _Conversation)
        # Who may speak is decided by SO_PEERCRED, which a file mode cannot express for two users.
        os.chmod(path, 0o666)  # noqa: S103


class _Conversation(socketserver.StreamRequestHandler):
    server: Server
    timeout = _IDLE

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            uid = peer(self.connection)
            if uid not in self.server.uids:
                log.warning("refused uid=%d", uid)
                # The answer reaches only who was let speak: a client still writing gets EPIPE.
                self.rfile.readline(_REFUSED_LINE)
                self.wfile.write(_REFUSED)
                return
            while line := self.rfile.readline(MAX_LINE):
                self.wfile.write(self.server.answer(line) + b"\n")


def peer(connection: socket.socket) -> int:
    """The uid of the other end, by the kernel (SO_PEERCRED, unix(7))."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("3i", raw)
    return int(uid)
