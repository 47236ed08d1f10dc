"""Calls that may never end, each given up after a time.

A process that asks a file system whose server is gone waits in the kernel, and no time-out ends
that (nfs(5), "hard"). The same is true if the server is a user's process (fuse(4)), and code of
other packages may wait for anything. So each call runs in a daemon thread of its own. A thread that
does not end is abandoned, and does not keep the process from ending.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import ClassVar, TypeVar

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.units import brief

MAX_ABANDONED = 4
"""Abandoned threads per owner. At this number its next calls fail until a thread has ended."""
_SLICES = 20
"""The number of parts of a wait. If the host is suspended for a while, the call stands still as
well, and the pause uses up only one part of its time.
"""

T = TypeVar("T")


class InTime:
    """Runs calls, and counts them per ``owner``, so that no owner takes another one's threads."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_abandoned")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._abandoned: defaultdict[Hashable, list[threading.Thread]] = defaultdict(list)

    def call(self, owner: Hashable, call: Callable[[], T], seconds: float) -> T:
        """Return the call's result, or raise its error.

        TimeoutError after ``seconds``, or if too many calls of the owner have not ended.
        """
        with self._lock:
            alive = [thread for thread in self._abandoned.pop(owner, ()) if thread.is_alive()]
            if alive:
                self._abandoned[owner] = alive
            if len(alive) >= MAX_ABANDONED:
                raise TimeoutError("earlier calls have not ended")
        results: list[T] = []
        errors: list[BaseException] = []
        thread = threading.Thread(target=_collect, args=(call, results, errors), daemon=True)
        thread.start()
        for _ in range(_SLICES):
            thread.join(seconds / _SLICES)
        if thread.is_alive():
            with self._lock:
                self._abandoned[owner].append(thread)
            raise TimeoutError(f"no answer in {brief(seconds)}")
        if errors:
            raise errors[0]
        return results[0]


def _collect(call: Callable[[], T], results: list[T], errors: list[BaseException]) -> None:
    try:
        results.append(call())
    except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
        errors.append(error)
