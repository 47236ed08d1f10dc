"""Decide which signals to pass on to the payload, so that each reaches it once.

``scancel --batch`` signals only the batch script's process, which is sudo. sudo passes the signal
on to us, and we pass it on to the payload. In all other cases slurmstepd signals every process of
the step: sudo, us and the payload. The signal that sudo then passes on is a second copy.

Slurm suspends a job by SIGTSTP to all of them, two seconds later SIGSTOP, and resumes it by
SIGCONT. sudo passes SIGTSTP on, and stops itself when it learns that we were stopped. If it learns
that only after SIGCONT, no other process continues sudo, and the step never ends (measured: 2 of 25
resumes).
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
_COPIES_WITHIN_S = 0.1
"""The copies of one signal arrive within this time."""
_SUDO_STOPPED_S = 1.0
"""How long sudo must be stopped while we run before we continue it. Slurm's own stops and
continues reach all of us within moments.
"""


def block() -> None:
    """Block the signals until we take them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    # If the job's script had ignored SIGCHLD, the kernel would reap our children at once, and their
    # pids could be reused.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Ignore SIGTSTP: Slurm's SIGSTOP follows, and sudo's copy may arrive after the job was resumed.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)


class Relay:
    """Takes our signals, which stay blocked. ``sudo``: our parent's pid. ``terminated``: SIGTERM
    has arrived, directly or through sudo.
    """

    def __init__(self, sudo: int) -> None:
        self._sudo = sudo
        self._stopped_since: float | None = None
        self.terminated = False
        block()

    def wait(self, timeout: float) -> list[int]:
        """Wait for signals up to ``timeout`` seconds; return those to pass on. SIGCHLD only ends
        the wait.
        """
        first_signal = signal.sigtimedwait(SIGNALS, timeout)
        if first_signal is None:
            return []
        from_sudo, direct = set[int](), set[int]()
        info: signal.struct_siginfo | None = first_signal
        until = time.monotonic() + _COPIES_WITHIN_S
        while info is not None:
            number = info.si_signo
            if number == signal.SIGCHLD:
                # Return at once: the payload may have ended, and no copies follow.
                if not from_sudo and not direct:
                    return []
            elif info.si_pid == self._sudo:
                from_sudo.add(number)
            else:
                direct.add(number)
            info = signal.sigtimedwait(SIGNALS, max(until - time.monotonic(), 0.0))
        if signal.SIGTERM in from_sudo | direct:
            self.terminated = True
        return sorted(from_sudo - direct)

    def wake_sudo(self, stopped_s: float = _SUDO_STOPPED_S) -> None:
        """Continue sudo if it has been stopped for ``stopped_s``. Call this repeatedly."""
        if os.getppid() != self._sudo or status_of(self._sudo).get("State", "")[:1] != "T":
            self._stopped_since = None
            return
        now = time.monotonic()
        self._stopped_since = now if self._stopped_since is None else self._stopped_since
        # sudo may have stopped itself after SIGCONT, and then no other process continues it (see
        # above).
        if now - self._stopped_since >= stopped_s:
            self._continue_sudo()

    def _continue_sudo(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(self._sudo)
            try:
                # While sudo is still our parent, the descriptor cannot belong to a later process
                # with its pid.
                if os.getppid() == self._sudo:
                    signal.pidfd_send_signal(process, signal.SIGCONT)
            finally:
                os.close(process)
