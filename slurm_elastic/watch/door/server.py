"""The read door: any number of users ask, and none of them holds up another. Each question is
answered in its lane (one thread), users by turns, operators first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.server import Bounds, Client, Server
from slurm_elastic.base.unixsocket import Peer
from slurm_elastic.watch.door.answers import refused
from slurm_elastic.watch.door.fair_turns import Question, Turns
from slurm_elastic.watch.door.questions import Lane, lane_of

log = logging.getLogger(__name__)

_BUSY = refused("slurm-elasticd answers as many as it can at once; ask again in a moment")
_BROKEN = refused("slurm-elasticd could not answer this; its log says why")


class Limits(Bounds, frozen=True, kw_only=True):
    """``held``: bytes of answers that nobody has taken yet; one user may have half of them. Seconds
    are for the request, until its answer, and for taking that. After each answer a lane pauses for
    ``rest`` times what it took.
    """

    clients: int = 64
    each: int = 4
    kept: int = 8
    rest: float = 3.0
    held: int = 128 << 20
    request: float = 5.0
    answer: float = 30.0
    taking: float = 20.0


class Door(Server):
    """Serves ``answer`` at ``path``; ``trusts``: who has places of their own. It must not wait.
    ``died`` is called if the door fails and answers nobody from then on.
    """

    busy = _BUSY

    def __init__(
        self,
        path: Path,
        answer: Callable[[Peer, bytes], bytes],
        trusts: Callable[[Peer], bool],
        limits: Limits | None = None,
        died: Callable[[], object] = lambda: None,
    ) -> None:
        self._died = died
        self._limits = limits or Limits()
        # Who may ask is decided by what the kernel says (SO_PEERCRED), not by the mode.
        super().__init__("door", path, self._limits, mode=0o666)
        self._answer, self._trusts = answer, trusts
        self._lanes = {lane: Turns() for lane in Lane}
        self._failures = ReportOnce[str]()

    def trusts(self, peer: Peer) -> bool:
        return self._trusts(peer)

    def fail(self) -> None:
        super().fail()
        self._died()

    async def attend(self, client: Client) -> None:
        """Answer one question and no more: whoever goes on talking does not wait for an answer."""
        line = await client.line(self._limits.request)
        answer = asyncio.get_running_loop().create_future()
        question = Question(client.peer, client.user, client.trusted, line, answer)
        lane = self._lanes[lane_of(line, trusted=client.trusted)]
        lane.add(question)
        try:
            document = await client.meanwhile(answer, self._limits.answer)
        except TimeoutError:
            document = _BUSY
        finally:
            answer.cancel()
            lane.withdraw(question)
        held = [(one.user, one.held) for one in self.clients]
        if not may_hold(client.user, held, self._limits.held):
            document = _BUSY
        await client.send(document, self._limits.taking)

    async def beside(self) -> None:
        """Answer questions in all lanes."""
        await asyncio.gather(*(self._work(lane, turns) for lane, turns in self._lanes.items()))

    async def _work(self, lane: Lane, turns: Turns) -> None:
        hands = self.hands(f"door-{lane}")
        while True:
            one = await turns.next()
            document, took = await hands.do(self._told, one)
            if not one.answer.done():
                one.answer.set_result(document)
            # So that no number of questions takes the daemon's processor.
            await asyncio.sleep(min(self._limits.rest * took, 2.0))

    def _told(self, one: Question) -> tuple[bytes, float]:
        """The answer, and how many seconds it took."""
        began, document = time.monotonic(), _BROKEN
        try:
            document = self._answer(one.peer, one.line)
        except Exception as error:
            # Never over: users may ask again and again, and other questions are answered.
            if self._failures.is_news("door", repr(error)):
                log.exception("no answer at the read door uid=%d", one.peer.uid)
        return document, time.monotonic() - began


def may_hold(user: int | None, held: Sequence[tuple[int | None, int]], most: int) -> bool:
    """Whether one more answer may be kept for a user, given what is kept for each already."""
    users = sum(size for holder, size in held if holder == user)
    return users <= most // 2 and sum(size for _, size in held) <= most
