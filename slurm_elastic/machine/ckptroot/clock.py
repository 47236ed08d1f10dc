"""A job's own CLOCK_MONOTONIC and CLOCK_BOOTTIME (time_namespaces(7), Linux 5.6): they go on from
where they stood when it was saved, whatever machine it goes on.

Both count from a machine's start. A program that waits until a time of theirs, as most event loops
and locks with a time-out do, would wait for ever on a machine that was started later than the one
it was saved on, and not at all on one that was started before. A machine's offsets are against the
kernel's own clocks, so that a node which is itself in such a namespace, as in a container, counts.
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
_SECOND = 1_000_000_000

Clocks = dict[str, int]
"""Nanoseconds by the name that the kernel gives a clock: what it says, or its offset."""


def offsets() -> Clocks:
    """The offsets of our children's clocks, and so of ours as long as they have none of their own;
    empty where the kernel knows no such namespaces.
    """
    found = {}
    with contextlib.suppress(OSError):
        for line in _OFFSETS.read_text(encoding="ascii").splitlines():
            name, seconds, nanoseconds = line.split()
            found[name] = int(seconds) * _SECOND + int(nanoseconds)
    return found


def begin(ours: Mapping[str, int], saved: Mapping[str, int] | None) -> Clocks:
    """Our children to come have clocks of their own, which begin at what was ``saved``, else at
    what ours say; their offsets. ``ours`` are those of our own clocks. OSError where this kernel
    does not know that, or root may not set clocks (CAP_SYS_TIME), as in containers.
    """
    if not ours:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    unshare_time()
    wanted = dict(ours)
    if saved:
        wanted = {name: saved[name] - _now(name) + ours[name] for name in _CLOCKS}
    lines = [f"{name} {offset // _SECOND} {offset % _SECOND}\n" for name, offset in wanted.items()]
    try:
        _OFFSETS.write_text("".join(lines), encoding="ascii")
    except OSError:
        share_time()
        raise
    return wanted


@contextlib.contextmanager
def begun(ours: Mapping[str, int], saved: Mapping[str, int] | None) -> Iterator[Clocks]:
    """As ``begin``, for the children that are started meanwhile. Later ones have our clocks, and so
    has what shares memory with us, which Linux before 6.1 refuses else.
    """
    found = begin(ours, saved)
    try:
        yield found
    finally:
        with contextlib.suppress(OSError):  # what was started is there, and has to be told of
            share_time()


def now(ours: Mapping[str, int], theirs: Mapping[str, int]) -> Clocks:
    """The time by clocks with the offsets ``theirs``, read by our own with the offsets ``ours``."""
    return {name: _now(name) - ours[name] + theirs[name] for name in _CLOCKS}


def _now(name: str) -> int:
    return time.clock_gettime_ns(_CLOCKS[name])
