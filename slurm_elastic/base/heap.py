"""Keeps the memory of a service that runs for months as small as what it uses.

glibc gives each thread a heap of its own (mallopt(3), M_ARENA_MAX), and keeps what is free in the
middle of a heap. Our services have a dozen threads that read lists of ever other lengths, so these
heaps grew by some KB for each job, though nothing in them was in use. Python's lock lets one thread
work at a time, so one heap is enough. Python itself looks for cycles among all objects only after
their number has grown by a quarter, so we have it look every few minutes.
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
    """Have all threads use one heap: to be called before there are threads."""
    global _is_shared
    _is_shared = True
    _call("mallopt", _M_ARENA_MAX, 1)


def give_back() -> None:
    """Give back to the system what is no longer in use, in a process that shares one heap.

    Another process, such as that of a test, has so many other objects that the look takes a second.
    """
    if not _is_shared:
        return
    if gc.isenabled():
        gc.collect()
    _call("malloc_trim", 0)


def _call(name: str, *values: int) -> None:
    """Call a function of glibc; other C libraries lack it, and need it less."""
    function: Callable[..., int] | None = getattr(_LIBC, name, None)
    if function is not None:
        function(*values)
