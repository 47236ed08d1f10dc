"""A job has more than its memory, which may not be there where it goes on: processes that left its
tree, files of this node alone, files that it keeps locked (proc(5), /proc/PID/fdinfo).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping

from slurm_elastic.machine.ckptroot import tracing
from slurm_elastic.machine.ckptroot.baggage import Baggage
from slurm_elastic.machine.ckptroot.proc import status_of
from slurm_elastic.machine.ckptroot.site import Refused

_GONE = " (deleted)"
_MEMORY = ("/memfd:", "/dev/shm/", "/SYSV")  # noqa: S108 - these are found, not made
"""Begin the names of files that are memory."""
_PIDFD_GETFD = 438
"""Gets a descriptor of another process (pidfd_getfd(2)): to open its file could break a lease."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_SIGCHLD = signal.SIGCHLD - 1  # its bit (proc(5), fdinfo of a signalfd)

File = tuple[int, int]
"""Device and inode."""
State = tuple[int, int, int]
"""Inode, size and time of the last change (ns) of a file."""


def stray(tasks: Iterable[int], keeper: int, first: int) -> str:
    """Why a task is none of those that an image has: it is not below the job's first process, whose
    number inside is ``first``, but a child of process 1. Empty where there is none.
    """
    for pid in tasks:
        status = status_of(pid)
        inside = status.get("NSpid", "").split()[-1:]
        lives = status.get("State", "Z")[0] not in "ZX"
        if lives and status.get("PPid") == str(keeper) and inside != [str(first)]:
            return f"process {status.get('Name', pid)} has left the job's tree, as daemons do"
    return ""


def local_files(tasks: Iterable[int], baggage: Baggage, found: Collection[str]) -> str:
    """Why the job would miss files elsewhere: a task works in, has open or has mapped a file of a
    temporary directory of this node that is none of those ``found``, which travel with it. Empty
    where it would not.
    """
    for path in _open_paths(tasks):
        if baggage.holds(path) and path not in found:
            return f"it has {path} open, which is a file of this node alone and not its own"
    return ""


def _open_paths(tasks: Iterable[int]) -> Iterator[str]:
    for pid in tasks:
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/cwd")
        for number in _descriptors(pid):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                mode = os.stat(f"/proc/{pid}/fd/{number}").st_mode
                if not path.endswith(_GONE) and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    yield path
        yield from _mapped_paths(pid)


def _mapped_paths(pid: int) -> set[str]:
    """The files that a task has mapped and that are there still."""
    return {path for path, _ in _mapped(pid) if not path.endswith(_GONE)}


def _mapped(pid: int) -> Iterator[tuple[str, File]]:
    """The files that a task has mapped (proc(5), maps)."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            words = line.rstrip(b"\n").split(None, 5)
            if len(words) == 6 and words[5].startswith(b"/"):
                major, minor = (int(part, 16) for part in words[3].split(b":"))
                yield os.fsdecode(words[5]), (os.makedev(major, minor), int(words[4]))


def gone_names(tasks: Iterable[int]) -> dict[str, File]:
    """The names that files of the tasks had when they were opened, and have no longer."""
    found = {}
    for pid in tasks:
        for path, file in itertools.chain(_mapped(pid), _opened(pid)):
            if path.endswith(_GONE):
                found[path.removesuffix(_GONE)] = file
    return found


def deleted(tasks: Iterable[int]) -> int:
    """Bytes of the deleted files that the tasks have open: an image has them. Files in memory count
    as the tasks' memory.
    """
    found = {}
    for pid in tasks:
        for number in _descriptors(pid):
            with contextlib.suppress(OSError):
                seen = os.stat(f"/proc/{pid}/fd/{number}")
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                if stat.S_ISREG(seen.st_mode) and not (seen.st_nlink or path.startswith(_MEMORY)):
                    found[seen.st_dev, seen.st_ino] = seen.st_blocks * 512
    return sum(found.values())


def _opened(pid: int) -> Iterator[tuple[str, File]]:
    """The files that a task has open."""
    for number in _descriptors(pid):
        with contextlib.suppress(OSError):
            seen = os.stat(f"/proc/{pid}/fd/{number}")
            yield os.readlink(f"/proc/{pid}/fd/{number}"), (seen.st_dev, seen.st_ino)


def terminal(tasks: Iterable[int]) -> str:
    """Why a save would end what a task runs: it has a terminal's other side (pty(7)) and waits for
    SIGCHLD by signalfd(2), as script(1) and su --pty do. These take a stopped child for one that
    its user stopped, and what it writes afterwards is lost. Empty where no task does.
    """
    for pid in tasks:
        sides, waits = False, False
        for number in _descriptors(pid):
            with contextlib.suppress(OSError, ValueError):
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                sides = sides or path in ("/dev/ptmx", "/dev/pts/ptmx")
                if path == "anon_inode:[signalfd]":
                    waits = waits or _mask(f"/proc/{pid}/fdinfo/{number}") >> _SIGCHLD & 1 == 1
        if sides and waits:
            name = status_of(pid).get("Name", str(pid))
            return f"process {name} runs a terminal, and takes a save for a stop of what runs there"
    return ""


def _mask(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return next((int(line.split()[1], 16) for line in file if line.startswith("sigmask:")), 0)


def locked_files(tasks: Iterable[int]) -> dict[str, State]:
    """The files that the tasks keep locked (flock(2), fcntl(2)), as they are now."""
    found = {}
    locked = [(pid, number) for pid in tasks for number in _descriptors(pid) if _locks(pid, number)]
    _write_out(locked)
    for pid, number in locked:
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/{pid}/fd/{number}")
            found[path] = state_of(f"/proc/{pid}/fd/{number}")
    return found


def _locks(pid: int, number: str) -> bool:
    path = f"/proc/{pid}/fdinfo/{number}"
    with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
        return any(line.startswith("lock:") for line in file)
    return False


def _write_out(locked: Iterable[tuple[int, str]]) -> None:
    """Have the files of stopped tasks on their disk that are mapped, too. A write to memory changes
    a file's time only where the page has nothing yet that is to be written (mmap(2), MAP_SHARED):
    else none that comes later would be seen.
    """
    mapped = [(pid, int(number)) for pid, number in locked if _maps(pid, number)]
    if not mapped:
        return

    def all_of_them() -> None:
        for pid, number in mapped:
            with contextlib.suppress(OSError):
                os.fsync(_LIBC.syscall(_PIDFD_GETFD, os.pidfd_open(pid), number, 0))

    tracing.by_child(all_of_them)  # the file's server may not answer


def _maps(pid: int, number: str) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{number}") in _mapped_paths(pid)
    return False


def state_of(path: str) -> State:
    """The file's state; OSError where there is none."""
    seen = os.stat(path)
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def check_locked(locked: Mapping[str, State]) -> None:
    """Refused where a file has changed since a job that kept it locked was saved: while it was not
    running its lock was nobody's, and what it knows of the file is no longer true.
    """
    for path, before in locked.items():
        try:
            now = state_of(path)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from error
        if now != tuple(before):
            raise Refused(f"{path} has changed since the job, which keeps it locked, was saved")


def _descriptors(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(f"/proc/{pid}/fd")
    return []
