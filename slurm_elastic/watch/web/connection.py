"""One connection to the page: how long a request may take, and who goes if there are too many."""

from __future__ import annotations

import asyncio
import os
import socket
import time

from uvicorn.protocols.http.h11_impl import H11Protocol

from slurm_elastic.base.unixsocket import peer_of

MOST = 128
"""Connections at once. If there are more, the oldest one that waits for no answer is closed."""
REQUEST = 10.0
"""Seconds from the connection to a request's first byte, and from that to its last one."""


class Connection(H11Protocol):
    """uvicorn's, bounded. A unix socket lets in its owner, root and members of ``group``."""

    group: int | None = None
    made = 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio."""
        super().connection_made(transport)
        link = transport.get_extra_info("socket")
        if link.family == socket.AF_UNIX and not self._lets_in(link):
            transport.abort()
            return
        self.made = time.monotonic()
        self._watch()
        # The bound of uvicorn counts everybody: at a loopback port, any user of the host could shut
        # the page's owner out.
        if len(self.connections) > MOST:
            others = (one for one in self.connections if isinstance(one, Connection))
            idle = [one for one in others if one.is_idle]
            if idle:
                min(idle, key=lambda one: one.made).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._rest()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no complete request waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    def _lets_in(self, link: socket.socket) -> bool:
        peer = peer_of(link)
        return peer.uid in (0, os.geteuid()) or self.group in peer.groups

    def _watch(self) -> None:
        if not self.is_idle:
            self._rest()
        # The time-out of uvicorn begins only after an answer.
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST, self.transport.abort)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
