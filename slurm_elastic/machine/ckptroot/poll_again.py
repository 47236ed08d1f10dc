"""Have tasks that were saved in poll(2) wait in it again, after a restore and after a save.

If a save finds a task in a call that Linux would resume by itself (restart_syscall(2)), CRIU leaves
EINTR in the image (compel, get_task_regs) and in the task. Programs without signal handlers do not
expect that from poll, and exit, such as tail(1) of coreutils 9.7. So we make the task repeat the
call, with its whole timeout, as CRIU does with other calls. We do not change nanosleep(2), which
has returned the remaining time, and futex(2), which programs repeat by themselves. For a task that
was stopped in poll before the save, we do not know its call. All this is for x86-64 alone: on other
machines the C library calls ppoll(2), which CRIU repeats.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import files, protobuf, tracing
from .pinned_task import PinnedTask, TaskOwner, pinned
from .site import RequestRefused
from .tracing import await_stop, trace

_HEAD_BYTES = 12
"""The part of an image before its message: two magic numbers and a length."""
_MAX_BYTES = 16 << 20
_X86_64 = 1  # core.proto, march
_NATIVE = 1  # core-x86.proto, user_x86_regs_mode
_POLL = 7  # arch/x86/entry/syscalls/syscall_64.tbl
_EINTR = (1 << 64) - 4  # include/uapi/asm-generic/errno-base.h
_SYSCALL_BYTES = 2
"""Length of the instruction that calls the kernel."""
_AX, _ORIG_AX, _IP, _MODE = 11, 16, 17, 28  # core-x86.proto, user_x86_regs_entry

Span = tuple[int, int]
"""Start and end of a value in a file."""


def wait_again(image: Path) -> int:
    """Change the image so that its threads repeat poll; return the number of changed threads.

    RequestRefused if it is no image of this kind.
    """
    changed = 0
    for entry in sorted(image.iterdir()):
        if entry.name.startswith("core-"):
            changed += _mend(entry)
    return changed


def _mend(path: Path) -> bool:
    with files.held(path, os.O_RDWR, max_bytes=_MAX_BYTES) as file:
        data = os.pread(file, _MAX_BYTES, 0)
        changes = _changes(data)
        for (start, stop), value in changes.items():
            os.pwrite(file, _padded(value, stop - start), start)
    return bool(changes)


def _changes(data: bytes) -> dict[Span, int]:
    """Return the numbers to write, by their spans; {} if the thread was not in such a call."""
    core = _spans(data, (_HEAD_BYTES, len(data)))
    if 1 not in core or 2 not in core or _number(data, core[1]) != _X86_64:
        return {}
    thread = _spans(data, core[2])
    registers = _spans(data, thread[2]) if 2 in thread else {}
    if not {_AX, _ORIG_AX, _IP} <= set(registers):
        return {}
    values = {number: _number(data, span) for number, span in registers.items()}
    if (values[_AX], values[_ORIG_AX], values.get(_MODE, _NATIVE)) != (_EINTR, _POLL, _NATIVE):
        return {}
    # As the kernel restarts a call itself: the number is in AX again, and the next instruction is
    # the call.
    return {registers[_AX]: _POLL, registers[_IP]: values[_IP] - _SYSCALL_BYTES}


def _spans(data: bytes, message: Span) -> dict[int, Span]:
    """Return the spans of a message's fields by number. If a field comes twice, the last one
    counts, as in CRIU.
    """
    return {number: (start, stop) for number, _, start, stop in protobuf.fields(data, *message)}


def _number(data: bytes, span: Span) -> int:
    return protobuf.varint(data, span[0])[0] & (1 << 64) - 1


def _padded(value: int, size: int) -> bytes:
    """Return the number as a varint of ``size`` bytes, so that no enclosing length changes."""
    digits = [(value >> 7 * place) & 0x7F for place in range(size)]
    if sum(digit << 7 * place for place, digit in enumerate(digits)) != value:
        raise RequestRefused("a number of the image has no place")
    return bytes([digit | 0x80 for digit in digits[:-1]] + digits[-1:])


def go_back(tasks: Iterable[int], owner: TaskOwner) -> None:
    """Have the threads of stopped tasks that a save has left with EINTR repeat poll when they
    continue.
    """
    if os.uname().machine == "x86_64":
        tracing.by_child(_send_all_back, ((task, owner) for task in tasks))


def _send_all_back(pid: int, owner: TaskOwner) -> None:
    with contextlib.suppress(OSError), pinned(pid, owner) as task:
        for thread in _in_poll(task):
            with contextlib.suppress(OSError), tracing.seized(task, thread):
                _send_back(thread)


def _in_poll(task: PinnedTask) -> Iterator[int]:
    """Yield the task's threads that were in poll when they were stopped (proc(5), syscall)."""
    for thread in task.threads():
        with contextlib.suppress(OSError):
            if task.read(f"task/{thread}/syscall").split()[0] == str(_POLL):
                yield thread


def _send_back(thread: int) -> None:
    if trace(tracing.INTERRUPT, thread):
        await_stop(thread)
        registers = tracing.Registers()
        trace(tracing.GETREGS, thread, None, ctypes.byref(registers))
        state = tuple(registers[index] for index in (tracing.RAX, tracing.ORIG_RAX, tracing.CS))
        if state == (_EINTR, _POLL, tracing.LONG_MODE):
            registers[tracing.RAX] = _POLL
            registers[tracing.RIP] -= _SYSCALL_BYTES
            trace(tracing.SETREGS, thread, None, ctypes.byref(registers))
