"""The signs by which an application shows that it has saved itself.

SlurmUser reads the signs in the user's own directory. Therefore only regular files of the job's
user count, links are not followed, and no message quotes the files' contents. Otherwise a user
could have files read that only SlurmUser may read. A file of another user counts as absent: a
second answer would show a user which files exist in directories that only SlurmUser may read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Protocol, TypeVar

from msgspec import Struct

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.base.processes.in_time import InTime
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob

READ_TIMEOUT_S = 20.0
"""Seconds for one look at a user's files. They may lie on a file system of the user's own (FUSE),
which may never answer.
"""
TAIL_BYTES = 1 << 20
"""Bytes at an output's end in which we search for the line."""
_MAX_MATCHES = 1000
"""Matches of the text that one look examines. An output with a million of them must not cost us
more.
"""
_MAX_WHITE_SPACE = 64
"""Bytes of white space on either side of the line's text, at most."""
_looks = InTime()
_UNFINISHED_STATES = frozenset({"RUNNING", "STOPPED", "COMPLETING", "SUSPENDED", "CONFIGURING"})

T = TypeVar("T")


class Completion(Protocol):
    """A kind of sign. All methods raise CheckpointError if the sign cannot be read."""

    def mark(self) -> str:
        """Return the state of the sign before the application gets the signal."""
        ...

    def shows(self, mark: str, job: SlurmJob | None, run: JobRun) -> int | None:
        """Return the bytes of a save completed since ``mark``; None if there is none."""
        ...

    def shown_at(self) -> float | None:
        """Return when the sign appeared (Unix time, by the clock of its file); None if unknown."""
        ...

    def fault(self, size: int) -> str | None:
        """Return why a save of ``size`` bytes can no longer be used; None if it is usable."""
        ...


class ScriptEnded(Struct, frozen=True):
    """Sign: the batch script ends, with exit code ``code`` (None: any)."""

    code: int | None = None

    def __str__(self) -> str:
        return "end of its script" if self.code is None else f"exit with {self.code}"

    def mark(self) -> str:
        """Return "". The end of the script is a sign by itself, so no earlier state must be kept to
        compare it with.
        """
        return ""

    def shows(self, mark: str, job: SlurmJob | None, run: JobRun) -> int | None:  # noqa: ARG002
        """Return 0 if the same run has ended by itself and not by a signal."""
        if job is None or job.restarts != run.attempt or job.states & _UNFINISHED_STATES:
            return None
        if job.killed_by or not job.states & {"COMPLETED", "FAILED"}:
            return None
        # If no code is configured, we cannot tell a finished program from a saved one. It is
        # requeued and starts again.
        return 0 if self.code in (None, job.exit_code) else None

    def shown_at(self) -> float | None:
        """Return None: the run is over, so the age of its save changes nothing."""
        return None

    def fault(self, size: int) -> str | None:  # noqa: ARG002
        """Return None: we do not know where the application keeps its state."""
        return None


class FileChanged(Struct, frozen=True):
    """Sign: a file appears or changes. The application must write the file under another name and
    rename it, because a file that grows in place looks complete too early.
    """

    path: str
    uid: int

    def __str__(self) -> str:
        return f"change of {self.path}"

    def mark(self) -> str:
        """Return the file's inode, time and size; "" if it does not exist."""
        status = self._stat()
        return "" if status is None else f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"

    def shows(self, mark: str, job: SlurmJob | None, run: JobRun) -> int | None:  # noqa: ARG002
        """Return the file's size if it has changed and is not empty."""
        status = self._stat()
        if status is None or status.st_size == 0 or self.mark() == mark:
            return None
        return status.st_size

    def shown_at(self) -> float | None:
        """Return the time of the file's last change; None if the file is gone."""
        status = self._stat()
        return None if status is None else status.st_mtime

    def fault(self, size: int) -> str | None:
        """Return a fault if the file is gone or empty. Its size may differ, by a later save."""
        status = self._stat()
        if status is None:
            return f"{self.path} is gone"
        return f"{self.path} is empty" if size and not status.st_size else None

    def _stat(self) -> os.stat_result | None:
        return _look(self.path, self.uid, lambda: _stat_of_users_file(self.path, self.uid))


class LinePrinted:
    """Sign: a line appears in the job's output. Each byte of the output is read once, so that the
    cost of a look does not grow with the output.
    """

    def __init__(self, path: str, uid: int, text: str) -> None:
        self.path, self.uid, self.text = path, uid, text
        self._read_until = 0

    def __str__(self) -> str:
        return f"line {self.text!r} in {self.path}"

    def mark(self) -> str:
        """Return the length of the output in bytes."""
        _, size, _ = _look(self.path, self.uid, lambda: self._tail(None))
        return str(size)

    def shows(self, mark: str, job: SlurmJob | None, run: JobRun) -> int | None:  # noqa: ARG002
        """Return 0 if the line is in the output written since ``mark``."""
        data, size, exists = _look(self.path, self.uid, lambda: self._tail(int(mark)))
        if exists:
            self._read_until = size
        return 0 if has_line(data, self.text.encode()) else None

    def _tail(self, mark: int | None) -> tuple[bytes, int, bool]:
        """Return the unread output, the output's length, and whether the output exists.

        The unread output begins after ``mark`` and after the bytes of earlier looks; one byte
        before it is added in front. With ``mark`` None nothing is read.
        """
        descriptor = self._open()
        if descriptor is None:
            return b"", 0, False
        try:
            size = os.fstat(descriptor).st_size
            if mark is None:
                return b"", size, True
            # A shorter output was truncated, so its bytes are new.
            read_until = self._read_until if size >= self._read_until else 0
            # Read the end of the last look again: the line may have been half written then.
            overlap = len(self.text.encode()) + 2 * _MAX_WHITE_SPACE
            begin = max(mark, read_until - overlap, size - TAIL_BYTES, 0)
            before = os.pread(descriptor, 1, begin - 1) if begin > mark else b"\n"
            data = before + os.pread(descriptor, size - begin, begin) if size > begin else b""
            return data, size, True
        finally:
            os.close(descriptor)

    def shown_at(self) -> float | None:
        """Return None: more output may have followed the line."""
        return None

    def fault(self, size: int) -> str | None:  # noqa: ARG002
        """Return None: Slurm truncates the output when the job restarts, so a missing line is no
        fault.
        """
        return None

    def _open(self) -> int | None:
        # Before the open: if SlurmUser may not open a file of another user, the error of the open
        # would show that the file exists.
        if _stat_of_users_file(self.path, self.uid) is None:
            return None
        # O_NONBLOCK: the user may have put a named pipe there, and its open would wait for a
        # writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"{self.path}: {error.strerror}") from error
        # Again: the user may have replaced the file since the first check.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != self.uid:
            os.close(descriptor)
            return None
        return descriptor


def _stat_of_users_file(path: str, uid: int) -> os.stat_result | None:
    """Return the status of the user's file; None if no file of the user has this path.

    Raises CheckpointError if the path cannot be read, or if it is a link, a pipe or a directory of
    the user. The user made these and gains nothing by the message.
    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    if status.st_uid != uid:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path} is no regular file of the job's user")
    return status


def _look(path: str, uid: int, look: Callable[[], T]) -> T:
    """Return the result of ``look`` at a user's file. Raises CheckpointError after a time-out."""
    try:
        return _looks.call(uid, look, READ_TIMEOUT_S)
    except TimeoutError as error:
        raise CheckpointError(f"{path}: {error}") from error


def has_line(data: bytes, text: bytes) -> bool:
    """Return True if a line of ``data`` is ``text``, except for white space around it. The first
    byte of ``data`` is only context: if it is a line feed, a line begins at the second byte.
    """
    start = -1
    for _ in range(_MAX_MATCHES):
        start = data.find(text, start + 1)
        if start < 0:
            return False
        before = data[max(start - _MAX_WHITE_SPACE, 0) : start].rstrip(b" \t")
        end = start + len(text)
        after = data[end : end + _MAX_WHITE_SPACE].lstrip(b" \t")
        if before[-1:] in (b"\r", b"\n") and (not after or after[:1] in (b"\r", b"\n")):
            return True
    return False


def completion_of(text: str, run: JobRun, slurm: Slurm) -> Completion:
    """Return the sign that ``text`` names: exit, exit:CODE, file:PATH or line:TEXT.

    In a path, ``%j`` is the job's id, ``%A`` the array's id and ``%a`` the index in the array, as
    in sbatch's file names. Raises CheckpointError if the path or the output is unknown.
    """
    kind, _, value = text.partition(":")
    if kind == "file" and run.directory:
        array, _, task = run.label.partition("_")
        name = value.replace("%j", str(run.job)).replace("%A", array).replace("%a", task)
        return FileChanged(path=os.path.join(run.directory, name), uid=run.uid)
    if kind == "line":
        return LinePrinted(path=_output(run, slurm), uid=run.uid, text=value.strip())
    if kind == "exit":
        return ScriptEnded(int(value) if value else None)
    raise CheckpointError(f"job {run.label}: its directory is unknown, so {text!r} cannot be read")


def is_end_of_script(text: str) -> bool:
    """Whether ``text`` names the end of the batch script, with or without an exit code."""
    return text == "exit" or text.startswith("exit:")


def _output(run: JobRun, slurm: Slurm) -> str:
    try:
        job = slurm.job(run.job)
    except SlurmError as error:
        raise CheckpointError(f"job {run.label}: its output is not known: {error}") from error
    if job is None:
        raise CheckpointError(f"job {run.label}: its output is not known: Slurm no longer has it")
    return job.output
