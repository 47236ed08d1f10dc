"""Calls that may never end, each given up after a while.

Whoever asks a file system whose server is gone waits in the kernel, and no time-out ends that
(nfs(5), "hard"); the same goes for a server that is a user's process (fuse(4)), and code of other
packages may wait for anything. So each call has a thread of its own, which is left behind if it
does not end, and keeps no process from ending.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import ClassVar, TypeVar

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.units import brief

MOST = 4
"""Threads that may be left behind for one owner. No more is asked of it until one ends."""
_SLICES = 20
"""The time is waited for in so many parts: if the whole machine stands still for a while, and the
call with it, that costs one of them.
"""

T = TypeVar("T")


class InTime:
    """Calls, counted by their ``owner``, so that none takes the threads of another."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_left")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: defaultdict[Hashable, list[threading.Thread]] = defaultdict(list)

    def do(self, owner: Hashable, call: Callable[[], T], seconds: float) -> T:
        """The call's result, or its error. TimeoutError if it takes longer, or if too many of the
        owner's calls are left behind already.
        """
        with self._lock:
            alive = [thread for thread in self._left.pop(owner, ()) if thread.is_alive()]
            if alive:
                self._left[owner] = alive
            if len(alive) >= MOST:
                raise TimeoutError("earlier calls have not ended")
        found: list[T] = []
        failed: list[BaseException] = []
        thread = threading.Thread(target=_noted, args=(call, found, failed), daemon=True)
        thread.start()
        for _ in range(_SLICES):
            thread.join(seconds / _SLICES)
        if thread.is_alive():
            with self._lock:
                self._left[owner].append(thread)
            raise TimeoutError(f"no answer in {brief(seconds)}")
        if failed:
            raise failed[0]
        return found[0]


def _noted(call: Callable[[], T], found: list[T], failed: list[BaseException]) -> None:
    try:
        found.append(call())
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where it is waited for
        failed.append(error)
