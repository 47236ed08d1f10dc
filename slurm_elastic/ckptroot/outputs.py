"""The job's output over its runs: neither lost nor doubled, without any option of the site's.

slurmstepd truncates a job's output file at each start, before the script runs (slurm.conf(5),
JobFileAppend). So after each image what the outputs have gained is added to copies of root's, and a
later run gets them back into its fresh file, whose inode slurmstepd keeps open. All files that the
job had open for writing are cut back to their length at the image: what was written after it will
be written again. The user's files are opened with his rights only.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from slurm_elastic.ckptroot.caller import Caller
from slurm_elastic.ckptroot.rights import as_user
from slurm_elastic.ckptroot.site import Refused

_BLOCK = 1 << 20
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def of_step(proc: Path = Path("/proc/self/fd")) -> list[str]:
    """The regular files that our standard output and error are, each once."""
    found = []
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            path = os.readlink(proc / str(descriptor))
            if stat.S_ISREG(os.fstat(descriptor).st_mode) and path not in found:
                found.append(path)
    return found


def keep(directory: Path, outputs: list[str], sizes: Mapping[str, int], caller: Caller) -> None:
    """Bring the copies up to the outputs' lengths at the image."""
    for index, path in enumerate(outputs):
        if path not in sizes:
            continue
        source = _open(path, os.O_RDONLY, caller)
        try:
            _extend(directory / str(index), source, sizes[path])
        finally:
            os.close(source)


def give_back(
    directory: Path, outputs: list[str], sizes: Mapping[str, int], caller: Caller
) -> list[str]:
    """Before a restore: the files as they were at the image. What was done, a sentence each."""
    done = []
    for path, size in sizes.items():
        kept = directory / str(outputs.index(path)) if path in outputs else None
        create = os.O_CREAT if kept else 0
        file = _open(path, os.O_RDWR | create, caller)
        try:
            found = os.fstat(file).st_size
            if found < size and kept is not None:
                _fill(file, kept, size)
                done.append(f"{path}: {size} bytes given back, {found} were there")
            if found > size:
                os.ftruncate(file, size)
                done.append(f"{path}: cut from {found} to {size} bytes")
        finally:
            os.close(file)
    return done


def clear(outputs: list[str], caller: Caller) -> None:
    """The job starts anew after all: its output is what slurmstepd made it, empty."""
    for path in outputs:
        with contextlib.suppress(Refused):
            file = _open(path, os.O_WRONLY, caller)
            os.ftruncate(file, 0)
            os.close(file)


def sizes(outputs: list[str], caller: Caller) -> dict[str, int]:
    """The outputs' lengths now (bytes)."""
    found = {}
    for path in outputs:
        with contextlib.suppress(Refused):
            file = _open(path, os.O_RDONLY, caller)
            found[path] = os.fstat(file).st_size
            os.close(file)
    return found


def _open(path: str, flags: int, caller: Caller) -> int:
    with as_user(caller.uid, caller.gid, caller.groups):
        try:
            file = os.open(path, flags | _FLAGS, 0o644)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Refused(f"{path}: not a regular file")
    return file


def _extend(kept: Path, source: int, size: int) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    target = os.open(kept, flags, 0o600)
    try:
        have = min(os.fstat(target).st_size, size)
        os.ftruncate(target, have)
        _copy(source, target, have, size)
        os.fsync(target)
    finally:
        os.close(target)


def _fill(target: int, kept: Path, size: int) -> None:
    source = os.open(kept, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _copy(source, target, 0, size)
    finally:
        os.close(source)


def _copy(source: int, target: int, start: int, end: int) -> None:
    at = start
    while at < end:
        block = os.pread(source, min(_BLOCK, end - at), at)
        if not block:
            raise Refused(f"a copy of the output ends at byte {at} of {end}")
        written = os.pwrite(target, block, at)
        at += written
