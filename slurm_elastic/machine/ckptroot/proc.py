"""Processes as the kernel tells of them (proc(5))."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path


def status_of(pid: int) -> dict[str, str]:
    """/proc/PID/status; empty where the process is gone."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
        pairs = (line.partition(":") for line in text.splitlines())
        return {name: value.strip() for name, _, value in pairs}
    return {}


def numbers_of(pid: int) -> tuple[int, int] | None:
    """The namespace that a process has its number in; None where it is gone."""
    with contextlib.suppress(OSError):
        seen = os.stat(f"/proc/{pid}/ns/pid")
        return seen.st_dev, seen.st_ino
    return None


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
