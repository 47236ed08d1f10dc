"""Orders of people and agents: withdrawals of notices, and saves. (Notices are taken in by the
poller.)

An order waits until it was carried out, and only then its source acknowledges it. So a service that
starts after a crash receives the order again. A withdrawal that raises stays in the queue. A save
that was tried is finished; the recorded decisions show its result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import ClassVar

from msgspec import Struct

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.state.ckptstate.orders import AnyOrder


class ReceivedOrder(Struct, frozen=True):
    """An order and the handle by which its source knows it. A source may use a handle again for
    another order.
    """

    handle: str
    order: AnyOrder


class Orders:
    """Orders that wait, are under way, or wait to be acknowledged. Thread-safe: pollers deliver
    orders, the loop takes them, and the crew carries them out. ``wake`` is called for each new
    order.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_waiting", "_begun", "_done")}

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: dict[ReceivedOrder, None] = {}
        self._begun: set[ReceivedOrder] = set()
        self._done: set[ReceivedOrder] = set()

    def receive(self, order: ReceivedOrder) -> bool:
        """Take the order in. A source may deliver it many times. Returns True if it was carried
        out, so that the source can acknowledge it.
        """
        with self._lock:
            # Carried out but not acknowledged yet: the source still delivers it.
            if order in self._done:
                return True
            if order in self._waiting or order in self._begun:
                return False
            self._waiting[order] = None
        # After the lock is free, because the woken loop takes it at once.
        self._wake()
        return False

    def waiting(self) -> list[ReceivedOrder]:
        """The orders that were not begun yet, oldest first."""
        with self._lock:
            return list(self._waiting)

    def mark_begun(self, order: ReceivedOrder) -> None:
        """Note that the order is being carried out."""
        with self._lock:
            self._waiting.pop(order, None)
            self._begun.add(order)

    def mark_done(self, order: ReceivedOrder) -> None:
        """Note that the order was carried out or refused."""
        with self._lock:
            self._waiting.pop(order, None)
            self._begun.discard(order)
            self._done.add(order)

    def forget(self, acknowledged: Iterable[ReceivedOrder]) -> None:
        """Forget orders that their source has acknowledged."""
        with self._lock:
            self._done.difference_update(acknowledged)
