"""Decides whose question at the read door is answered next."""

from __future__ import annotations

import asyncio
from collections import deque

from msgspec import Struct

from slurm_elastic.base.unixsocket import Peer


class Question(Struct, eq=False):
    """A question that waits in a lane; whoever asked waits for ``answer``. ``user``: as whom the
    peer counts (``CountedUsers``).
    """

    peer: Peer
    user: int | None
    trusted: bool
    line: bytes
    answer: asyncio.Future[bytes]


class Turns:
    """The questions that wait in a lane: one of each user in turn, trusted users first. ``served``:
    the other questions of the user who was answered last; users who come meanwhile go first.
    """

    def __init__(self) -> None:
        self._waiting: dict[int | None, deque[Question]] = {}
        self._served: dict[int | None, deque[Question]] = {}
        self._news = asyncio.Event()

    def add(self, one: Question) -> None:
        """Put the question after its user's others."""
        users = self._served if one.user in self._served else self._waiting
        users.setdefault(one.user, deque()).append(one)
        self._news.set()

    def withdraw(self, gone: Question) -> None:
        """Remove a question whose answer nobody waits for any more."""
        user = gone.user
        for users in (self._waiting, self._served):
            if user in users:  # the user keeps their turn
                users[user] = deque(one for one in users[user] if one is not gone)
        if not self._waiting.get(user, True):
            del self._waiting[user]

    def take(self) -> Question | None:
        """The next one."""
        # Whoever was served last comes after all who wait by now.
        self._waiting |= {user: queue for user, queue in self._served.items() if queue}
        self._served = {}
        users = [user for user, queue in self._waiting.items() if queue[0].trusted] or self._waiting
        for user in users:
            queue = self._waiting.pop(user)
            self._served = {user: queue}
            return queue.popleft()
        return None

    async def next(self) -> Question:
        """The next one, once there is one."""
        while (one := self.take()) is None:
            self._news.clear()
            await self._news.wait()
        return one
