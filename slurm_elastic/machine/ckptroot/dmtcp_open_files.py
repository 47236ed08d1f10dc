"""Check the files that a job under DMTCP has open, for cases that DMTCP 4.2.0 cannot restore."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

from .proc import descriptors_of
from .site import RequestRefused

_NEVER_NAMED = os.O_TMPFILE & ~os.O_DIRECTORY


def check_files(tasks: Iterable[int]) -> None:
    """RequestRefused if a task has a file open that was created without a name (O_TMPFILE,
    open(2)).
    """
    for pid in tasks:
        for number, path in descriptors_of(pid):
            # DMTCP takes the directory for the file's path and ends the process at a restart.
            if path.endswith(" (deleted)") and flags_of(pid, number) & _NEVER_NAMED:
                place = os.path.dirname(path)
                raise RequestRefused(
                    f"process {pid} has a file that never had a name open in {place} (as Python's "
                    "tempfile.TemporaryFile makes it), which DMTCP cannot bring back"
                )


def appended_files(tasks: Iterable[int], outputs: Collection[str]) -> list[str]:
    """Return the regular files that a task has open only to append, except the job's outputs.

    DMTCP leaves the outputs to its caller.
    """
    opened = ((pid, number, path) for pid in tasks for number, path in descriptors_of(pid))
    return sorted(
        {
            path
            for pid, number, path in opened
            if path.startswith("/")
            and not path.endswith(" (deleted)")
            and path not in outputs
            and _appends(flags_of(pid, number))
            and _is_regular(pid, number)
        }
    )


def _is_regular(pid: int, number: int) -> bool:
    """Return whether the descriptor is of a regular file; False if it is gone."""
    try:
        return stat.S_ISREG(os.stat(f"/proc/{pid}/fd/{number}").st_mode)
    except OSError:
        return False


def _appends(flags: int) -> bool:
    return bool(flags & os.O_APPEND and flags & (os.O_WRONLY | os.O_RDWR))


def flags_of(pid: int, number: int) -> int:
    """Return the flags of an open file (open(2)); 0 if it is gone."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/fdinfo/{number}").read_text().splitlines():
            if line.startswith("flags:"):
                return int(line.partition(":")[2], 8)
    return 0
