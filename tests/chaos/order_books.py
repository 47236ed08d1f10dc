"""What operators' orders promise: nothing starts where it is paused or drained, limits hold, machines that
must leave do. Kept apart from the ledger: by what was accepted, and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from slurm_elastic.base.hostlist import expand
from slurm_elastic.model.directive import Departure, Directive, LimitChange, Word
from slurm_elastic.state.ckptstate.orders import DROPS
from slurm_elastic.watch.door.questions import DirectAsk, EndAsk, Order
from tests.chaos.fakes import runs

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

SEEN = 60.0
"""Seconds within which a purchase that was decided before an order may still be written down."""

Key = tuple[type, tuple[str, ...]]


class Promise(NamedTuple):
    """An order that was accepted ``at`` (s of the run); it begins at ``starts``, and not before the
    head's clock shows ``dated`` (Unix time; 0 for an order that began at once).
    """

    word: Word
    at: float
    starts: float
    dated: float


class Bound(NamedTuple):
    """From then on (s of the run) at most so much may be; None: as configured."""

    since: float
    value: float | None


class OrderBooks:
    """Orders with an end of their own are not judged, as a wrong clock may end them at any time; they
    may move jobs (``_timed``).
    ``forgave``: orders were lost with a ledger, or may have been given without an answer.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._promises: dict[Key, Promise] = {}
        self._bounds: dict[tuple[str, str], list[Bound]] = {}
        self._timed: list[Departure] = []
        self._reloaded = float("-inf")
        self.forgave = False

    # what is ordered

    def begin(self, ask: Order, directives: Sequence[Directive]) -> Sequence[Directive]:
        """It is about to be carried out: what it may end, or replace, is promised no more. Returns the
        orders in force that it ends.
        """
        if isinstance(ask, EndAsk):
            ended = [d for d in directives if d.number in ask.numbers]
        else:
            key = _key(ask.word)
            ended = [d for d in directives if _key(d.word) == key]
        for directive in ended:
            self._promises.pop(_key(directive.word), None)
            self._loosen(directive.word)
        if isinstance(ask, DirectAsk):
            self._loosen(ask.word)
        return ended

    def _loosen(self, word: Word) -> None:
        if isinstance(word, LimitChange):
            bounds = self._bounds.setdefault((word.scope, word.key), [])
            bounds.append(Bound(self._stage.sched.now, float("inf")))

    def accept(self, ask: Order, now: float) -> None:
        """It was carried out."""
        if isinstance(ask, DirectAsk) and isinstance(ask.word, Departure):
            self._timed += [ask.word] if ask.seconds is not None else []
        if isinstance(ask, EndAsk) or ask.seconds is not None:
            return
        word, at = ask.word, self._stage.sched.now
        if isinstance(word, LimitChange):
            self._bounds[word.scope, word.key].append(Bound(at, word.value))
            return
        starts = at if ask.starts is None else at + max(ask.starts - now, 0.0)
        self._promises[_key(word)] = Promise(word, at, starts, ask.starts or 0.0)

    def reload(self) -> None:
        """Another configuration; what was decided by the one before may still be written down."""
        self._reloaded = self._stage.sched.now

    def lose(self) -> None:
        """The ledger was lost, and orders with it."""
        self._promises.clear()
        self._bounds.clear()
        self.forgave = True

    # what comes of it

    def most(self, scope: str, key: str, configured: float | None) -> float | None:
        """The most that may be there now; None for no limit."""
        now = self._stage.sched.now
        bounds = self._bounds.get((scope, key), [])
        recent = [b for b in bounds if b.since > now - SEEN] + [
            b for b in bounds if b.since <= now - SEEN
        ][-1:]
        values = [configured if b.value is None else b.value for b in recent]
        if not bounds:
            values = [configured]
        elif all(b.since > now - SEEN for b in bounds):
            values.append(configured)
        if now - self._reloaded < SEEN or any(v is None or v == float("inf") for v in values):
            return None
        return max(v for v in values if v is not None)

    def intends(self, nodes: Sequence[str]) -> None:
        """A purchase or a start for these nodes was decided, and is written down."""
        stage = self._stage
        for promise in self._promises.values():
            if not promise.word.blocks_starts or stage.sched.now < promise.starts + SEEN:
                continue
            # --at is a time of the head's clock, which may have been set back since.
            if stage.now() < promise.dated + SEEN:
                continue
            if closed := sorted(self._closed(promise.word) & set(nodes)):
                text = f"a machine starts for {closed}, and {promise.word.fact}"
                stage.books.wrong("order", f"{text} since {promise.at:.0f} s")

    def _closed(self, word: Word) -> set[str]:
        if isinstance(word, Departure):
            return set(word.nodes)
        pools = [
            pool
            for pool in self._stage.config.pools
            if word.scope in ("", f"pool:{pool.name}", f"cloud:{pool.cloud}")
        ]
        return {node for pool in pools for node in expand(pool.nodes)}

    def moves_jobs(self, node: str) -> bool:
        """Whether jobs of that node may be moved by an order."""
        words = (*(promise.word for promise in self._promises.values()), *self._timed)
        return any(
            isinstance(word, Departure) and word.aggressive and node in word.nodes for word in words
        )

    def outstanding(self) -> str:
        """The first promise that has not come true; empty if all have."""
        stage = self._stage
        for promise in self._promises.values():
            word = promise.word
            if not isinstance(word, Departure):
                continue
            for one in stage.alive():
                since = stage.accounts[one.cloud].turns[one.id][-1].at
                if one.node in word.nodes and runs(one) and since < promise.starts:
                    return f"{one.id} of {one.node} is there, and {word.fact}"
        waiting = sorted(path.name for path in (stage.config.state / DROPS).glob("*.json"))
        return f"nobody has taken in {waiting}" if waiting else ""


def _key(word: Word) -> Key:
    return type(word), word.replaced_key
