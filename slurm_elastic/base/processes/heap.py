"""Keeps the memory of a service that runs for months as small as its data.

glibc gives each thread a heap of its own (mallopt(3), M_ARENA_MAX) and keeps free memory in the
middle of a heap. Our services have a dozen threads, which read lists of varying lengths. These
heaps therefore grew by some KB for each job, although nothing in them was in use. Python's lock
lets one thread work at a time, so one heap is enough. Python searches all objects for cycles only
after their number has grown by a quarter, so we start a search every few minutes.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

GIVE_BACK_EVERY_S = 600.0
_M_ARENA_MAX = -8
_LIBC = ctypes.CDLL(None)
_is_shared = False


def share_one() -> None:
    """Make all threads use one heap. Call it before the first thread starts."""
    global _is_shared
    _is_shared = True
    _call("mallopt", _M_ARENA_MAX, 1)


def give_back() -> None:
    """Return unused memory to the system. Call ``share_one`` before.

    Other processes do nothing: a test process has so many objects that the search takes a second.
    """
    if not _is_shared:
        return
    if gc.isenabled():
        gc.collect()
    _call("malloc_trim", 0)


def _call(name: str, *values: int) -> None:
    """Call a function of glibc. Other C libraries lack these functions and need them less."""
    function: Callable[..., int] | None = getattr(_LIBC, name, None)
    if function is not None:
        function(*values)
