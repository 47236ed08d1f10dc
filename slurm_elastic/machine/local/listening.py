"""The unix socket of a service that runs as root: who may use it, and one answer a line.

The socket belongs to SlurmUser (root may always connect). The kernel says who is at the other end
before we spend a thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Set
from pathlib import Path

from slurm_elastic.base.bounded import Exceeded
from slurm_elastic.base.server import Bounds, Client, Server
from slurm_elastic.base.unixsocket import Peer

log = logging.getLogger(__name__)

MAX_LINE = 4 * 1024 * 1024
CLIENTS = 16
"""Clients served at a time: the daemon and a few commands of operators."""
IDLE = 30.0
_MAX_LOGGED_UIDS = 100
_REFUSED = b'{"ok":false,"code":"NotPermitted","message":"only root and SlurmUser may ask"}\n'
_TOO_LONG = b'{"ok":false,"code":"InvalidRequest","message":"a request has 4 MiB at most"}\n'


class RootServer(Server):
    """Serves ``answer`` at ``path`` to the users ``uids``; anyone else gets NotPermitted."""

    busy = b'{"ok":false,"code":"Busy","message":"too many clients at a time"}\n'

    def __init__(self, path: Path, uids: Set[int], answer: Callable[[bytes], bytes]) -> None:
        self._uids, self._answer = uids, answer
        self._turned_away: set[int] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        others = sorted(uids - {0, os.getuid()})
        owner = others[0] if len(others) == 1 and os.getuid() == 0 else -1
        bounds = Bounds(clients=CLIENTS, line=MAX_LINE, backlog=64)
        super().__init__(str(path), path, bounds, owner=owner)
        self._answering = self.hands("answer", CLIENTS)

    def refusal(self, peer: Peer) -> bytes:
        if peer.uid in self._uids:
            return b""
        # Logged once for each uid, and for so many: a user could fill the log otherwise, as one
        # with a range of uids (subuid(5)) could.
        is_new = peer.uid not in self._turned_away
        if is_new and len(self._turned_away) < _MAX_LOGGED_UIDS:
            log.warning("refused uid=%d", peer.uid)
            self._turned_away.add(peer.uid)
        return _REFUSED

    async def attend(self, client: Client) -> None:
        """Answer line after line, as long as they come."""
        while True:
            try:
                line = await client.line(IDLE)
            except Exceeded:
                await client.send(_TOO_LONG, IDLE)
                return
            await client.send(await self._answering.do(self._answer, line) + b"\n", IDLE)
