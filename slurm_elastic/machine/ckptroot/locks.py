"""Has tasks take their locks on parts of files (fcntl(2)) again, as CRIU takes them too early.

Such a lock belongs to a process, and goes as soon as that closes any descriptor of the file. CRIU
takes it, then maps the files of the process, and closes what it opened for that. So the lock of a
file that is also mapped is gone after a restore (LMDB's lock.mdb, sqlite's shared memory for WAL),
and the next process that opens the file initialises it. Only the process itself can take its lock:
while it stands still we trace it and have it call fcntl once. This is for x86-64 alone.
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
from .pinned_task import Owner, PinnedTask, pinned
from .proc import number_inside, status_of
from .tracing import await_stop, trace

_FCNTL, _SETLK = 72, 6  # arch/x86/entry/syscalls/syscall_64.tbl; asm-generic/fcntl.h
_SYSCALL = b"\x0f\x05"
"""The instruction that calls the kernel; each process has one in the vdso (vdso(7))."""
_NO_CALL = (1 << 64) - 1
_KINDS = {"READ": 0, "WRITE": 1}  # F_RDLCK, F_WRLCK
_TO_THE_END = 0
_STOPS = 8
"""How often a thread may stop until its call is over: ptrace's own stops come before."""
_PATIENCE = 10.0
"""Seconds that tasks have to stop after they were told to."""


@dataclass(frozen=True)
class Lock:
    """A lock on a part of the file that a task has open as ``file``, for reading or writing
    (F_RDLCK, F_WRLCK), ``length`` bytes long; 0 means up to the end.
    """

    file: int
    kind: int
    start: int
    length: int


Locks = Mapping[int, Sequence[Lock]]
"""By a task's number in the job's own namespace."""


def can_take() -> bool:
    """Whether this machine's tasks can be made to take locks."""
    return os.uname().machine == "x86_64"


def take(tasks: Iterable[int], wanted: Locks, owner: Owner) -> str:
    """Have stopped tasks take those of their ``wanted`` locks that they lack. Returns the file of
    one that could not be taken, or nothing.
    """
    found = {task: wanted.get(number_inside(status_of(task)), ()) for task in tasks}
    lost = {task: missing for task, locks in found.items() if (missing := _missing(task, locks))}
    if not lost:
        return ""
    until = time.monotonic() + _PATIENCE
    for task in lost:
        while status_of(task).get("State", "T")[0] != "T" and time.monotonic() < until:
            time.sleep(0.001)
    tracing.by_child(_have_taken, ((task, owner, lost[task]) for task in lost))
    still = (f"/proc/{task}/fd/{one.file}" for task in lost for one in _missing(task, lost[task]))
    return next((os.readlink(link) for link in still), "")


def _missing(task: int, wanted: Iterable[Lock]) -> list[Lock]:
    return [lock for lock in wanted if lock not in set(_held(task, lock.file))]


def _held(task: int, file: int) -> Iterator[Lock]:
    """The task's own locks on that file (proc(5), fdinfo)."""
    with contextlib.suppress(OSError), open(f"/proc/{task}/fdinfo/{file}") as lines:
        for line in lines:
            words = line.split()
            if words[:1] == ["lock:"] and words[2] == "POSIX" and words[4] in _KINDS:
                start, end = int(words[7]), words[8]
                length = _TO_THE_END if end == "EOF" else int(end) + 1 - start
                yield Lock(file, _KINDS[words[4]], start, length)


def _have_taken(pid: int, owner: Owner, locks: Iterable[Lock]) -> None:
    """Have the task's first thread take them, and give it its registers and memory back."""
    with contextlib.suppress(OSError), pinned(pid, owner) as task, tracing.seized(task, pid):
        await_stop(pid)
        before = tracing.Registers()
        trace(tracing.GETREGS, pid, None, ctypes.byref(before))
        # The calls of a 32-bit task have other numbers.
        if before[tracing.CS] == tracing.LONG_MODE:
            with contextlib.suppress(OSError, ValueError):
                _lend(task, before, locks)
            trace(tracing.SETREGS, pid, None, ctypes.byref(before))


def _lend(
    task: PinnedTask, before: ctypes.Array[ctypes.c_ulonglong], locks: Iterable[Lock]
) -> None:
    """Ask for each lock; the question stands in a piece of the task's memory meanwhile."""
    with task.opened("mem", os.O_RDWR) as memory:
        call, place = _places(task, memory)
        kept = os.pread(memory, _ASKED.size, place)
        try:
            for lock in locks:
                asked = _ASKED.pack(lock.kind, os.SEEK_SET, lock.start, lock.length, 0)
                os.pwrite(memory, asked, place)
                _call(task.pid, before, call, (lock.file, _SETLK, place))
        finally:
            os.pwrite(memory, kept, place)


_ASKED = struct.Struct("=hh4xqqi4x")  # fcntl(2), struct flock


def _places(task: PinnedTask, memory: int) -> tuple[int, int]:
    """Where the task has an instruction that calls the kernel, and memory of its own."""
    call = own = 0
    for line in task.read("maps").splitlines():
        span, rights, _, _, inode, *name = line.split(None, 5)
        first, end = (int(part, 16) for part in span.split("-"))
        if name == ["[vdso]"]:
            call = first + os.pread(memory, end - first, first).index(_SYSCALL)
        elif rights == "rw-p" and inode == "0":
            own = own or first
    if not call or not own:
        raise ValueError(f"task {task.pid} has no such places")
    return call, own


def _call(
    task: int, before: ctypes.Array[ctypes.c_ulonglong], place: int, words: tuple[int, int, int]
) -> None:
    """Have the task call fcntl at that place, and stop again."""
    registers = tracing.Registers(*before)
    registers[tracing.RIP], registers[tracing.RAX] = place, _FCNTL
    # Else the kernel would make the call again that the stop has interrupted.
    registers[tracing.ORIG_RAX] = _NO_CALL
    for number, word in zip((tracing.RDI, tracing.RSI, tracing.RDX), words, strict=True):
        registers[number] = word
    trace(tracing.SETREGS, task, None, ctypes.byref(registers))
    for _ in range(_STOPS):
        trace(tracing.STEP, task)
        status = await_stop(task)
        if not os.WIFSTOPPED(status) or status >> 8 == signal.SIGTRAP:
            return
