"""Which signals reach the payload: each once, however Slurm sends it.

``scancel --batch`` sends to the batch script's process alone, which is sudo, and sudo passes it on
to us: then we pass it on to the payload. Otherwise slurmstepd sends to every process of the step:
to sudo, to us and to the payload itself, and what sudo passes on is a second copy.
"""

from __future__ import annotations

import signal
import time

SIGNALS = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
     signal.SIGTERM, signal.SIGXCPU, signal.SIGURG, signal.SIGWINCH, signal.SIGCHLD}
)  # fmt: skip
_TOGETHER = 0.1
"""Seconds within which copies of one signal come."""


def block() -> None:
    """Signals wait until they are taken. SIGCHLD has its default: where the job's script had it
    ignored, the kernel would reap our children at once, and give their numbers to others.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


class Relay:
    """Takes our signals, which stay blocked; ``sudo`` is the pid of our parent.

    ``terminated``: SIGTERM has come, by whichever way.
    """

    def __init__(self, sudo: int) -> None:
        self._sudo = sudo
        self.terminated = False
        block()

    def wait(self, timeout: float) -> list[int]:
        """Wait for signals; those that are to be passed on. SIGCHLD only ends the waiting."""
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
