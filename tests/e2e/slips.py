"""slurm-elasticd that stands still once right before it sends what has ``SLIPS`` in it: it has
looked at who acts for the last time, and the kernel has not got it yet. It goes on by SIGCONT, on
a connection of its own: servers here close one that says nothing sooner than a head takes over.

``SLIPS_ONCE`` names the file that it makes then.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any
from weakref import WeakKeyDictionary

from slurm_elastic.cli.services import daemon

_WORDS = os.environ["SLIPS"].encode()
_ONCE = os.environ["SLIPS_ONCE"]
_connect, _send = socket.socket.connect, socket.socket.sendall
_peers: WeakKeyDictionary[socket.socket, Any] = WeakKeyDictionary()
_before: WeakKeyDictionary[socket.socket, bytes] = WeakKeyDictionary()


def _connects(self: socket.socket, peer: Any) -> None:
    _peers[self] = peer
    _connect(self, peer)


def _sendall(self: socket.socket, data: Any, *flags: int) -> None:
    if _WORDS in bytes(data):
        _stand_still(self, _before.get(self, b""))
    _before[self] = bytes(data)
    _send(self, data, *flags)


def _stand_still(connection: socket.socket, head: bytes) -> None:
    """``head``: of the question, where that is a piece of its own."""
    try:
        os.close(os.open(_ONCE, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    signal.raise_signal(signal.SIGSTOP)  # of this thread, which so sends nothing before it
    with socket.socket(connection.family, connection.type) as again:
        again.connect(_peers[connection])
        os.dup2(again.fileno(), connection.fileno())
    _send(connection, head)


if __name__ == "__main__":
    socket.socket.connect = _connects  # type: ignore[method-assign]
    socket.socket.sendall = _sendall  # type: ignore[method-assign]
    sys.exit(daemon.main())
