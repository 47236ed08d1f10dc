"""Reads about processes from the kernel (proc(5))."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path


def status_of(pid: int) -> dict[str, str]:
    """/proc/PID/status; empty if the process is gone."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
        pairs = (line.partition(":") for line in text.splitlines())
        return {name: value.strip() for name, _, value in pairs}
    return {}


def processes() -> list[int]:
    """All processes, by their numbers on the node."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def family(pid: int) -> Iterator[int]:
    """A process and all that it has started (proc(5), children)."""
    yield pid
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from family(int(child))


def threads_of(pid: int) -> list[int]:
    """The threads of a process; none if it is gone."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def descriptors_of(pid: int) -> Iterator[tuple[int, str]]:
    """A process's open descriptors, each with what it refers to: a path, or ``socket:[7]``."""
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield int(number), os.readlink(f"/proc/{pid}/fd/{number}")


def number_inside(status: Mapping[str, str]) -> int:
    """The number that a process has in its own namespace; 0 if it is gone."""
    return int(status.get("NSpid", "0").split()[-1])


def numbers_of(pid: int) -> tuple[int, int] | None:
    """The namespace that a process has its number in; None if it is gone."""
    with contextlib.suppress(OSError):
        seen = os.stat(f"/proc/{pid}/ns/pid")
        return seen.st_dev, seen.st_ino
    return None


def others_of(uid: int, tasks: Collection[int]) -> set[int]:
    """The user's processes on this node that are not the job's."""
    # What the tasks have started since we looked them up is the job's, too: a shell starts some all
    # the time.
    own, found = {numbers_of(task) for task in tasks} - {None, numbers_of(os.getpid())}, set()
    for pid in set(processes()) - {*tasks, os.getpid()}:
        status = status_of(pid)
        is_users = status.get("Uid", "").split()[1:2] == [str(uid)] and "RssAnon" in status
        if is_users and numbers_of(pid) not in own:
            found.add(pid)
    return found


def memory_of(status: dict[str, str]) -> int:
    """Bytes of the process's own memory, also of what was swapped out."""
    return sum(1024 * int(status.get(name, "0").split()[0]) for name in ("RssAnon", "VmSwap"))


_LITTLE = 4 << 20
"""Bytes of shared memory; for less we do not have the kernel walk through all pages."""


def shared_of(pid: int, status: dict[str, str]) -> int:
    """Bytes of this process's share of the memory that processes share (proc(5), smaps): the shares
    of all add up to the whole. 0 if that is little, or unknown.
    """
    if 1024 * int(status.get("RssShmem", "0").split()[0]) < _LITTLE:
        return 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(errors="replace").splitlines():
            if line.startswith("Pss_Shmem:"):
                return 1024 * int(line.split()[1])
    return 0


def is_dead(status: Mapping[str, str]) -> bool:
    """Whether all its threads have ended and only its parent has yet to reap it (proc(5))."""
    return status.get("State", "")[:1] == "Z" and status.get("Threads") == "1"


def is_apart(pid: int) -> bool:
    """Whether the process has made a user namespace, and with it rights of its own there."""
    with contextlib.suppress(OSError):
        return not os.path.samestat(os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user"))
    return False
