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
from collections.abc import Iterable, Iterator

from . import tracing
from .kernel import LIBC
from .pinned_task import Owner, PinnedTask, pinned

_CALLS = {"x86_64": 274, "aarch64": 100, "riscv64": 100, "ppc64le": 299, "s390x": 305}
"""The number of get_robust_list(2), which the C library does not have."""
_PENDING = 16
"""Where a list's head (linux/futex.h, robust_list_head) notes the mutex that is being taken."""


def keep(tasks: Iterable[int], owner: Owner) -> None:
    """Have the mutexes of stopped tasks stay as they are when these tasks are killed next."""
    # In a child: memory may be a file whose server hangs.
    tracing.by_child(_empty_lists, ((task, owner) for task in tasks))


def _empty_lists(pid: int, owner: Owner) -> None:
    """Empty the lists of its threads: the first entry of an empty list is its head."""
    with (
        contextlib.suppress(OSError),
        pinned(pid, owner) as task,
        # Opened before anything is read: whatever becomes of the number, this is the memory that
        # the heads are in.
        task.opened("mem", os.O_RDWR) as memory,
    ):
        for head in _heads(task):
            os.pwrite(memory, struct.pack("=Q", head), head)
            os.pwrite(memory, struct.pack("=Q", 0), head + _PENDING)


def _heads(task: PinnedTask) -> Iterator[int]:
    """Where the lists of its threads begin in its memory."""
    call = _CALLS.get(os.uname().machine)
    for thread in task.threads() if call else []:
        head, size = ctypes.c_size_t(), ctypes.c_size_t()
        result = LIBC.syscall(call, thread, ctypes.byref(head), ctypes.byref(size))
        if result == 0 and head.value and task.has_thread(thread):
            yield head.value
