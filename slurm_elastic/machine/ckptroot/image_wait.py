"""A run that may continue from images waits for temporary failures instead of starting over.

The job stands still during the wait. The node's syslog and the job's error output say so. The line
in the error output is removed again if the job then continues as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import stat
import time

from . import log

MAX_WAIT_S = 300.0
"""An NFS server keeps the lock of a lost machine until that client's lease ends, by default for 90
s (rpc.nfsd(8), --lease-time). After a restart of the server its grace period takes as long. A
slurmctld that restarts, or that a thousand jobs ask at once, is back sooner. A job with images
would lose more than minutes of work.
"""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0
"""Average seconds between two tries. Each pause is 1.5 times the last."""


class RunEnded(Exception):  # noqa: N818 - the state of the run, not a failure of ours
    """The run was cancelled, or is over in Slurm. Nothing of it may be started or changed."""


class ImageWait:
    """The wait of one run. SIGTERM is blocked, and ends the wait.

    ``patient``: whether the run has images to wait for. If it has none, this does not wait at all.
    """

    def __init__(self, job: int, limit: float = MAX_WAIT_S) -> None:
        self.patient = False
        self._job = job
        self._limit = limit
        self._began_at: float | None = None
        self._ends_at = 0.0
        self._pause = _FIRST_PAUSE_S
        self._reason = ""
        self._note = _Note()

    @property
    def waited(self) -> bool:
        """Whether this run has waited at all."""
        return self._began_at is not None

    def retry_after_pause(self, reason: str, *, is_endless: bool = False) -> bool:
        """Wait for a pause, and return whether to try again. False after the time is up, which
        begins only after the last ``is_endless`` reason.
        """
        if not self.patient:
            return False
        now = time.monotonic()
        if self._began_at is None:
            self._began_at, self._ends_at = now, now + self._limit
        if is_endless:
            self._ends_at = now + self._limit
        remaining = self._ends_at - now
        if remaining <= 0:
            self._tell(f"waited {self._limit:.0f} s in vain to continue from its images: {reason}")
            return False
        if reason != self._reason:
            self._reason = reason
            bound = "as long as it takes" if is_endless else f"up to {remaining:.0f} s"
            self._tell(f"waits, {bound}, to continue from its images: {reason}")
        # Random pauses, so that a thousand jobs that wait for one slurmctld do not ask at once.
        pause = min(self._pause * random.uniform(0.5, 1.5), remaining)  # noqa: S311 - no secret
        self._pause = min(1.5 * self._pause, _LONGEST_PAUSE_S)
        if signal.sigtimedwait({signal.SIGTERM}, pause) is not None:
            raise RunEnded("cancelled while it waited")
        return True

    def raise_if_cancelled(self) -> None:
        """Raise RunEnded if SIGTERM is pending."""
        if signal.SIGTERM in signal.sigpending():
            raise RunEnded("cancelled while it waited")

    def finish(self) -> None:
        """End the wait after a success: log how long it took and remove its line."""
        if self._began_at is not None:
            seconds = time.monotonic() - self._began_at
            log.write(log.NOTICE, f"job {self._job}: waited {seconds:.0f} s")
            self.take_back()

    def take_back(self) -> None:
        """Remove the line in the job's output before something else is written there."""
        self._note.take_back()
        self._reason = ""

    def _tell(self, text: str) -> None:
        log.write(log.WARNING, f"job {self._job}: {text}")
        self._note.write(f"slurm-elastic: the job {text}\n".encode())


class _Note:
    """A line in the job's error output while no process of the job writes there."""

    def __init__(self, output: int = 2) -> None:
        self._output = output
        self._begins: int | None = None
        self._ends = 0

    def write(self, line: bytes) -> None:
        """Append a line, unless the file was opened without O_APPEND."""
        with contextlib.suppress(OSError):
            before = os.fstat(self._output)
            regular = stat.S_ISREG(before.st_mode)
            # If it is not O_APPEND, the job's next output, at its own offset, would leave a gap
            # after our line.
            if regular and not fcntl.fcntl(self._output, fcntl.F_GETFL) & os.O_APPEND:
                return
            os.write(self._output, line)
            if regular:
                self._begins = before.st_size if self._begins is None else self._begins
                self._ends = os.fstat(self._output).st_size

    def take_back(self) -> None:
        """Remove the lines from the file. They would make the restore duplicate or truncate the
        output.
        """
        with contextlib.suppress(OSError):
            if self._begins is not None and os.fstat(self._output).st_size == self._ends:
                os.ftruncate(self._output, self._begins)
        # Once only: the job's own output may become as long as the lines were.
        self._begins = None
