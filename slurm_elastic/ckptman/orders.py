"""The words of people and agents: notices of nodes, their withdrawal, and saves that are wanted.

One that is no notice waits from when a source tells it until it was carried out. Only then is it
acknowledged there, so that whoever starts after a crash is told it once more. A withdrawal that
fails by an exception waits on; a save that was tried is done with, and the journal says what became
of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import ClassVar

from msgspec import Struct

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.state.ckptstate.orders import AnyOrder


class ReceivedOrder(Struct, frozen=True):
    """An order, and the handle that its source knows it by; that may be used again for another."""

    handle: str
    order: AnyOrder


class Orders:
    """Safe for several threads: pollers tell, the loop takes, the crew carries out. ``woken`` is
    called when there is a new one.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_waiting", "_begun", "_carried")}

    def __init__(self, woken: Callable[[], None]) -> None:
        self._woken = woken
        self._lock = threading.Lock()
        self._waiting: dict[ReceivedOrder, None] = {}
        self._begun: set[ReceivedOrder] = set()
        self._carried: set[ReceivedOrder] = set()

    def receive(self, asked: ReceivedOrder) -> bool:
        """Take it in, however often it is told; whether it was carried out by now."""
        with self._lock:
            if asked in self._carried:
                return True
            if asked in self._waiting or asked in self._begun:
                return False
            self._waiting[asked] = None
        self._woken()
        return False

    def waiting(self) -> list[ReceivedOrder]:
        """The orders for which nothing was done yet, in the order in which they came."""
        with self._lock:
            return list(self._waiting)

    def mark_begun(self, asked: ReceivedOrder) -> None:
        """It is under way."""
        with self._lock:
            self._waiting.pop(asked, None)
            self._begun.add(asked)

    def mark_done(self, asked: ReceivedOrder) -> None:
        """It was carried out, or refused."""
        with self._lock:
            self._waiting.pop(asked, None)
            self._begun.discard(asked)
            self._carried.add(asked)

    def forget(self, done: Iterable[ReceivedOrder]) -> None:
        """Their source does not tell them any more."""
        with self._lock:
            self._carried.difference_update(done)
