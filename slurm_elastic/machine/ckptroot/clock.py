"""Give a job its own CLOCK_MONOTONIC and CLOCK_BOOTTIME (time_namespaces(7), Linux 5.6).

After a restore the clocks continue from their values at the save, on any machine. Both normally
count from the machine's start. Most event loops and locks with a time-out wait until a time of
these clocks. On a machine that was started later they would wait for ever, and on a machine that
was started earlier not at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from .kernel import share_time, unshare_time

_OFFSETS = Path("/proc/self/timens_offsets")
_CLOCKS = {"monotonic": time.CLOCK_MONOTONIC, "boottime": time.CLOCK_BOOTTIME}
_NS_PER_S = 1_000_000_000

Clocks = dict[str, int]
"""Nanoseconds by the kernel's name of a clock: its time, or its offset."""


def offsets() -> Clocks:
    """Return the offsets of our children's clocks; {} if the kernel has no time namespaces.

    They are also our own offsets, until the children get clocks of their own.
    """
    clocks = {}
    with contextlib.suppress(OSError):
        for line in _OFFSETS.read_text(encoding="ascii").splitlines():
            name, seconds, nanoseconds = line.split()
            clocks[name] = int(seconds) * _NS_PER_S + int(nanoseconds)
    return clocks


def begin(own_offsets: Mapping[str, int], saved: Mapping[str, int] | None) -> Clocks:
    """Give the children that we start from now on their own clocks; return their offsets.

    The clocks start at ``saved``, or at our present time. ``own_offsets``: the offsets of our own
    clocks. OSError if the kernel cannot do that, or root may not set clocks (CAP_SYS_TIME), as in
    containers.
    """
    if not own_offsets:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    unshare_time()
    child_offsets = dict(own_offsets)
    if saved:
        # Offsets are relative to the kernel's own clocks. This node may itself be in a time
        # namespace (a container), so add our own offsets.
        child_offsets = {name: saved[name] - _now(name) + own_offsets[name] for name in _CLOCKS}
    lines = [
        f"{name} {offset // _NS_PER_S} {offset % _NS_PER_S}\n"
        for name, offset in child_offsets.items()
    ]
    try:
        _OFFSETS.write_text("".join(lines), encoding="ascii")
    except OSError:
        share_time()
        raise
    return child_offsets


@contextlib.contextmanager
def begun(own_offsets: Mapping[str, int], saved: Mapping[str, int] | None) -> Iterator[Clocks]:
    """Like ``begin``, for children started inside the ``with``. Later children have our clocks."""
    child_offsets = begin(own_offsets, saved)
    try:
        yield child_offsets
    finally:
        # Needed for threads, too: before 6.1 Linux refuses new threads while children have other
        # clocks.
        with contextlib.suppress(OSError):  # the caller must get the child's pid
            share_time()


def now(own_offsets: Mapping[str, int], offsets: Mapping[str, int]) -> Clocks:
    """Return the time on clocks with ``offsets``; the clocks that we read have ``own_offsets``."""
    return {name: _now(name) - own_offsets[name] + offsets[name] for name in _CLOCKS}


def _now(name: str) -> int:
    return time.clock_gettime_ns(_CLOCKS[name])
