"""The read door: many users may ask, and no user can block another.

Each question is answered in its lane (one thread). In a lane users take turns, operators first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_elastic.base.processes.server import Server, ServerBounds, ServerClient
from slurm_elastic.base.processes.unixsocket import Peer
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.watch.door.answers import refused
from slurm_elastic.watch.door.fair_turns import FairTurns, WaitingQuestion
from slurm_elastic.watch.door.questions import Lane, lane_of

log = logging.getLogger(__name__)

_BUSY = refused("slurm-elasticd answers as many as it can at once; ask again in a moment")
_BROKEN = refused("slurm-elasticd could not answer this; its log has the error")


class DoorLimits(ServerBounds, frozen=True, kw_only=True):
    """Limits of the door, besides ``ServerBounds``.

    ``max_unread_bytes``: bytes of answers that clients have not read yet; one user may have half of
    them. ``request_timeout_s``, ``answer_timeout_s``, ``delivery_timeout_s``: seconds until the
    request is complete, until its answer is ready, and until the client has read it.
    ``rest_factor``: after each answer a lane pauses for this many times the answer's duration.
    """

    max_clients: int = 64
    per_user: int = 4
    reserved_places: int = 8
    rest_factor: float = 3.0
    max_unread_bytes: int = 128 << 20
    request_timeout_s: float = 5.0
    answer_timeout_s: float = 30.0
    delivery_timeout_s: float = 20.0


class Door(Server):
    """Serves ``answer`` at ``path``.

    ``trusts``: whether a peer has reserved connections; the function must not block. ``died`` is
    called if the door fails and will answer no more questions.
    """

    busy_message = _BUSY

    def __init__(
        self,
        path: Path,
        answer: Callable[[Peer, bytes], bytes],
        trusts: Callable[[Peer], bool],
        limits: DoorLimits | None = None,
        died: Callable[[], object] = lambda: None,
    ) -> None:
        self._died = died
        self._limits = limits or DoorLimits()
        # Mode 0666: the kernel's word about the peer (SO_PEERCRED) decides who may ask what.
        super().__init__("door", path, self._limits, mode=0o666)
        self._answer, self._trusts = answer, trusts
        self._lanes = {lane: FairTurns() for lane in Lane}
        self._failures = ReportOnce[str]()

    def trusts(self, peer: Peer) -> bool:
        return self._trusts(peer)

    def fail(self) -> None:
        super().fail()
        self._died()

    async def attend(self, client: ServerClient) -> None:
        """Answer one question per connection."""
        line = await client.read_line(self._limits.request_timeout_s)
        answer = asyncio.get_running_loop().create_future()
        question = WaitingQuestion(client.peer, client.user, client.trusted, line, answer)
        lane = self._lanes[lane_of(line, trusted=client.trusted)]
        lane.add(question)
        try:
            document = await client.wait_for(answer, self._limits.answer_timeout_s)
        except TimeoutError:
            document = _BUSY
        finally:
            answer.cancel()
            lane.withdraw(question)
        held = [(other.user, other.unsent_bytes) for other in self.clients]
        if not may_hold(client.user, held, self._limits.max_unread_bytes):
            document = _BUSY
        await client.send(document, self._limits.delivery_timeout_s)

    async def run_beside(self) -> None:
        """Answer questions in all lanes."""
        await asyncio.gather(*(self._work(lane, turns) for lane, turns in self._lanes.items()))

    async def _work(self, lane: Lane, turns: FairTurns) -> None:
        hands = self.start_threads(f"door-{lane}")
        while True:
            question = await turns.next()
            document, took = await hands.call(self._timed_answer, question)
            if not question.answer.done():
                question.answer.set_result(document)
            # Pause, so that a flood of questions cannot take the daemon's processor.
            await asyncio.sleep(min(self._limits.rest_factor * took, 2.0))

    def _timed_answer(self, question: WaitingQuestion) -> tuple[bytes, float]:
        """The answer, and its duration (s)."""
        began, document = time.monotonic(), _BROKEN
        try:
            document = self._answer(question.peer, question.line)
        except Exception as error:
            # Log each error once for ever: users could fill the log by repeating a question.
            if self._failures.is_news("door", repr(error)):
                log.exception("no answer at the read door uid=%d", question.peer.uid)
        return document, time.monotonic() - began


def may_hold(user: int | None, held: Sequence[tuple[int | None, int]], limit: int) -> bool:
    """Whether one more answer may be kept for a user; ``held``: (user, bytes) of kept answers."""
    users = sum(size for holder, size in held if holder == user)
    return users <= limit // 2 and sum(size for _, size in held) <= limit
