"""Gives a job its own CLOCK_MONOTONIC and CLOCK_BOOTTIME (time_namespaces(7), Linux 5.6), so that
they go on from where they stood at the save, whatever machine the job goes on.

Both count from the machine's start. Most event loops and locks with a time-out wait until some time
of theirs: moved to a machine that was started later they would wait for ever, and on one that was
started earlier not at all.
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
"""Nanoseconds by the kernel's name of a clock: its time, or its offset."""


def offsets() -> Clocks:
    """The offsets of our children's clocks, which are ours, too, as long as the children have none
    of their own. Empty if the kernel knows no time namespaces.
    """
    found = {}
    with contextlib.suppress(OSError):
        for line in _OFFSETS.read_text(encoding="ascii").splitlines():
            name, seconds, nanoseconds = line.split()
            found[name] = int(seconds) * _SECOND + int(nanoseconds)
    return found


def begin(ours: Mapping[str, int], saved: Mapping[str, int] | None) -> Clocks:
    """Give the children that we start from now on clocks of their own; returns their offsets. The
    clocks begin at ``saved``, otherwise at our present time. ``ours`` are the offsets of our own.
    Raises OSError where the kernel cannot do that, or root may not set clocks (CAP_SYS_TIME), as in
    containers.
    """
    if not ours:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    unshare_time()
    wanted = dict(ours)
    if saved:
        # Offsets are against the kernel's own clocks: those of the node itself, which may be in
        # such a namespace, too, as in a container, come on top.
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
    """Like ``begin``, for the children that are started inside the ``with``. Later ones have our
    clocks again.
    """
    found = begin(ours, saved)
    try:
        yield found
    finally:
        # For threads, too: Linux before 6.1 refuses them while children are to have other clocks.
        with contextlib.suppress(OSError):  # our caller has to learn of what was started
            share_time()


def now(ours: Mapping[str, int], theirs: Mapping[str, int]) -> Clocks:
    """The time on clocks with the offsets ``theirs``; the clocks that we read have ``ours``."""
    return {name: _now(name) - ours[name] + theirs[name] for name in _CLOCKS}


def _now(name: str) -> int:
    return time.clock_gettime_ns(_CLOCKS[name])
