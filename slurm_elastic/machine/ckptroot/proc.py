"""Read about processes from the kernel (proc(5))."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path


def status_of(pid: int) -> dict[str, str]:
    """Return the fields of /proc/PID/status; {} if the process is gone."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
        pairs = (line.partition(":") for line in text.splitlines())
        return {name: value.strip() for name, _, value in pairs}
    return {}


def processes() -> list[int]:
    """Return all processes, by their numbers on the node."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def family(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants (proc(5), children)."""
    # No recursion: a chain of processes may be longer than Python's stack.
    pending = [pid]
    while pending:
        parent = pending.pop()
        yield parent
        # The kernel lists a child under the thread that forked the child.
        for thread in threads_of(parent):
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{parent}/task/{thread}/children").read_text()
                pending.extend(map(int, children.split()))


def threads_of(pid: int) -> list[int]:
    """Return the threads of a process; [] if it is gone."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def descriptors_of(pid: int) -> Iterator[tuple[int, str]]:
    """Yield a process's open descriptors, each with its target: a path, or ``socket:[7]``."""
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield int(number), os.readlink(f"/proc/{pid}/fd/{number}")


def number_inside(status: Mapping[str, str]) -> int:
    """Return the process's number in its own namespace; 0 if it is gone."""
    return int(status.get("NSpid", "0").split()[-1])


def numbers_of(pid: int) -> tuple[int, int] | None:
    """Return device and inode of the process's pid namespace; None if it is gone."""
    with contextlib.suppress(OSError):
        status = os.stat(f"/proc/{pid}/ns/pid")
        return status.st_dev, status.st_ino
    return None


def others_of(uid: int, tasks: Collection[int]) -> set[int]:
    """Return the user's processes on this node that do not belong to the job."""
    # Compare namespaces, not only pids: processes that the tasks have started since the list was
    # read belong to the job, too. A shell starts processes all the time.
    own_namespaces, foreign = (
        {numbers_of(task) for task in tasks} - {None, numbers_of(os.getpid())},
        set(),
    )
    for pid in set(processes()) - {*tasks, os.getpid()}:
        status = status_of(pid)
        is_users = status.get("Uid", "").split()[1:2] == [str(uid)] and "RssAnon" in status
        if is_users and numbers_of(pid) not in own_namespaces:
            foreign.add(pid)
    return foreign


def memory_of(status: dict[str, str]) -> int:
    """Return the bytes of the process's private memory, including swapped memory."""
    return sum(1024 * int(status.get(name, "0").split()[0]) for name in ("RssAnon", "VmSwap"))


_SMALL_BYTES = 4 << 20
"""Shared memory below this size is not counted, because the kernel would have to walk through all
pages.
"""


def shared_of(pid: int, status: dict[str, str]) -> int:
    """Return the process's share of memory that processes share (proc(5), smaps), in bytes.

    The shares of all processes add up to the whole. 0 if it is small or unknown.
    """
    if 1024 * int(status.get("RssShmem", "0").split()[0]) < _SMALL_BYTES:
        return 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(errors="replace").splitlines():
            if line.startswith("Pss_Shmem:"):
                return 1024 * int(line.split()[1])
    return 0


def is_dead(status: Mapping[str, str]) -> bool:
    """Return whether all threads of the process have ended and its parent has yet to reap it
    (proc(5)).
    """
    return status.get("State", "")[:1] == "Z" and status.get("Threads") == "1"


def is_apart(pid: int) -> bool:
    """Return whether the process is in another user namespace, in which it may have more rights."""
    with contextlib.suppress(OSError):
        return not os.path.samestat(os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user"))
    return False
