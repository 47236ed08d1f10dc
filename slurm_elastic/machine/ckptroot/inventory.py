"""Finds what a job has beside its memory that may be missing where it goes on: processes that left
its tree, files of this node alone, files that it keeps locked (proc(5), /proc/PID/fdinfo).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping

from . import tracing
from .pinned_task import Owner, pinned
from .proc import descriptors_of, status_of
from .site import Refused

_GONE = " (deleted)"
_MEMORY = ("/memfd:", "/dev/shm/", "/SYSV")  # noqa: S108 - these are found, not made
"""How the names of files begin that are memory."""
_SIGCHLD = signal.SIGCHLD - 1  # its bit (proc(5), fdinfo of a signalfd)

File = tuple[int, int]
"""Device and inode."""
State = tuple[int, int, int]
"""Inode, size and time of the last change (ns) of a file."""


def stray(tasks: Iterable[int], init: int, first: int) -> str:
    """Why a task would not be in the image: it is a child of process 1 (``init``) and not below the
    job's first process, whose number inside is ``first``. Empty if there is no such task.
    """
    for pid in tasks:
        status = status_of(pid)
        inside = status.get("NSpid", "").split()[-1:]
        lives = status.get("State", "Z")[0] not in "ZX"
        if lives and status.get("PPid") == str(init) and inside != [str(first)]:
            return f"process {status.get('Name', pid)} has left the job's tree, as daemons do"
    return ""


def open_paths(tasks: Iterable[int]) -> Iterator[str]:
    """The directories that tasks work in, and the files and directories that they have open or
    mapped, if these still have a name.
    """
    for pid in tasks:
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/cwd")
        for _, path, seen in _opened(pid):
            is_named = not path.endswith(_GONE)
            if is_named and (stat.S_ISREG(seen.st_mode) or stat.S_ISDIR(seen.st_mode)):
                yield path
        yield from _mapped_paths(pid)


def used(tasks: Collection[int]) -> set[tuple[int, int]]:
    """Device and inode of everything that the tasks have open or mapped, or work in."""
    found = set()
    for pid in tasks:
        links = [f"/proc/{pid}/cwd"]
        for place in (f"/proc/{pid}/fd", f"/proc/{pid}/map_files"):
            with contextlib.suppress(OSError):
                links += [f"{place}/{name}" for name in os.listdir(place)]
        for link in links:
            with contextlib.suppress(OSError):
                seen = os.stat(link)
                found.add((seen.st_dev, seen.st_ino))
    return found


def _mapped_paths(pid: int) -> set[str]:
    """The files that a task has mapped and that still exist."""
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
    """The names that files had when the tasks opened them, and no longer have."""
    found = {}
    for pid in tasks:
        opened = ((path, (seen.st_dev, seen.st_ino)) for _, path, seen in _opened(pid))
        for path, file in itertools.chain(_mapped(pid), opened):
            if path.endswith(_GONE):
                found[path.removesuffix(_GONE)] = file
    return found


def deleted(tasks: Iterable[int]) -> int:
    """Bytes of the deleted files that the tasks have open, which the image will contain. Files in
    memory count as the tasks' memory.
    """
    found = {}
    for pid in tasks:
        for _, path, seen in _opened(pid):
            if stat.S_ISREG(seen.st_mode) and not (seen.st_nlink or path.startswith(_MEMORY)):
                found[seen.st_dev, seen.st_ino] = seen.st_blocks * 512
    return sum(found.values())


def _opened(pid: int) -> Iterator[tuple[int, str, os.stat_result]]:
    """The files that a task has open, by its descriptors."""
    for number, path in descriptors_of(pid):
        with contextlib.suppress(OSError):
            yield number, path, os.stat(f"/proc/{pid}/fd/{number}")


def terminal(tasks: Iterable[int]) -> str:
    """Why a save would end what a task runs: the task has the other side of a terminal (pty(7)) and
    waits for SIGCHLD by signalfd(2), as script(1) and su --pty do. These take a stopped child for
    one that the user has stopped, and what it writes afterwards is lost. Empty if no task does
    that.
    """
    for pid in tasks:
        opened = list(descriptors_of(pid))
        sides = any(path in ("/dev/ptmx", "/dev/pts/ptmx") for _, path in opened)
        if sides and any(
            path == "anon_inode:[signalfd]" and _waits_for_children(f"/proc/{pid}/fdinfo/{number}")
            for number, path in opened
        ):
            name = status_of(pid).get("Name", str(pid))
            return f"process {name} runs a terminal, and takes a save for a stop of what runs there"
    return ""


def _waits_for_children(signalfd: str) -> bool:
    with contextlib.suppress(OSError, ValueError), open(signalfd, encoding="ascii") as file:
        masks = (int(line.split()[1], 16) for line in file if line.startswith("sigmask:"))
        return next(masks, 0) >> _SIGCHLD & 1 == 1
    return False


def locked_files(tasks: Iterable[int], owner: Owner) -> dict[str, State]:
    """The files that the tasks keep locked (flock(2), fcntl(2)), as they are now."""
    locked = [
        (pid, number, path)
        for pid in tasks
        for number, path in descriptors_of(pid)
        if _has_lock(f"/proc/{pid}/fdinfo/{number}")
    ]
    mapped = [(pid, owner, number) for pid, number, path in locked if path in _mapped_paths(pid)]
    if mapped:
        tracing.by_child(_write_out, mapped)  # in a child, as the file's server may not answer
    found = {}
    for pid, number, path in locked:
        with contextlib.suppress(OSError):
            found[path] = state_of(f"/proc/{pid}/fd/{number}")
    return found


def _has_lock(fdinfo: str) -> bool:
    with contextlib.suppress(OSError), open(fdinfo, encoding="ascii") as file:
        return any(line.startswith("lock:") for line in file)
    return False


def _write_out(pid: int, owner: Owner, number: int) -> None:
    """Write a mapped file of a stopped task to its disk. A write to memory changes the file's time
    only if its page has nothing yet to be written (mmap(2), MAP_SHARED); without this we would not
    see any that come later.
    """
    with contextlib.suppress(OSError), pinned(pid, owner) as task:
        os.fsync(task.descriptor(number))


def state_of(path: str) -> State:
    """The file's state; OSError if there is none."""
    seen = os.stat(path)
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def check_locked(locked: Mapping[str, State]) -> None:
    """Refused if a file has changed since the save of a job that kept it locked: nobody held the
    lock while the job was not running, and what the job knows of the file is no longer true.
    """
    for path, before in locked.items():
        try:
            now = state_of(path)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from error
        if now != tuple(before):
            raise Refused(f"{path} has changed since the job, which keeps it locked, was saved")
