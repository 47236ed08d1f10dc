"""Looks at directories that others serve, for so long and no longer.

Whoever asks a file system whose server is gone waits in the kernel, and no time-out ends that
(nfs(5), "hard"); nor does any where the server is a user's process (fuse(4)). So a look has a
thread of its own, which is left behind where it does not end.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import TypeVar

MOST = 4
"""Threads that may be left behind for one owner: its directories are not asked before one ends."""
_SLICES = 20
"""A machine that stands still for a while, and the look with it, takes one of them."""

T = TypeVar("T")


class InTime:
    """Looks, by the ``owner`` of the directory: none takes the threads of another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: defaultdict[Hashable, list[threading.Thread]] = defaultdict(list)

    def do(self, owner: Hashable, look: Callable[[], T], seconds: float) -> T:
        """The look's result, or its error. TimeoutError where it takes longer, or as many looks as
        may be are left behind already.
        """
        with self._lock:
            self._left[owner] = [thread for thread in self._left[owner] if thread.is_alive()]
            if len(self._left[owner]) >= MOST:
                raise TimeoutError("earlier looks there have not ended")
        found: list[T] = []
        failed: list[Exception] = []
        thread = threading.Thread(target=_noted, args=(look, found, failed), daemon=True)
        thread.start()
        for _ in range(_SLICES):
            thread.join(seconds / _SLICES)
        if thread.is_alive():
            with self._lock:
                self._left[owner].append(thread)
            raise TimeoutError(f"no answer in {seconds:.0f} s")
        if failed:
            raise failed[0]
        return found[0]


def _noted(look: Callable[[], T], found: list[T], failed: list[Exception]) -> None:
    try:
        found.append(look())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where it is waited for
        failed.append(error)
