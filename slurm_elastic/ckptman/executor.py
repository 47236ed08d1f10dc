"""Threads that do the most urgent work first and one piece of work per job at a time.

Each kind of work has its own threads. Work with a deadline never waits behind a periodic save, and
no save waits behind the removal of old images.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from enum import Enum, auto
from typing import ClassVar, NamedTuple

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.processes.lasting import LastingThread

log = logging.getLogger(__name__)

Urgency = tuple[float, float]
"""Deadline (Unix time), then minus the work at risk (node-seconds). The smaller tuple is more
urgent.
"""


class WorkKind(Enum):
    """The kinds of work; each has its own threads."""

    URGENT = auto()
    PERIODIC = auto()
    REMOVAL = auto()


class KeyedExecutor:
    """Threads per kind of work: ``size`` for urgent work, ``size / 2`` (at least one) for periodic
    saves, one for removals. They start when they are needed. With ``size=0`` work runs in the
    caller's thread.

    Half as many further threads serve only users who have fewer than half of the threads. A save
    may wait until its deadline for a program that does not answer, and when a cloud takes a zone
    back, the saves of all users have the same deadline.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_busy")}

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._busy: dict[int, WorkKind] = {}
        sizes = {WorkKind.URGENT: size, WorkKind.PERIODIC: max(size // 2, 1), WorkKind.REMOVAL: 1}
        self._lanes = {
            kind: _Lane(kind.name.lower(), lane_size, self._lock, self._do)
            for kind, lane_size in sizes.items()
        }

    def submit(
        self,
        job: int,
        order: Urgency,
        work: Callable[[], object],
        *,
        user: str = "",
        kind: WorkKind = WorkKind.URGENT,
        on_cancelled: Callable[[], object] = lambda: None,
    ) -> bool:
        """Queue ``work`` for that job of ``user``. Returns False if work for the job already waits
        or runs.
        ``on_cancelled`` is called if the work is cancelled before it begins.
        """
        lane = self._lanes[kind]
        with self._lock:
            if job in self._busy or lane.closed:
                return False
            # Marked under the lock of the check, so that no second piece of work slips in.
            self._busy[job] = kind
            if self._size:
                lane.put(job, order, _Work(work, on_cancelled, user))
                return True
        # A size of 0 is for tests: the work runs here. Not under the lock, which ``_do`` takes.
        self._do(job, work)
        return True

    def is_busy(self, job: int) -> bool:
        """Whether work for that job waits or runs."""
        with self._lock:
            return job in self._busy

    def cancel_periodic(self, job: int) -> WorkKind | None:
        """Cancel a periodic save of that job if it has not begun, because the job now has a
        deadline. Returns the kind of other work under way for the job, or None.
        """
        with self._lock:
            work = self._lanes[WorkKind.PERIODIC].take_out(job)
            if work is None:
                return self._busy.get(job)
            del self._busy[job]
        # Outside the lock: it writes to the disk, and it may ask this executor about the job.
        work.on_cancelled()
        return None

    def close(self) -> None:
        """Drop the work that waits, and wait for the work that runs."""
        # First tell all lanes to end, then wait: so they end side by side.
        for lane in self._lanes.values():
            lane.close()
        for lane in self._lanes.values():
            lane.join()

    def _do(self, job: int, work: Callable[[], object]) -> None:
        try:
            work()
        # Catch everything: the thread must continue, because the work of other jobs waits for it.
        except Exception:
            log.exception("work for a job failed with an unexpected error job=%d", job)
        finally:
            with self._lock:
                self._busy.pop(job, None)


class _Work(NamedTuple):
    """A piece of work, and what to call if it is cancelled."""

    do: Callable[[], object]
    on_cancelled: Callable[[], object]
    user: str


class _Lane:
    """The threads and the queue of one kind of work. ``lock`` is the executor's."""

    guarded_by: ClassVar[GuardedBy] = {
        "_wake": Guarded(
            "_waiting",
            "_idle",
            "_threads",
            "_running",
            "closed",
            callers_hold_lock=["put", "take_out", "_may_begin", "_take_next"],
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
        self._share = size // 2
        self._running = Counter[str]()
        self._wake = threading.Condition(lock)
        self._waiting: list[tuple[Urgency, int, int, _Work]] = []
        self._numbers = itertools.count()
        self._threads: list[LastingThread] = []
        self._idle = 0
        self.closed = False

    def put(self, job: int, order: Urgency, work: _Work) -> None:
        """Queue the work. The caller holds the lock."""
        # The number keeps equal orders in their sequence, and works cannot be compared.
        heapq.heappush(self._waiting, (order, next(self._numbers), job, work))
        # A notified thread counts as idle until it wakes, so we compare with all the work that
        # waits.
        is_wanted = self._idle < len(self._waiting) and self._may_begin(work)
        if is_wanted and len(self._threads) < self._size + self._share:
            name = f"{self._name}-{len(self._threads) + 1}"
            thread = LastingThread(name, self._run)
            self._threads.append(thread)
            thread.start()
        self._wake.notify()

    def _may_begin(self, work: _Work) -> bool:
        """Whether a thread may do the work now. The caller holds the lock."""
        running = self._running.total()
        is_extra = running < self._size + self._share and self._running[work.user] < self._share
        return running < self._size or is_extra

    def _take_next(self) -> tuple[int, _Work] | None:
        """Remove and return the most urgent work that may begin. The caller holds the lock."""
        if self._waiting and self._running.total() < self._size:
            _, _, job, work = heapq.heappop(self._waiting)
            return job, work
        due = min((item for item in self._waiting if self._may_begin(item[3])), default=None)
        if due is None:
            return None
        self._waiting.remove(due)
        heapq.heapify(self._waiting)
        return due[2], due[3]

    def take_out(self, job: int) -> _Work | None:
        """Remove and return the work that waits for that job. The caller holds the lock."""
        for index, (_, _, queued_job, work) in enumerate(self._waiting):
            if queued_job == job:
                del self._waiting[index]
                heapq.heapify(self._waiting)
                return work
        return None

    def close(self) -> None:
        """Drop the work that waits, and let the threads end."""
        with self._wake:
            self.closed = True
            self._waiting.clear()
            self._wake.notify_all()

    def join(self) -> None:
        """Wait until all threads have ended."""
        # We release the lock first, because each thread needs it to end.
        with self._wake:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._idle += 1
                while (due := self._take_next()) is None and not self.closed:
                    self._wake.wait()
                self._idle -= 1
                # Closed: work that still waits was dropped.
                if due is None:
                    return
                job, work = due
                self._running[work.user] += 1
            try:
                self._do(job, work.do)
            finally:
                with self._wake:
                    self._running[work.user] -= 1
