"""Processes as the kernel tells of them (proc(5))."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path


def status_of(pid: int) -> dict[str, str]:
    """/proc/PID/status; empty where the process is gone."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
        pairs = (line.partition(":") for line in text.splitlines())
        return {name: value.strip() for name, _, value in pairs}
    return {}


def processes() -> list[int]:
    """All processes, by their numbers out here."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def family(pid: int) -> Iterator[int]:
    """A process and those that it has started (proc(5), children)."""
    yield pid
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from family(int(child))


def threads_of(pid: int) -> list[int]:
    """The threads of a process; none where it is gone."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def descriptors_of(pid: int) -> Iterator[tuple[int, str]]:
    """The open descriptors of a process, each with what it is of, as a path or ``socket:[7]``."""
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield int(number), os.readlink(f"/proc/{pid}/fd/{number}")


def number_inside(status: Mapping[str, str]) -> int:
    """The number that a process has for itself, in its own namespace; 0 where it is gone."""
    return int(status.get("NSpid", "0").split()[-1])


def numbers_of(pid: int) -> tuple[int, int] | None:
    """The namespace that a process has its number in; None where it is gone."""
    with contextlib.suppress(OSError):
        seen = os.stat(f"/proc/{pid}/ns/pid")
        return seen.st_dev, seen.st_ino
    return None


def others_of(uid: int, tasks: Collection[int]) -> set[int]:
    """The user's processes on this node that are not the job's; nor are those that its ``tasks``
    have begun since these were looked up, as a shell does all the time.
    """
    own, found = {numbers_of(task) for task in tasks} - {None, numbers_of(os.getpid())}, set()
    for pid in set(processes()) - {*tasks, os.getpid()}:
        status = status_of(pid)
        is_users = status.get("Uid", "").split()[1:2] == [str(uid)] and "RssAnon" in status
        if is_users and numbers_of(pid) not in own:
            found.add(pid)
    return found


def memory_of(status: dict[str, str]) -> int:
    """Bytes of the memory that is the process's own, also what was swapped out."""
    return sum(1024 * int(status.get(name, "0").split()[0]) for name in ("RssAnon", "VmSwap"))


_LITTLE = 4 << 20
"""Bytes of shared memory for which the kernel is not made to walk through all of its pages."""


def shared_of(pid: int, status: dict[str, str]) -> int:
    """Bytes of the memory that processes share, as far as it is this one's part (proc(5), smaps):
    the parts of all that share it are the whole. 0 where that is little, or not known.
    """
    if 1024 * int(status.get("RssShmem", "0").split()[0]) < _LITTLE:
        return 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(errors="replace").splitlines():
            if line.startswith("Pss_Shmem:"):
                return 1024 * int(line.split()[1])
    return 0


def is_dead(status: Mapping[str, str]) -> bool:
    """Whether all of it has ended, and only its parent has yet to ask how (proc(5))."""
    return status.get("State", "")[:1] == "Z" and status.get("Threads") == "1"


def is_apart(pid: int) -> bool:
    """Whether the process has made a user namespace, and with it rights of its own there."""
    with contextlib.suppress(OSError):
        return not os.path.samestat(os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user"))
    return False
