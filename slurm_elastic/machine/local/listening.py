"""The unix socket of a service that runs as root: checks the client's user, answers line by line.

The socket belongs to SlurmUser; root may always connect. We take the client's uid from the kernel,
before a thread works for the client.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Set
from pathlib import Path

from slurm_elastic.base.processes.bounded import Exceeded
from slurm_elastic.base.processes.server import Server, ServerBounds, ServerClient
from slurm_elastic.base.processes.unixsocket import Peer

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_CLIENTS = 16
"""Clients served at a time: the daemon and a few commands of operators."""
IDLE_TIMEOUT_S = 30.0
_MAX_LOGGED_UIDS = 100
_REFUSED = b'{"ok":false,"code":"NotPermitted","message":"only root and SlurmUser may ask"}\n'
_TOO_LONG = b'{"ok":false,"code":"InvalidRequest","message":"a request has 4 MiB at most"}\n'


class RootServer(Server):
    """Serves ``answer`` at ``path`` to the users ``uids``. Any other user gets the code
    NotPermitted.
    """

    busy_message = b'{"ok":false,"code":"Busy","message":"too many clients at a time"}\n'

    def __init__(self, path: Path, uids: Set[int], answer: Callable[[bytes], bytes]) -> None:
        self._uids, self._answer = uids, answer
        self._refused_uids: set[int] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        other_uids = sorted(uids - {0, os.getuid()})
        owner = other_uids[0] if len(other_uids) == 1 and os.getuid() == 0 else -1
        bounds = ServerBounds(max_clients=MAX_CLIENTS, max_line_bytes=MAX_LINE_BYTES, backlog=64)
        super().__init__(str(path), path, bounds, owner=owner)
        self._answering = self.start_threads("answer", MAX_CLIENTS)

    def refusal(self, peer: Peer) -> bytes:
        if peer.uid in self._uids:
            return b""
        # Log each uid once, and at most 100 uids: a user with a range of uids (subuid(5)) could
        # fill the log.
        is_new = peer.uid not in self._refused_uids
        if is_new and len(self._refused_uids) < _MAX_LOGGED_UIDS:
            log.warning("refused uid=%d", peer.uid)
            self._refused_uids.add(peer.uid)
        return _REFUSED

    async def attend(self, client: ServerClient) -> None:
        """Answer the client's lines until it closes the connection."""
        while True:
            try:
                line = await client.read_line(IDLE_TIMEOUT_S)
            except Exceeded:
                await client.send(_TOO_LONG, IDLE_TIMEOUT_S)
                return
            await client.send(
                await self._answering.call(self._answer, line) + b"\n", IDLE_TIMEOUT_S
            )
