"""Decides which signals to pass on to the payload, so that each reaches it once, however Slurm
sends it.

``scancel --batch`` signals only the batch script's process, which is sudo; sudo passes that on to
us, and we pass it on to the payload. Otherwise slurmstepd signals every process of the step: sudo,
us and the payload itself. What sudo then passes on is a second copy.

Slurm suspends a job by SIGTSTP to all of them, two seconds later SIGSTOP, and resumes it by
SIGCONT. sudo passes SIGTSTP on, and stops itself as soon as it hears that we were stopped: if that
comes late, after SIGCONT, nobody continues it, and the step never ends (measured: 2 of 25 resumes).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from .proc import status_of

SIGNALS = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
     signal.SIGTERM, signal.SIGXCPU, signal.SIGURG, signal.SIGWINCH, signal.SIGCHLD}
)  # fmt: skip
_TOGETHER = 0.1
"""Seconds within which the copies of one signal arrive."""
_STANDS = 1.0
"""Seconds that sudo stands still while we run: Slurm stops or continues us all in moments."""


def block() -> None:
    """Have signals wait until we take them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    # Had the job's script ignored it, the kernel would reap our children at once, and their pids
    # could be reused.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Slurm's SIGSTOP follows, and sudo's copy may come when the job runs on already.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)


class Relay:
    """Takes our signals, which stay blocked; ``sudo`` is our parent's pid. ``terminated``: SIGTERM
    has come, in whichever way.
    """

    def __init__(self, sudo: int) -> None:
        self._sudo = sudo
        self._stood: float | None = None
        self.terminated = False
        block()

    def wait(self, timeout: float) -> list[int]:
        """Wait for signals; returns those to pass on. SIGCHLD only ends the wait."""
        first = signal.sigtimedwait(SIGNALS, timeout)
        if first is None:
            return []
        passed, direct = set[int](), set[int]()
        found: signal.struct_siginfo | None = first
        until = time.monotonic() + _TOGETHER
        while found is not None:
            number = found.si_signo
            if number == signal.SIGCHLD:
                if not passed and not direct:
                    return []
            elif found.si_pid == self._sudo:
                passed.add(number)
            else:
                direct.add(number)
            found = signal.sigtimedwait(SIGNALS, max(until - time.monotonic(), 0.0))
        if signal.SIGTERM in passed | direct:
            self.terminated = True
        return sorted(passed - direct)

    def wake_sudo(self, stands: float = _STANDS) -> None:
        """Continue sudo where it has stopped itself, so many seconds ago; to be called again and
        again.
        """
        if os.getppid() != self._sudo or status_of(self._sudo).get("State", "")[:1] != "T":
            self._stood = None
            return
        now = time.monotonic()
        self._stood = now if self._stood is None else self._stood
        # It stops itself when it hears that we were stopped: if that is late, after SIGCONT, nobody
        # else continues it.
        if now - self._stood >= stands:
            self._continue_sudo()

    def _continue_sudo(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(self._sudo)
            try:
                # If it is our parent still, the descriptor is of no later process with its number.
                if os.getppid() == self._sudo:
                    signal.pidfd_send_signal(process, signal.SIGCONT)
            finally:
                os.close(process)
