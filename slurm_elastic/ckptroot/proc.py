"""Processes as the kernel tells of them (proc(5))."""

from __future__ import annotations

import contextlib
from pathlib import Path


def status_of(pid: int) -> dict[str, str]:
    """/proc/PID/status; empty where the process is gone."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
        pairs = (line.partition(":") for line in text.splitlines())
        return {name: value.strip() for name, _, value in pairs}
    return {}


def memory_of(status: dict[str, str]) -> int:
    """Bytes of the memory that is the process's own, also what was swapped out."""
    return sum(1024 * int(status.get(name, "0").split()[0]) for name in ("RssAnon", "VmSwap"))
