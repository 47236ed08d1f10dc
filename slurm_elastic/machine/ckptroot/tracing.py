"""Has a child of ours trace stopped tasks (ptrace(2)), which go on untraced afterwards.

If the child dies before it is done, Linux lets go of what it traces.
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
"""The code segment of 64 bits (arch/x86/include/asm/segment.h, __USER_CS)."""
_WALL = 0x40000000  # wait(2), __WALL
_PATIENCE = 60.0
"""Seconds for all threads of a job, which stand still; a busy machine may take some."""
LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
LIBC.ptrace.restype = ctypes.c_long


def by_child(work: Callable[..., object], each: Iterable[tuple[Any, ...]]) -> None:
    """Have a child call ``work`` for each of these; after a while we no longer wait for it."""
    pid = os.fork()
    if pid == 0:
        try:
            for one in each:
                work(*one)
        finally:
            os._exit(0)
    child, until = Child(pid), time.monotonic() + _PATIENCE
    while child.status() is None and time.monotonic() < until:
        time.sleep(0.001)
    # Linux lets go of what it traces, done or not.
    child.end()


def trace(request: int, thread: int, address: object = None, data: object = None) -> bool:
    """Make one request of ptrace(2); whether it succeeded."""
    return bool(LIBC.ptrace(request, thread, address, data) == 0)


def seize(task: PinnedTask, thread: int) -> None:
    """Begin to trace a thread of the task. Raises OSError if the kernel refuses, or if the task has
    no thread with that number.
    """
    if not trace(SEIZE, thread):
        raise ProcessLookupError(f"thread {thread} cannot be traced")
    # Only now is the answer certain: no other thread gets a number that we trace.
    if not task.has_thread(thread):
        trace(DETACH, thread)
        raise ProcessLookupError(f"thread {thread} is not the job's")


@contextlib.contextmanager
def seized(task: PinnedTask, thread: int) -> Iterator[None]:
    """The same for as long as the block lasts."""
    seize(task, thread)
    try:
        yield
    finally:
        trace(DETACH, thread)


def await_stop(thread: int) -> int:
    """The wait status of a traced thread, once it stops or ends."""
    return os.waitpid(thread, _WALL)[1]
