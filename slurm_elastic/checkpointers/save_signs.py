"""The signs by which an application says that it has saved itself.

We read a sign in the user's own directory, as SlurmUser. So only regular files of the job's user
count, we follow nothing that the user could point elsewhere, and repeat nothing from the files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Protocol, TypeVar

from msgspec import Struct

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.base.in_time import InTime
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob

LOOK = 20.0
"""Seconds for one look at a user's files, which a process of the user's may serve."""
TAIL = 1 << 20
"""Bytes at an output's end in which we look for the line."""
_MATCHES = 1000
"""Matches that one look goes through: the output is the user's, the time is ours."""
_AROUND = 64
"""Most white space on either side of the line's text."""
_looks = InTime()
_GOES_ON = frozenset({"RUNNING", "STOPPED", "COMPLETING", "SUSPENDED", "CONFIGURING"})

T = TypeVar("T")


class Completion(Protocol):
    """One kind of sign."""

    def mark(self) -> str:
        """The state of the sign before the application is asked."""
        ...

    def shows(self, mark: str, job: SlurmJob | None, run: JobRun) -> int | None:
        """The size of what was saved, once a save has completed since ``mark``; None before."""
        ...

    def fault(self, size: int) -> str | None:
        """What is wrong with a save of that size by now."""
        ...


class Ended(Struct, frozen=True):
    """The batch script ends, with ``code`` if one is given."""

    code: int | None = None

    def __str__(self) -> str:
        return "end of its script" if self.code is None else f"exit with {self.code}"

    def mark(self) -> str:
        """There is nothing to compare with."""
        return ""

    def shows(self, mark: str, job: SlurmJob | None, run: JobRun) -> int | None:  # noqa: ARG002
        """Once Slurm says that the same run has ended by itself, not by a signal."""
        if job is None or job.restarts != run.attempt or job.states & _GOES_ON:
            return None
        if job.killed_by or not job.states & {"COMPLETED", "FAILED"}:
            return None
        # Without a code, a program that has just finished its work cannot be told from one that has
        # saved itself: it begins anew.
        return 0 if self.code in (None, job.exit_code) else None

    def fault(self, size: int) -> str | None:  # noqa: ARG002
        """The application keeps its state where we cannot look."""
        return None


class Changed(Struct, frozen=True):
    """A file appears or changes. The application writes it under another name and renames it."""

    path: str
    uid: int

    def __str__(self) -> str:
        return f"change of {self.path}"

    def mark(self) -> str:
        """Its inode, time and size; empty if it does not exist."""
        found = self._stat()
        return "" if found is None else f"{found.st_ino} {found.st_mtime_ns} {found.st_size}"

    def shows(self, mark: str, job: SlurmJob | None, run: JobRun) -> int | None:  # noqa: ARG002
        """Once it has changed and is not empty."""
        found = self._stat()
        if found is None or found.st_size == 0 or self.mark() == mark:
            return None
        return found.st_size

    def fault(self, size: int) -> str | None:
        """It may have grown since, by a later save."""
        found = self._stat()
        if found is None:
            return f"{self.path} is gone"
        return f"{self.path} is empty" if size and not found.st_size else None

    def _stat(self) -> os.stat_result | None:
        try:
            found = _asked(self.path, self.uid, lambda: os.lstat(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CheckpointError(f"{self.path}: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode) or found.st_uid != self.uid:
            raise CheckpointError(f"{self.path} is no regular file of the job's user")
        return found


class Said:
    """A line appears in the job's output. We read each byte of that once, so that a job that writes
    much does not cost more with each look.
    """

    def __init__(self, path: str, uid: int, text: str) -> None:
        self.path, self.uid, self.text = path, uid, text
        self._seen = 0

    def __str__(self) -> str:
        return f"line {self.text!r} in {self.path}"

    def mark(self) -> str:
        """The length of the output."""
        _, size, _ = _asked(self.path, self.uid, lambda: self._tail(None))
        return str(size)

    def shows(self, mark: str, job: SlurmJob | None, run: JobRun) -> int | None:  # noqa: ARG002
        """Once the line is in what was written since."""
        data, size, there = _asked(self.path, self.uid, lambda: self._tail(int(mark)))
        if there:
            self._seen = size
        return 0 if has_line(data, self.text.encode()) else None

    def _tail(self, mark: int | None) -> tuple[bytes, int, bool]:
        """What the output has gained since ``mark`` (None: do not read) and we have not read yet,
        from the byte before on; its length; and whether the output exists.
        """
        descriptor = self._open()
        if descriptor is None:
            return b"", 0, False
        try:
            size = os.fstat(descriptor).st_size
            if mark is None:
                return b"", size, True
            seen = self._seen if size >= self._seen else 0  # otherwise somebody has cut it
            # We read a line again that may have been half written at the last look.
            overlap = len(self.text.encode()) + 2 * _AROUND
            begin = max(mark, seen - overlap, size - TAIL, 0)
            before = os.pread(descriptor, 1, begin - 1) if begin > mark else b"\n"
            data = before + os.pread(descriptor, size - begin, begin) if size > begin else b""
            return data, size, True
        finally:
            os.close(descriptor)

    def fault(self, size: int) -> str | None:  # noqa: ARG002
        """Slurm truncates the output when the job starts again, so the output tells nothing."""
        return None

    def _open(self) -> int | None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"{self.path}: {error.strerror}") from error
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != self.uid:
            os.close(descriptor)
            raise CheckpointError(f"{self.path} is no regular file of the job's user")
        return descriptor


def _asked(path: str, uid: int, look: Callable[[], T]) -> T:
    """Look at a user's file; CheckpointError if no answer comes."""
    try:
        return _looks.do(uid, look, LOOK)
    except TimeoutError as error:
        raise CheckpointError(f"{path}: {error}") from error


def has_line(data: bytes, wanted: bytes) -> bool:
    """Whether a line of ``data`` is ``wanted``, maybe with white space around it. The first byte of
    ``data`` tells whether a line begins at the second.
    """
    at = -1
    for _ in range(_MATCHES):
        at = data.find(wanted, at + 1)
        if at < 0:
            return False
        before = data[max(at - _AROUND, 0) : at].rstrip(b" \t")
        end = at + len(wanted)
        after = data[end : end + _AROUND].lstrip(b" \t")
        if before[-1:] in (b"\r", b"\n") and (not after or after[:1] in (b"\r", b"\n")):
            return True
    return False


def completion_of(text: str, run: JobRun, slurm: Slurm) -> Completion:
    """The sign that ``text`` names for that run: exit, exit:CODE, file:PATH or line:TEXT.

    In a path, ``%j`` is the job's number, ``%A`` its array's and ``%a`` its place in the array, as
    in sbatch's file names.
    """
    kind, _, rest = text.partition(":")
    if kind == "file" and run.directory:
        array, _, task = run.label.partition("_")
        name = rest.replace("%j", str(run.job)).replace("%A", array).replace("%a", task)
        return Changed(path=os.path.join(run.directory, name), uid=run.uid)
    if kind == "line":
        return Said(path=_output(run, slurm), uid=run.uid, text=rest.strip())
    if kind == "exit":
        return Ended(int(rest) if rest else None)
    raise CheckpointError(f"job {run.label}: its directory is not known, {text!r} cannot be found")


def _output(run: JobRun, slurm: Slurm) -> str:
    try:
        return slurm.output(run.job)
    except SlurmError as error:
        raise CheckpointError(f"job {run.label}: its output is not known: {error}") from error
