"""The signs by which an application says that it has saved itself.

A sign is read in the user's own directory, as SlurmUser: only regular files of the job's user
count, nothing is followed that the user could point elsewhere, and nothing of them is repeated.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Protocol, TypeVar

from msgspec import Struct

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.checkpointers.in_time import InTime
from slurm_elastic.model.cluster import JobRun
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob

LOOK = 20.0
"""Seconds for one look at what is a user's, which may be served by a process of theirs."""
TAIL = 1 << 20
"""Bytes of an output's end in which the line is looked for."""
_MATCHES = 1000
"""Places in what one look reads that are looked at: the output is the user's, the time is ours."""
_AROUND = 64
"""White space on either side of the line's text."""
_looks = InTime()
_GOES_ON = frozenset({"RUNNING", "STOPPED", "COMPLETING", "SUSPENDED", "CONFIGURING"})

T = TypeVar("T")


class Completion(Protocol):
    """One kind of sign."""

    def mark(self) -> str:
        """How it stands before the application is asked."""
        ...

    def shows(self, mark: str, job: SlurmJob | None, run: JobRun) -> int | None:
        """The size of what was saved, once the save is complete since ``mark``; else None."""
        ...

    def fault(self, size: int) -> str | None:
        """The mistake in a save of that size by now."""
        ...


class Ended(Struct, frozen=True):
    """The batch script ends, with ``code`` if one is given. Without, a program that has finished
    its work at that very moment cannot be told from one that has saved itself: it begins anew.
    """

    code: int | None = None

    def __str__(self) -> str:
        return "end of its script" if self.code is None else f"exit with {self.code}"

    def mark(self) -> str:
        """Nothing to compare with."""
        return ""

    def shows(self, mark: str, job: SlurmJob | None, run: JobRun) -> int | None:  # noqa: ARG002
        """Once Slurm has the same run ended by itself, not killed by a signal."""
        if job is None or job.restarts != run.attempt or job.states & _GOES_ON:
            return None
        if job.killed_by or not job.states & {"COMPLETED", "FAILED"}:
            return None
        return 0 if self.code in (None, job.exit_code) else None

    def fault(self, size: int) -> str | None:  # noqa: ARG002
        """The application keeps it where we cannot look."""
        return None


class Changed(Struct, frozen=True):
    """A file appears or changes. The application writes it under another name and renames it."""

    path: str
    uid: int

    def __str__(self) -> str:
        return f"change of {self.path}"

    def mark(self) -> str:
        """Its inode, times and size; empty where there is none."""
        found = self._stat()
        return "" if found is None else f"{found.st_ino} {found.st_mtime_ns} {found.st_size}"

    def shows(self, mark: str, job: SlurmJob | None, run: JobRun) -> int | None:  # noqa: ARG002
        """Once it is another one and not empty."""
        found = self._stat()
        if found is None or found.st_size == 0 or self.mark() == mark:
            return None
        return found.st_size

    def fault(self, size: int) -> str | None:
        """It may have grown since, with a later save."""
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
    """A line appears in the job's output. Each byte of that is looked at once, so that a job that
    writes much costs no more with each look.
    """

    def __init__(self, path: str, uid: int, text: str) -> None:
        self.path, self.uid, self.text = path, uid, text
        self._seen = 0

    def __str__(self) -> str:
        return f"line {self.text!r} in {self.path}"

    def mark(self) -> str:
        """How long the output is."""
        _, size, _ = _asked(self.path, self.uid, lambda: self._tail(None))
        return str(size)

    def shows(self, mark: str, job: SlurmJob | None, run: JobRun) -> int | None:  # noqa: ARG002
        """Once it stands in what was written since."""
        data, size, there = _asked(self.path, self.uid, lambda: self._tail(int(mark)))
        if there:
            self._seen = size
        return 0 if has_line(data, self.text.encode()) else None

    def _tail(self, mark: int | None) -> tuple[bytes, int, bool]:
        """The output since ``mark`` (None: nothing of it) as far as it was not looked at, from the
        byte before on; how long it is, and whether it is there.
        """
        descriptor = self._open()
        if descriptor is None:
            return b"", 0, False
        try:
            size = os.fstat(descriptor).st_size
            if mark is None:
                return b"", size, True
            seen = self._seen if size >= self._seen else 0  # somebody has cut it
            # A line that was half written at the last look is read once more.
            overlap = len(self.text.encode()) + 2 * _AROUND
            begin = max(mark, seen - overlap, size - TAIL, 0)
            before = os.pread(descriptor, 1, begin - 1) if begin > mark else b"\n"
            data = before + os.pread(descriptor, size - begin, begin) if size > begin else b""
            return data, size, True
        finally:
            os.close(descriptor)

    def fault(self, size: int) -> str | None:  # noqa: ARG002
        """Slurm truncates the output when the job starts again: that says nothing."""
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
    """A look at what is that user's; CheckpointError where no answer comes."""
    try:
        return _looks.do(uid, look, LOOK)
    except TimeoutError as error:
        raise CheckpointError(f"{path}: {error}") from error


def has_line(data: bytes, wanted: bytes) -> bool:
    """Whether a line of ``data`` is ``wanted``, with white space around it or none. The first byte
    tells whether the second begins a line.
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

    In a path ``%j`` is the job's number, ``%A`` its array's and ``%a`` its place in that, as sbatch
    has them in names of files.
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
