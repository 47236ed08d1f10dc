"""One connection to the page: so long for a whole request, and a place while there are enough.

uvicorn's own time-out is for a connection that rests after an answer, and its bound counts those
of anybody: with a port of loopback any user of the host would shut the page's owner out.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterable

from uvicorn.protocols.http.h11_impl import H11Protocol

from slurm_elastic.base.unixsocket import peer_of

MOST = 128
"""Connections at once: with more, the oldest one that waits for no answer gives room."""
REQUEST = 10.0
"""Seconds from a request's first byte to its last one, and from the connection to that."""


class Connection(H11Protocol):
    """uvicorn's, bounded. A unix socket lets in its owner, root and members of ``group``."""

    group: int | None = None
    made = 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As asyncio calls it."""
        super().connection_made(transport)
        link = transport.get_extra_info("socket")
        if link.family == socket.AF_UNIX and not self._lets_in(link):
            transport.abort()
            return
        self.made = time.monotonic()
        self._watch()
        others = (one for one in self.connections if isinstance(one, Connection))
        if len(self.connections) > MOST:
            _give_room(others)

    def data_received(self, data: bytes) -> None:
        """As asyncio calls it."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio calls it."""
        self._rest()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no whole request waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    def _lets_in(self, link: socket.socket) -> bool:
        peer = peer_of(link)
        return peer.uid in (0, os.geteuid()) or self.group in peer.groups

    def _watch(self) -> None:
        if not self.is_idle:
            self._rest()
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST, self.transport.abort)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _give_room(connections: Iterable[Connection]) -> None:
    idle = [one for one in connections if one.is_idle]
    if idle:
        min(idle, key=lambda one: one.made).transport.abort()
