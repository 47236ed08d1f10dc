"""Pin a task of a job while root acts on it: reads or writes its memory, traces or signals it.

The number of a task may belong to another process when we use it. The job's user can kill the task
and start processes until the kernel reuses the number. The user can also delay us, by memory that
is mapped from a file whose server the user runs. But an open directory of proc(5) stays with its
process for good, and so do the files that we open below it. So we open the directory first. Then we
check that the task is the job's, and check it again after each file we open and each thread we
trace.
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
class TaskOwner:
    """A job's user (None: any user) and its pid namespace (device and inode). Each task of the job
    has both.
    """

    uid: int | None
    numbers: tuple[int, int]


class PinnedTask:
    """A task, held by its open directory in proc(5). Its methods raise OSError if the task is
    gone.
    """

    def __init__(self, pid: int, directory: int, owner: TaskOwner) -> None:
        self.pid = pid
        self._directory = directory
        self._owner = owner

    def check(self) -> None:
        """ProcessLookupError if the task is not the owner's. As long as the task exists, the kernel
        gives its number to no other process.
        """
        numbers = os.stat("ns/pid", dir_fd=self._directory)
        # A program with more rights than its user (setuid, file capabilities) is not dumpable. Then
        # this file is root's (proc(5)), and the check fails.
        uid = os.stat("status", dir_fd=self._directory).st_uid
        is_users = self._owner.uid in (None, uid)
        if not is_users or (numbers.st_dev, numbers.st_ino) != self._owner.numbers:
            raise ProcessLookupError(f"process {self.pid} is not the job's")

    def has_thread(self, thread: int) -> bool:
        """Return whether the task has a thread with that number.

        If we trace the thread, the kernel gives its number to no other thread until we have waited
        for its end.
        """
        with contextlib.suppress(OSError):
            os.stat(f"task/{thread}", dir_fd=self._directory)
            self.check()
            return True
        return False

    def threads(self) -> list[int]:
        """Return the numbers of its threads."""
        directory = self._opened("task", _DIRECTORY)
        try:
            return [int(name) for name in os.listdir(directory)]
        finally:
            os.close(directory)

    def read(self, name: str) -> str:
        """Return the content of a file of the task in proc(5)."""
        with open(self._opened(name, os.O_RDONLY | os.O_CLOEXEC), errors="replace") as file:
            return file.read()

    @contextlib.contextmanager
    def opened(self, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Yield a descriptor of a file of the task in proc(5)."""
        descriptor = self._opened(name, flags | os.O_CLOEXEC)
        try:
            # The task may have executed a program with more rights since the last check.
            self.check()
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def process(self) -> Iterator[int]:
        """Yield a pidfd of the task."""
        process = os.pidfd_open(self.pid)
        try:
            self.check()  # the task still exists, so the pidfd is its own
            yield process
        finally:
            os.close(process)

    def descriptor(self, number: int) -> int:
        """Return a copy of a descriptor of the task."""
        with self.process() as process:
            return descriptor_of(process, number)

    def signal(self, number: int) -> None:
        """Send the task a signal."""
        with self.process() as process:
            signal.pidfd_send_signal(process, number)

    def _opened(self, name: str, flags: int) -> int:
        return os.open(name, flags, dir_fd=self._directory)


@contextlib.contextmanager
def pinned(pid: int, owner: TaskOwner) -> Iterator[PinnedTask]:
    """Yield the task with that number. OSError if it is gone, or is not the owner's."""
    directory = os.open(f"/proc/{pid}", _DIRECTORY)
    try:
        task = PinnedTask(pid, directory, owner)
        task.check()
        yield task
    finally:
        os.close(directory)
