"""Threads that take the most urgent work first, one piece of work a job at a time. Each kind of
work has threads of its own, so that what has a deadline never waits behind a save that could come
later, nor any save behind the removal of what nobody needs any more.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import ClassVar, NamedTuple

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.lasting import LastingThread

log = logging.getLogger(__name__)

Urgency = tuple[float, float]
"""Deadline (Unix time), then less the work at risk: smaller is more urgent."""


class WorkKind(Enum):
    """The purpose of a piece of work."""

    URGENT = auto()
    PERIODIC = auto()
    REMOVAL = auto()


class KeyedExecutor:
    """At most ``size`` at urgent work, half as many (one at least) at periodic, one at removals; 0:
    whoever submits does it at once. Threads start when needed.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_busy")}

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._busy: dict[int, WorkKind] = {}
        sizes = {WorkKind.URGENT: size, WorkKind.PERIODIC: max(size // 2, 1), WorkKind.REMOVAL: 1}
        self._lanes = {
            kind: _Lane(kind.name.lower(), most, self._lock, self._do)
            for kind, most in sizes.items()
        }

    def submit(
        self,
        job: int,
        order: Urgency,
        work: Callable[[], object],
        *,
        kind: WorkKind = WorkKind.URGENT,
        on_cancelled: Callable[[], object] = lambda: None,
    ) -> bool:
        """Have ``work`` done for that job; False where something waits or runs for it already.
        ``on_cancelled`` is called where it makes way before it has begun.
        """
        lane = self._lanes[kind]
        with self._lock:
            if job in self._busy or lane.closed:
                return False
            self._busy[job] = kind
            if self._size:
                lane.put(job, order, _Work(work, on_cancelled))
                return True
        self._do(job, work)
        return True

    def is_busy(self, job: int) -> bool:
        """Whether something waits or runs for that job."""
        with self._lock:
            return job in self._busy

    def cancel_periodic(self, job: int) -> WorkKind | None:
        """For what has a deadline: a periodic save of that job is on_cancelled unless it has begun.
        The kind of work that is still under way for the job; None where there is none.
        """
        with self._lock:
            work = self._lanes[WorkKind.PERIODIC].take_out(job)
            if work is None:
                return self._busy.get(job)
            del self._busy[job]
        work.on_cancelled()
        return None

    def close(self) -> None:
        """Forget what waits, and wait for what runs."""
        # All are told before any is waited for: they end side by side.
        for lane in self._lanes.values():
            lane.close()
        for lane in self._lanes.values():
            lane.join()

    def _do(self, job: int, work: Callable[[], object]) -> None:
        try:
            work()
        # The thread goes on: others' work waits for it, too.
        except Exception:
            log.exception("work fails in an unknown way job=%d", job)
        finally:
            with self._lock:
                self._busy.pop(job, None)


class _Work(NamedTuple):
    """A piece of work, and what is called where it is never done."""

    do: Callable[[], object]
    on_cancelled: Callable[[], object]


class _Lane:
    """The threads and the waiting work of one kind, under the crew's ``lock``."""

    guarded_by: ClassVar[GuardedBy] = {
        "_wake": Guarded(
            "_waiting", "_idle", "_threads", "closed", callers_hold_lock=["put", "take_out"]
        ),
    }

    def __init__(
        self,
        name: str,
        size: int,
        lock: threading.Lock,
        do: Callable[[int, Callable[[], object]], None],
    ) -> None:
        self._name, self._size, self._do = name, size, do
        self._wake = threading.Condition(lock)
        self._waiting: list[tuple[Urgency, int, int, _Work]] = []
        self._numbers = itertools.count()
        self._threads: list[LastingThread] = []
        self._idle = 0
        self.closed = False

    def put(self, job: int, order: Urgency, work: _Work) -> None:
        """The caller holds the lock."""
        heapq.heappush(self._waiting, (order, next(self._numbers), job, work))
        if self._idle < len(self._waiting) and len(self._threads) < self._size:
            name = f"{self._name}-{len(self._threads) + 1}"
            thread = LastingThread(name, self._run)
            self._threads.append(thread)
            thread.start()
        self._wake.notify()

    def take_out(self, job: int) -> _Work | None:
        """The work that waits for that job, which then does not; the caller holds the lock."""
        for at, (_, _, whose, work) in enumerate(self._waiting):
            if whose == job:
                del self._waiting[at]
                heapq.heapify(self._waiting)
                return work
        return None

    def close(self) -> None:
        """Forget what waits."""
        with self._wake:
            self.closed = True
            self._waiting.clear()
            self._wake.notify_all()

    def join(self) -> None:
        """Wait for what runs."""
        # We release the lock first, because each thread needs it to end.
        with self._wake:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._idle += 1
                while not self._waiting and not self.closed:
                    self._wake.wait()
                self._idle -= 1
                if not self._waiting:
                    return
                _, _, job, work = heapq.heappop(self._waiting)
            self._do(job, work.do)
