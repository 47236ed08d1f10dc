"""A run that may go on from images waits for troubles that pass by themselves, rather than start
anew.

The job stands still meanwhile. It says so in the node's syslog and in its error output; the line
there is taken out again if the job then goes on as if nothing had happened.
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

PATIENCE = 300.0
"""Seconds. An NFS server keeps the lock of a machine that is gone until that client's lease ends,
after 90 s by default (rpc.nfsd(8), --lease-time); if the server itself was restarted, until its
grace period of the same length is over. A slurmctld that restarts, or that a thousand jobs ask at
once, is back sooner. A job that has images has more than minutes of work to lose.
"""
_FIRST, _LONGEST = 1.0, 15.0
"""Seconds between two tries, on average: each time half as many again."""


class Ended(Exception):  # noqa: N818 - what has become of the run, not a failure of ours
    """The run was cancelled, or is over, while it waited: nothing may be started any more."""


class ImageWait:
    """How one run waits. SIGTERM is blocked, and ends the wait. ``patient``: whether there is
    anything to wait for; if not, it does not wait at all.
    """

    def __init__(self, job: int, limit: float = PATIENCE) -> None:
        self.patient = False
        self._job = job
        self._limit = limit
        self._since: float | None = None
        self._pause = _FIRST
        self._why = ""
        self._note = _Note()

    @property
    def waited(self) -> bool:
        """Whether it has waited at all."""
        return self._since is not None

    def again(self, why: str) -> bool:
        """Wait a while; whether to try again then. False once the time is up."""
        if not self.patient:
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        left = self._since + self._limit - now
        if left <= 0:
            self._tell(f"waited {self._limit:.0f} s and goes on from no image: {why}")
            return False
        if why != self._why:
            self._why = why
            self._tell(f"waits, up to {left:.0f} s, to go on from its images: {why}")
        # At random: a thousand jobs that wait for one slurmctld do not ask it at once.
        pause = min(self._pause * random.uniform(0.5, 1.5), left)  # noqa: S311 - no secret
        self._pause = min(1.5 * self._pause, _LONGEST)
        if signal.sigtimedwait({signal.SIGTERM}, pause) is not None:
            raise Ended("cancelled while it waited")
        return True

    def look(self) -> None:
        """Raises Ended once SIGTERM has come."""
        if signal.SIGTERM in signal.sigpending():
            raise Ended("cancelled while it waited")

    def rewarded(self) -> None:
        """The wait is over: log how long it took and take its line back."""
        if self._since is not None:
            seconds = time.monotonic() - self._since
            log.tell(log.NOTICE, f"job {self._job}: waited {seconds:.0f} s")
            self._note.take_back()

    def _tell(self, text: str) -> None:
        log.tell(log.WARNING, f"job {self._job}: {text}")
        self._note.write(f"slurm-elastic: the job {text}\n".encode())


class _Note:
    """A line in the job's error output while nothing else writes there."""

    def __init__(self, output: int = 2) -> None:
        self._output = output
        self._begins: int | None = None
        self._ends = 0

    def write(self, line: bytes) -> None:
        """Add a line, unless the file is not opened to append."""
        with contextlib.suppress(OSError):
            before = os.fstat(self._output)
            regular = stat.S_ISREG(before.st_mode)
            # After the line the job's next output, at its own place, would leave a gap.
            if regular and not fcntl.fcntl(self._output, fcntl.F_GETFL) & os.O_APPEND:
                return
            os.write(self._output, line)
            if regular:
                self._begins = before.st_size if self._begins is None else self._begins
                self._ends = os.fstat(self._output).st_size

    def take_back(self) -> None:
        """Take the lines out of a file again: a restored output would be doubled or cut wrongly by
        them.
        """
        with contextlib.suppress(OSError):
            if self._begins is not None and os.fstat(self._output).st_size == self._ends:
                os.ftruncate(self._output, self._begins)
