"""One connection to the page: time-outs of requests, and a limit on the number of connections."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter

from uvicorn.protocols.http.h11_impl import H11Protocol

from slurm_elastic.base.processes.unixsocket import Peer, peer_of

MAX_CONNECTIONS = 128
"""If more connections are open, the oldest idle one is closed."""
REQUEST_TIMEOUT_S = 10.0
"""Time-out from the connection to a request's first byte, and from there to its last byte."""


class Connection(H11Protocol):
    """uvicorn's connection with limits. A unix socket admits its owner, root and ``group``."""

    group: int | None = None
    uid = -1
    opened_at = 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit or refuse the peer, and start its time-out. asyncio calls this for each new
        connection.
        """
        super().connection_made(transport)
        link = transport.get_extra_info("socket")
        if link.family == socket.AF_UNIX:
            peer = peer_of(link)
            if not self._lets_in(peer):
                transport.abort()
                return
            self.uid = peer.uid
            # uvicorn copies it into the state of each request of this connection.
            self.app_state = {**self.app_state, "peer": peer}
        self.opened_at = time.monotonic()
        self._start_timer()
        # Not uvicorn's own limit: it refuses new connections, so at a loopback port any user of the
        # host could shut the page's owner out.
        if len(self.connections) > MAX_CONNECTIONS:
            others_open = (
                connection for connection in self.connections if isinstance(connection, Connection)
            )
            idle = [connection for connection in others_open if connection.is_idle]
            if idle:
                self._oldest_of_busiest(idle).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Start the time-out of a request, or cancel it once the request is complete.

        asyncio calls this when bytes have come.
        """
        super().data_received(data)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time-out. asyncio calls this once, at the connection's end."""
        self._cancel_timer()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no complete request waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    @staticmethod
    def _oldest_of_busiest(idle: list[Connection]) -> Connection:
        """The oldest connection of the user with the most, so that a flood closes its own."""
        counts = Counter(connection.uid for connection in idle)
        return min(idle, key=lambda each: (-counts[each.uid], each.opened_at))

    def _lets_in(self, peer: Peer) -> bool:
        return peer.uid in (0, os.geteuid()) or self.group in peer.groups

    def _start_timer(self) -> None:
        if not self.is_idle:
            self._cancel_timer()
        # uvicorn's own time-out begins only after an answer.
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_TIMEOUT_S, self.transport.abort)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
