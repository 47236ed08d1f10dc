"""Have a child process of ours trace stopped tasks (ptrace(2)), which run untraced afterwards.

If the child dies before it is done, Linux detaches from the tasks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .child import Child
from .kernel import LIBC
from .pinned_task import PinnedTask

CONT, STEP, GETREGS, SETREGS, DETACH = 7, 9, 12, 13, 17  # linux/ptrace.h
SEIZE, INTERRUPT, GETSIGMASK, SETSIGMASK = 0x4206, 0x4207, 0x420A, 0x420B
Registers = ctypes.c_ulonglong * 27  # sys/user.h, user_regs_struct of x86-64
RAX, RDX, RSI, RDI, ORIG_RAX, RIP, CS = 10, 12, 13, 14, 15, 16, 17  # its fields
LONG_MODE = 0x33
"""The 64-bit code segment (arch/x86/include/asm/segment.h, __USER_CS)."""
_WALL = 0x40000000  # wait(2), __WALL
_TIMEOUT_S = 60.0
"""Seconds for all threads of a job, which stand still. A busy machine may need some."""
LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
LIBC.ptrace.restype = ctypes.c_long


def by_child(work: Callable[..., object], calls: Iterable[tuple[Any, ...]]) -> None:
    """Have a child call ``work`` with each of these arguments. It is killed after 60 s."""
    pid = os.fork()
    if pid == 0:
        try:
            for arguments in calls:
                work(*arguments)
        finally:
            os._exit(0)
    child, until = Child(pid), time.monotonic() + _TIMEOUT_S
    while child.status() is None and time.monotonic() < until:
        time.sleep(0.001)
    # Killing it is safe: Linux detaches from the tasks that it traces.
    child.end()


def trace(request: int, thread: int, address: object = None, data: object = None) -> bool:
    """Make one request of ptrace(2); return whether it succeeded."""
    return bool(LIBC.ptrace(request, thread, address, data) == 0)


def seize(task: PinnedTask, thread: int) -> None:
    """Start to trace a thread of the task.

    OSError if the kernel refuses, or if the task has no thread with that number.
    """
    if not trace(SEIZE, thread):
        raise ProcessLookupError(f"thread {thread} cannot be traced")
    # Check after seizing: a thread that we trace keeps its number.
    if not task.has_thread(thread):
        trace(DETACH, thread)
        raise ProcessLookupError(f"thread {thread} is not the job's")


@contextlib.contextmanager
def seized(task: PinnedTask, thread: int) -> Iterator[None]:
    """Like ``seize``, for the duration of the block."""
    seize(task, thread)
    try:
        yield
    finally:
        trace(DETACH, thread)


def await_stop(thread: int) -> int:
    """Wait until a traced thread stops or ends; return its wait status."""
    return os.waitpid(thread, _WALL)[1]
