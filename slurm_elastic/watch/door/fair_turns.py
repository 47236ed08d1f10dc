"""Decides whose question at the read door is answered next."""

from __future__ import annotations

import asyncio
from collections import deque

from msgspec import Struct

from slurm_elastic.base.processes.unixsocket import Peer


class WaitingQuestion(Struct, eq=False):
    """A question that waits in a lane; its client waits for ``answer``.

    ``user``: the user that the peer counts as (``CountedUsers``).
    """

    peer: Peer
    user: int | None
    trusted: bool
    line: bytes
    answer: asyncio.Future[bytes]


class FairTurns:
    """The questions that wait in a lane: each user's next in turn, trusted users first.

    ``_served``: the other questions of the user who was answered last. New users go before them.
    """

    def __init__(self) -> None:
        self._waiting: dict[int | None, deque[WaitingQuestion]] = {}
        self._served: dict[int | None, deque[WaitingQuestion]] = {}
        self._news = asyncio.Event()

    def add(self, question: WaitingQuestion) -> None:
        """Put the question after the other questions of its user."""
        users = self._served if question.user in self._served else self._waiting
        users.setdefault(question.user, deque()).append(question)
        self._news.set()

    def withdraw(self, withdrawn: WaitingQuestion) -> None:
        """Remove a question whose client has gone."""
        user = withdrawn.user
        for users in (self._waiting, self._served):
            if user in users:  # the user keeps their turn
                users[user] = deque(
                    question for question in users[user] if question is not withdrawn
                )
        if not self._waiting.get(user, True):
            del self._waiting[user]

    def take(self) -> WaitingQuestion | None:
        """Take the next question out of the lane. None if no question waits."""
        # The user who was served last moves behind all users who wait now.
        self._waiting |= {user: queue for user, queue in self._served.items() if queue}
        self._served = {}
        users = [user for user, queue in self._waiting.items() if queue[0].trusted] or self._waiting
        for user in users:
            queue = self._waiting.pop(user)
            self._served = {user: queue}
            return queue.popleft()
        return None

    async def next(self) -> WaitingQuestion:
        """Wait for the next question and take it out."""
        while (question := self.take()) is None:
            self._news.clear()
            await self._news.wait()
        return question
