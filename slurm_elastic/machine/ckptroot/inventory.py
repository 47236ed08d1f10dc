"""Find state of a job outside its memory that another node may lack.

This state is: processes that left the job's tree, files of this node alone, and files that the job
keeps locked (proc(5), /proc/PID/fdinfo).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping

from . import tracing
from .pinned_task import TaskOwner, pinned
from .proc import descriptors_of, status_of
from .site import RequestRefused, WrongImage

_DELETED = " (deleted)"
_MEMORY = ("/memfd:", "/dev/shm/", "/SYSV")  # noqa: S108 - these are found, not made
"""Prefixes of the names of files that live in memory."""
_SIGCHLD = signal.SIGCHLD - 1  # its bit (proc(5), fdinfo of a signalfd)

File = tuple[int, int]
"""Device and inode."""
State = tuple[int, int]
"""Size and time of the last change (ns) of a file. A copied file (``data: copy``) has both, and
another inode.
"""


def stray(tasks: Iterable[int], init: int, first_pid: int) -> str:
    """Return why a task would not be in the image, or "".

    The task is then a child of process 1 (``init``), but is not the job's first process, whose
    number inside is ``first_pid``.
    """
    for pid in tasks:
        status = status_of(pid)
        # The last number of NSpid is the number in the innermost namespace (proc(5)).
        inside = status.get("NSpid", "").split()[-1:]
        is_alive = status.get("State", "Z")[0] not in "ZX"
        if is_alive and status.get("PPid") == str(init) and inside != [str(first_pid)]:
            return f"process {status.get('Name', pid)} has left the job's tree, as daemons do"
    return ""


def open_paths(tasks: Iterable[int]) -> Iterator[str]:
    """Yield the tasks' working directories, and the files and directories that they have open or
    mapped, if these still have a name.
    """
    for pid in tasks:
        # A task may end while we look. Its files are then nobody's.
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/cwd")
        for _, path, status in _opened(pid):
            is_named = not path.endswith(_DELETED)
            if is_named and (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                yield path
        yield from _mapped_paths(pid)


def used(tasks: Collection[int]) -> set[tuple[int, int]]:
    """Return device and inode of every file that the tasks have open or mapped, or work in."""
    file_ids = set()
    for pid in tasks:
        links = [f"/proc/{pid}/cwd"]
        # map_files has also mapped files whose descriptor is closed.
        for place in (f"/proc/{pid}/fd", f"/proc/{pid}/map_files"):
            with contextlib.suppress(OSError):
                links += [f"{place}/{name}" for name in os.listdir(place)]
        for link in links:
            with contextlib.suppress(OSError):
                status = os.stat(link)
                file_ids.add((status.st_dev, status.st_ino))
    return file_ids


def _mapped_paths(pid: int) -> set[str]:
    """Return the existing files that a task has mapped."""
    return {path for path, _ in _mapped(pid) if not path.endswith(_DELETED)}


def _mapped(pid: int) -> Iterator[tuple[str, File]]:
    """Yield the files that a task has mapped (proc(5), maps)."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            fields = line.rstrip(b"\n").split(None, 5)
            if len(fields) == 6 and fields[5].startswith(b"/"):
                major, minor = (int(number, 16) for number in fields[3].split(b":"))
                yield os.fsdecode(fields[5]), (os.makedev(major, minor), int(fields[4]))


def gone_names(tasks: Iterable[int]) -> dict[str, File]:
    """Return the former names of files that the tasks have open or mapped, with their file ids."""
    files = {}
    for pid in tasks:
        opened = ((path, (status.st_dev, status.st_ino)) for _, path, status in _opened(pid))
        for path, file in itertools.chain(_mapped(pid), opened):
            if path.endswith(_DELETED):
                files[path.removesuffix(_DELETED)] = file
    return files


def deleted(tasks: Iterable[int]) -> int:
    """Return the bytes of deleted files that the tasks have open. The image will contain them.

    Files in memory are not counted here, because they count as the tasks' memory.
    """
    sizes = {}
    for pid in tasks:
        for _, path, status in _opened(pid):
            if stat.S_ISREG(status.st_mode) and not (status.st_nlink or path.startswith(_MEMORY)):
                # Blocks and not the length: holes take no room in the image. By inode, because
                # several tasks may have the file open.
                sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def _opened(pid: int) -> Iterator[tuple[int, str, os.stat_result]]:
    """Yield number, path and status of each descriptor of a task."""
    for number, path in descriptors_of(pid):
        with contextlib.suppress(OSError):
            yield number, path, os.stat(f"/proc/{pid}/fd/{number}")


def terminal(tasks: Iterable[int]) -> str:
    """Return why a save would end the programs that a task runs, or "".

    The task has the master side of a terminal (pty(7)) and waits for SIGCHLD by signalfd(2), as
    script(1) and su --pty do. It believes that the user has stopped its child, and the child's
    later output is lost.
    """
    for pid in tasks:
        opened = list(descriptors_of(pid))
        has_master = any(path in ("/dev/ptmx", "/dev/pts/ptmx") for _, path in opened)
        if has_master and any(
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


def locked_files(tasks: Iterable[int], owner: TaskOwner) -> dict[str, State]:
    """Return the files that the tasks keep locked (flock(2), fcntl(2)), with their present
    states.
    """
    locked = [
        (pid, number, path)
        for pid in tasks
        for number, path in descriptors_of(pid)
        if _has_lock(f"/proc/{pid}/fdinfo/{number}")
    ]
    mapped = [(pid, owner, number) for pid, number, path in locked if path in _mapped_paths(pid)]
    if mapped:
        tracing.by_child(_write_out, mapped)  # in a child: the file's server may never answer
    states = {}
    for pid, number, path in locked:
        with contextlib.suppress(OSError):
            states[path] = state_of(f"/proc/{pid}/fd/{number}")
    return states


def _has_lock(fdinfo: str) -> bool:
    with contextlib.suppress(OSError), open(fdinfo, encoding="ascii") as file:
        return any(line.startswith("lock:") for line in file)
    return False


def _write_out(pid: int, owner: TaskOwner, number: int) -> None:
    """Write a mapped file of a stopped task to its disk.

    A write to memory changes the file's time only if its page was clean (mmap(2), MAP_SHARED).
    Without this call we would miss later writes.
    """
    with contextlib.suppress(OSError), pinned(pid, owner) as task:
        os.fsync(task.descriptor(number))


def state_of(path: str) -> State:
    """Return the file's state. OSError if it does not exist."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def check_locked(locked: Mapping[str, State]) -> None:
    """WrongImage if a file that the job kept locked has changed since the save.

    No process held the lock while the job was not running, so the job's knowledge of the file would
    be wrong.
    """
    for path, before in locked.items():
        try:
            now = state_of(path)
        except OSError as error:
            raise RequestRefused(f"{path}: {error.strerror}") from error
        if not _is_same(now, before):
            raise WrongImage(f"{path} has changed since the job, which keeps it locked, was saved")


def _is_same(now: State, before: State) -> bool:
    """The times are compared as exactly as the file system keeps them, because the file may have
    come back to one that keeps only seconds or microseconds.
    """
    (size, at), (size_before, at_before) = now, before
    step = next(step for step in (10**9, 1000, 100, 1) if at % step == 0)
    return size == size_before and at == at_before - at_before % step
