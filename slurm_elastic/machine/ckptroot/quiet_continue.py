"""Tasks that a save has stopped go on, and none of them notices.

CRIU stops them as kill(1) does, and only SIGCONT ends that. A task that catches SIGCONT, or waits
for it with sigwait(3) or signalfd(2), would get one that it does not get without us; so of such a
task each thread is traced, its SIGCONT is taken from it and dropped (ptrace(2)). One that its user
had stopped stays so. One thing can still be seen: a parent that asks to be told of stopped children
(no SA_NOCLDSTOP) gets SIGCHLD, and none of them is stopped when it looks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection, Iterable, Mapping

from . import tracing
from .proc import number_inside, status_of, threads_of
from .tracing import await_stop, trace

_BIT = 1 << (signal.SIGCONT - 1)
_ALL_BUT = ctypes.c_uint64(~_BIT & (1 << 64) - 1)
_MASK = ctypes.sizeof(_ALL_BUT)
_STOPS = 8
"""Stops of a thread until it is given its signal: some of ptrace's own come before."""


def quietly(tasks: Iterable[int], stopped: Collection[int]) -> frozenset[int]:
    """Have those of the stopped ``tasks`` that would notice go on; their numbers in the job's own
    namespace. ``stopped``, by these numbers, are to stay.
    """
    statuses = {pid: status_of(pid) for pid in tasks}
    inside = {pid: number_inside(status) for pid, status in statuses.items()}
    to_go = [pid for pid in inside if inside[pid] not in stopped]
    wanted = {pid: inside[pid] for pid in to_go if _would_notice(pid, statuses[pid])}
    if not wanted:
        return frozenset()

    def all_of_them() -> None:
        held = [thread for task in wanted for thread in _readied(task)]
        # Before any parent runs, which would find a stopped child.
        for task in set(to_go) - set(wanted):
            _signal(task)
        for thread in held:
            trace(tracing.DETACH, thread)

    tracing.by_child(all_of_them, [()])
    return frozenset(inside for task, inside in wanted.items() if not _is_stopped(task))


def _would_notice(pid: int, status: Mapping[str, str]) -> bool:
    """Whether the task catches SIGCONT or one of its threads blocks it."""
    caught = int(status.get("SigCgt", "0"), 16) & _BIT
    blocked = (status_of(thread).get("SigBlk", "0") for thread in threads_of(pid))
    return bool(caught) or any(int(mask, 16) & _BIT for mask in blocked)


def _signal(pid: int) -> None:
    """By a descriptor, so that its number is no other's by then."""
    with contextlib.suppress(OSError):
        task = os.pidfd_open(pid)
        try:
            if _is_stopped(pid):
                signal.pidfd_send_signal(task, signal.SIGCONT)
        finally:
            os.close(task)


def _is_stopped(pid: int) -> bool:
    return status_of(pid).get("State", "")[:1] == "T"


def _readied(task: int) -> list[int]:
    """Its threads, no longer stopped but held by us. One of them, the first, is given the signal
    with all others blocked, and so nothing else.
    """
    held = [thread for thread in threads_of(task) if _seized(thread)]
    if task not in held:
        return []  # it goes on as the others do
    before = ctypes.c_uint64()
    size = ctypes.c_void_p(_MASK)
    trace(tracing.GETSIGMASK, task, size, ctypes.byref(before))
    trace(tracing.SETSIGMASK, task, size, ctypes.byref(_ALL_BUT))
    os.kill(task, signal.SIGCONT)
    for _ in range(_STOPS):
        trace(tracing.CONT, task)
        status = await_stop(task)
        if not os.WIFSTOPPED(status):
            return []
        if status >> 8 == signal.SIGCONT:
            break
    trace(tracing.SETSIGMASK, task, size, ctypes.byref(before))
    return held


def _seized(thread: int) -> bool:
    """A stopped thread stops once more, for its tracer, and then it waits."""
    if not trace(tracing.SEIZE, thread):
        return False
    await_stop(thread)
    return True
