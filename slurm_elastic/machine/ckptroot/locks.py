"""Have tasks take their locks on parts of files (fcntl(2)) again: CRIU takes them too early.

The lock belongs to a process, and is released as soon as the process closes any descriptor of the
file. CRIU takes the lock, then maps the process's files, and closes the descriptors that it opened
for that. A file that the process has also mapped has therefore lost its lock after a restore
(LMDB's lock.mdb, sqlite's shared memory for WAL), and the next process that opens the file
initialises it. Only the process itself can take its lock. So we trace the stopped process and make
it call fcntl once. This works on x86-64 alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from . import tracing
from .pinned_task import PinnedTask, TaskOwner, pinned
from .proc import number_inside, status_of
from .tracing import await_stop, trace

_FCNTL, _SETLK = 72, 6  # arch/x86/entry/syscalls/syscall_64.tbl; asm-generic/fcntl.h
_SYSCALL_CODE = b"\x0f\x05"
"""The syscall instruction. Each process has one in the vdso (vdso(7))."""
_NO_CALL = (1 << 64) - 1
_LOCK_TYPES = {"READ": 0, "WRITE": 1}  # F_RDLCK, F_WRLCK
_TO_THE_END = 0
_MAX_STOPS = 8
"""How often a thread may stop until its call is over: ptrace's own stops come before."""
_STOP_TIMEOUT_S = 10.0
"""Seconds that tasks have to stop after they got the signal."""


@dataclass(frozen=True)
class Lock:
    """A lock on a part of the file that a task has open as ``file``.

    ``kind``: for reading or writing (F_RDLCK, F_WRLCK). ``start``, ``length``: bytes; length 0
    means up to the end.
    """

    file: int
    kind: int
    start: int
    length: int


Locks = Mapping[int, Sequence[Lock]]
"""By a task's number in the job's own namespace."""


def can_take() -> bool:
    """Return whether tasks on this machine can be made to take locks."""
    return os.uname().machine == "x86_64"


def take(tasks: Iterable[int], locks_by_number: Locks, owner: TaskOwner) -> str:
    """Have stopped tasks take their missing locks. Return the file of a lock that could not be
    taken, or "".

    ``locks_by_number``: the locks that the tasks must have.
    """
    locks_by_task = {
        task: locks_by_number.get(number_inside(status_of(task)), ()) for task in tasks
    }
    missing_by_task = {
        task: missing for task, locks in locks_by_task.items() if (missing := _missing(task, locks))
    }
    if not missing_by_task:
        return ""
    until = time.monotonic() + _STOP_TIMEOUT_S
    for task in missing_by_task:
        # SIGSTOP takes effect some time after kill(2) returns.
        while status_of(task).get("State", "T")[0] != "T" and time.monotonic() < until:
            time.sleep(0.001)
    tracing.by_child(
        _have_taken, ((task, owner, missing_by_task[task]) for task in missing_by_task)
    )
    untaken = (
        f"/proc/{task}/fd/{lock.file}"
        for task in missing_by_task
        for lock in _missing(task, missing_by_task[task])
    )
    return next((os.readlink(link) for link in untaken), "")


def _missing(task: int, locks: Iterable[Lock]) -> list[Lock]:
    return [lock for lock in locks if lock not in set(_held(task, lock.file))]


def _held(task: int, file: int) -> Iterator[Lock]:
    """Yield the task's own locks on that file (proc(5), fdinfo)."""
    with contextlib.suppress(OSError), open(f"/proc/{task}/fdinfo/{file}") as lines:
        for line in lines:
            fields = line.split()
            if fields[:1] == ["lock:"] and fields[2] == "POSIX" and fields[4] in _LOCK_TYPES:
                start, end = int(fields[7]), fields[8]
                # The kernel shows the last byte, fcntl(2) wants the length.
                length = _TO_THE_END if end == "EOF" else int(end) + 1 - start
                yield Lock(file, _LOCK_TYPES[fields[4]], start, length)


def _have_taken(pid: int, owner: TaskOwner, locks: Iterable[Lock]) -> None:
    """Have the task's first thread take the locks, then restore its registers and memory."""
    with contextlib.suppress(OSError), pinned(pid, owner) as task, tracing.seized(task, pid):
        await_stop(pid)
        before = tracing.Registers()
        trace(tracing.GETREGS, pid, None, ctypes.byref(before))
        # Skip 32-bit tasks: their calls have other numbers.
        if before[tracing.CS] == tracing.LONG_MODE:
            # A lock that cannot be taken shows in `_missing` afterwards. The registers must be
            # restored in any case.
            with contextlib.suppress(OSError, ValueError):
                _lend(task, before, locks)
            trace(tracing.SETREGS, pid, None, ctypes.byref(before))


def _lend(
    task: PinnedTask, before: ctypes.Array[ctypes.c_ulonglong], locks: Iterable[Lock]
) -> None:
    """Call fcntl for each lock. The task's memory contains the struct flock for the time of the
    call.
    """
    with task.opened("mem", os.O_RDWR) as memory:
        call, place = _find_places(task, memory)
        saved_bytes = os.pread(memory, _FLOCK.size, place)
        try:
            for lock in locks:
                request = _FLOCK.pack(lock.kind, os.SEEK_SET, lock.start, lock.length, 0)
                os.pwrite(memory, request, place)
                _call(task.pid, before, call, (lock.file, _SETLK, place))
        finally:
            os.pwrite(memory, saved_bytes, place)


_FLOCK = struct.Struct("=hh4xqqi4x")  # fcntl(2), struct flock


def _find_places(task: PinnedTask, memory: int) -> tuple[int, int]:
    """Return addresses of a syscall instruction and of private memory of the task.

    ValueError if the task has none.
    """
    call = private = 0
    for line in task.read("maps").splitlines():
        span, rights, _, _, inode, *name = line.split(None, 5)
        start, end = (int(address, 16) for address in span.split("-"))
        if name == ["[vdso]"]:
            call = start + os.pread(memory, end - start, start).index(_SYSCALL_CODE)
        elif rights == "rw-p" and inode == "0":
            # Any private page serves: its bytes are put back after the call.
            private = private or start
    if not call or not private:
        raise ValueError(f"task {task.pid} has no vDSO, or no private memory")
    return call, private


def _call(
    task: int, before: ctypes.Array[ctypes.c_ulonglong], place: int, arguments: tuple[int, int, int]
) -> None:
    """Have the task call fcntl from the instruction at ``place``, and stop again."""
    registers = tracing.Registers(*before)
    registers[tracing.RIP], registers[tracing.RAX] = place, _FCNTL
    # Otherwise the kernel would restart the call that the stop has interrupted.
    registers[tracing.ORIG_RAX] = _NO_CALL
    for number, argument in zip((tracing.RDI, tracing.RSI, tracing.RDX), arguments, strict=True):
        registers[number] = argument
    trace(tracing.SETREGS, task, None, ctypes.byref(registers))
    for _ in range(_MAX_STOPS):
        trace(tracing.STEP, task)
        status = await_stop(task)
        if not os.WIFSTOPPED(status) or status >> 8 == signal.SIGTRAP:
            return
