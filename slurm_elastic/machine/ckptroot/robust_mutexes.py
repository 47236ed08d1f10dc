"""Lets tasks that are ended after a save keep their robust mutexes
(pthread_mutexattr_setrobust(3)).

When a thread ends, Linux marks all mutexes on its list (get_robust_list(2)) as left by a dead
owner. If such a mutex is in a mapped file, as LMDB's are in lock.mdb, the mark is in no image and
stays in the file: the thread goes on elsewhere with a lock that others then take from it, and two
processes write at once. So we empty the lists of the saved tasks before they end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable

from . import tracing
from .kernel import LIBC
from .proc import threads_of

_CALLS = {"x86_64": 274, "aarch64": 100, "riscv64": 100, "ppc64le": 299, "s390x": 305}
"""The number of get_robust_list(2), which the C library does not have."""
_PENDING = 16
"""Where a list's head (linux/futex.h, robust_list_head) notes the mutex that is being taken."""


def keep(tasks: Iterable[int]) -> None:
    """Have the mutexes of stopped tasks stay as they are when these tasks are killed next."""
    heads = [(task, head) for task in tasks for head in _heads(task)]
    if heads:
        tracing.by_child(_empty, heads)  # in a child: memory may be a file whose server hangs


def _heads(task: int) -> list[int]:
    """Where the lists of its threads begin in its memory."""
    call = _CALLS.get(os.uname().machine)
    found = []
    for thread in threads_of(task) if call else []:
        head, size = ctypes.c_size_t(), ctypes.c_size_t()
        said = LIBC.syscall(call, thread, ctypes.byref(head), ctypes.byref(size))
        if said == 0 and head.value:
            found.append(head.value)
    return found


def _empty(task: int, head: int) -> None:
    """Empty a list: its first entry is then its head."""
    with contextlib.suppress(OSError), open(f"/proc/{task}/mem", "r+b", buffering=0) as memory:
        os.pwrite(memory.fileno(), struct.pack("=Q", head), head)
        os.pwrite(memory.fileno(), struct.pack("=Q", 0), head + _PENDING)
