"""Let saved tasks keep their robust mutexes when they are ended (pthread_mutexattr_setrobust(3)).

When a thread ends, Linux marks all mutexes on its list (get_robust_list(2)) as left by a dead
owner. If such a mutex is in a mapped file, as LMDB's are in lock.mdb, the mark is in no image and
stays in the file. The restored thread would continue with a lock that others then take from it, and
two processes would write at once. So we empty the lists of the saved tasks before they end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable, Iterator

from . import tracing
from .kernel import LIBC
from .pinned_task import PinnedTask, TaskOwner, pinned

_CALLS = {"x86_64": 274, "aarch64": 100, "riscv64": 100, "ppc64le": 299, "s390x": 305}
"""The number of get_robust_list(2), which the C library does not wrap."""
_PENDING_OFFSET = 16
"""Offset in a list's head (linux/futex.h, robust_list_head) of a mutex which the thread is just
taking.
"""


def keep(tasks: Iterable[int], owner: TaskOwner) -> None:
    """Keep the mutexes of stopped tasks unchanged when these tasks are killed next."""
    # In a child: memory may be mapped from a file whose server hangs.
    tracing.by_child(_empty_lists, ((task, owner) for task in tasks))


def _empty_lists(pid: int, owner: TaskOwner) -> None:
    """Empty the lists of the task's threads. In an empty list the first entry is the head of the
    list.
    """
    with (
        contextlib.suppress(OSError),
        pinned(pid, owner) as task,
        # Opened before the heads are read: whatever happens to the pid, this is the memory that
        # contains them.
        task.opened("mem", os.O_RDWR) as memory,
    ):
        for head in _heads(task):
            os.pwrite(memory, struct.pack("=Q", head), head)
            os.pwrite(memory, struct.pack("=Q", 0), head + _PENDING_OFFSET)


def _heads(task: PinnedTask) -> Iterator[int]:
    """Yield the address of the head of each list of the task's threads."""
    call = _CALLS.get(os.uname().machine)
    for thread in task.threads() if call else []:
        head, size = ctypes.c_size_t(), ctypes.c_size_t()
        result = LIBC.syscall(call, thread, ctypes.byref(head), ctypes.byref(size))
        if result == 0 and head.value and task.has_thread(thread):
            yield head.value
