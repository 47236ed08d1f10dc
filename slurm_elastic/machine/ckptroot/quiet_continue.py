"""Continue tasks that a save has stopped, without the tasks noticing it.

CRIU stops them as kill(1) does, and only SIGCONT ends that. A task that catches SIGCONT, or waits
for it with sigwait(3) or signalfd(2), would get a signal that it would not have got without us. So
we trace each thread of such a task, take its SIGCONT and drop it (ptrace(2)). A task that its user
had stopped stays stopped. One effect remains visible: a parent that asks for news of stopped
children (no SA_NOCLDSTOP) gets SIGCHLD, and finds none of them stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection, Iterable, Mapping

from . import tracing
from .pinned_task import PinnedTask, TaskOwner, pinned
from .proc import number_inside, status_of, threads_of
from .tracing import await_stop, trace

_BIT = 1 << (signal.SIGCONT - 1)
_ALL_BUT = ctypes.c_uint64(~_BIT & (1 << 64) - 1)
_MASK_BYTES = ctypes.sizeof(_ALL_BUT)
_MAX_STOPS = 8
"""How often a thread may stop until it gets its signal: ptrace's own stops come before."""


def continue_quietly(
    tasks: Iterable[int], stopped: Collection[int], owner: TaskOwner
) -> frozenset[int]:
    """Continue the stopped ``tasks`` that would notice SIGCONT; return their numbers in the job's
    namespace.

    The tasks ``stopped`` (by the same numbers) stay stopped.
    """
    statuses = {pid: status_of(pid) for pid in tasks}
    inside = {pid: number_inside(status) for pid, status in statuses.items()}
    to_go = [pid for pid in inside if inside[pid] not in stopped]
    noticing = {pid: inside[pid] for pid in to_go if _would_notice(pid, statuses[pid])}
    if not noticing:
        return frozenset()

    def continue_all() -> None:
        held = [thread for task in noticing for thread in _make_ready(task, owner)]
        # Before any parent runs: it would find a stopped child.
        for task in set(to_go) - set(noticing):
            _signal(task, owner)
        for thread in held:
            trace(tracing.DETACH, thread)

    tracing.by_child(continue_all, [()])
    return frozenset(inside for task, inside in noticing.items() if not _is_stopped(task))


def _would_notice(pid: int, status: Mapping[str, str]) -> bool:
    """Return whether the task catches SIGCONT or any of its threads blocks it."""
    caught = int(status.get("SigCgt", "0"), 16) & _BIT
    blocked = (status_of(thread).get("SigBlk", "0") for thread in threads_of(pid))
    return bool(caught) or any(int(mask, 16) & _BIT for mask in blocked)


def _signal(pid: int, owner: TaskOwner) -> None:
    with contextlib.suppress(OSError), pinned(pid, owner) as task:
        if _is_stopped(pid):
            task.signal(signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    return status_of(pid).get("State", "")[:1] == "T"


def _make_ready(pid: int, owner: TaskOwner) -> list[int]:
    """Return the task's threads, no longer stopped by the signal but held by us."""
    with contextlib.suppress(OSError), pinned(pid, owner) as task:
        held = [thread for thread in task.threads() if _seize(task, thread)]
        return (
            held if pid in held and _continued(task) else []
        )  # else it gets a plain SIGCONT later
    return []


def _continued(task: PinnedTask) -> bool:
    """Send SIGCONT to the task's first thread, which stops for it. Return whether it
    has stopped.
    """
    pid = task.pid
    before = ctypes.c_uint64()
    size = ctypes.c_void_p(_MASK_BYTES)
    trace(tracing.GETSIGMASK, pid, size, ctypes.byref(before))
    # Block all other signals, so that the thread gets only this one.
    trace(tracing.SETSIGMASK, pid, size, ctypes.byref(_ALL_BUT))
    task.signal(signal.SIGCONT)
    for _ in range(_MAX_STOPS):
        trace(tracing.CONT, pid)
        status = await_stop(pid)
        if not os.WIFSTOPPED(status):
            return False
        if status >> 8 == signal.SIGCONT:
            break
    trace(tracing.SETSIGMASK, pid, size, ctypes.byref(before))
    return True


def _seize(task: PinnedTask, thread: int) -> bool:
    """Trace a stopped thread, which stops once more for its tracer; return whether that worked."""
    with contextlib.suppress(OSError):
        tracing.seize(task, thread)
        await_stop(thread)
        return True
    return False
