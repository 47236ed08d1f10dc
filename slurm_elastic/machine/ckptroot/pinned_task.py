"""Pins a task of a job while root acts on it: reads or writes its memory, traces or signals it.

The number of a task may belong to another process when we use it. The job's user can kill the task
and start processes until the kernel gives the number out again. The user can also delay us, by
memory that is a file whose server the user runs. But an open directory of proc(5) stays with its
process for good, and so do the files that we open below it. So we open the directory first. Then we
check whose task it is, and check it again after each file we open and each thread we trace.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from .kernel import descriptor_of

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class Owner:
    """A job's user (None: any user) and the namespace of its process numbers, by the device and
    inode of the namespace. A task of the job has both.
    """

    uid: int | None
    numbers: tuple[int, int]


class PinnedTask:
    """A task behind the open directory that proc(5) has for it. Its methods raise OSError if it is
    gone.
    """

    def __init__(self, pid: int, directory: int, owner: Owner) -> None:
        self.pid = pid
        self._directory = directory
        self._owner = owner

    def check(self) -> None:
        """ProcessLookupError if it is not the owner's: as long as it is, its number is its own."""
        numbers = os.stat("ns/pid", dir_fd=self._directory)
        # A program with more rights than its user (setuid, file capabilities) is not dumpable, and
        # then this file is root's (proc(5)).
        uid = os.stat("status", dir_fd=self._directory).st_uid
        is_users = self._owner.uid in (None, uid)
        if not is_users or (numbers.st_dev, numbers.st_ino) != self._owner.numbers:
            raise ProcessLookupError(f"process {self.pid} is not the job's")

    def has_thread(self, thread: int) -> bool:
        """Whether the task has a thread with that number. If we trace the thread, the number stays
        its own until we have waited for its end.
        """
        with contextlib.suppress(OSError):
            os.stat(f"task/{thread}", dir_fd=self._directory)
            self.check()
            return True
        return False

    def threads(self) -> list[int]:
        """The numbers of its threads."""
        directory = self._opened("task", _DIRECTORY)
        try:
            return [int(name) for name in os.listdir(directory)]
        finally:
            os.close(directory)

    def read(self, name: str) -> str:
        """The content of a file of the task in proc(5)."""
        with open(self._opened(name, os.O_RDONLY | os.O_CLOEXEC), errors="replace") as file:
            return file.read()

    @contextlib.contextmanager
    def opened(self, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Open a file of the task in proc(5)."""
        descriptor = self._opened(name, flags | os.O_CLOEXEC)
        try:
            # The program may have been replaced by one with more rights since the last check.
            self.check()
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def process(self) -> Iterator[int]:
        """A pidfd of it."""
        process = os.pidfd_open(self.pid)
        try:
            self.check()  # the task is still there, so the pidfd is its own
            yield process
        finally:
            os.close(process)

    def descriptor(self, number: int) -> int:
        """Copy a descriptor of the task."""
        with self.process() as process:
            return descriptor_of(process, number)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        with self.process() as process:
            signal.pidfd_send_signal(process, number)

    def _opened(self, name: str, flags: int) -> int:
        return os.open(name, flags, dir_fd=self._directory)


@contextlib.contextmanager
def pinned(pid: int, owner: Owner) -> Iterator[PinnedTask]:
    """The task with that number; OSError if it is gone, or is not the owner's."""
    directory = os.open(f"/proc/{pid}", _DIRECTORY)
    try:
        task = PinnedTask(pid, directory, owner)
        task.check()
        yield task
    finally:
        os.close(directory)
