"""How processes end: services on the first SIGTERM or SIGINT, in good order and with status 0;
commands that must clean up, on SIGHUP as well.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGTERM, signal.SIGINT)
_BREAKING_OFF = (*_ENDING, signal.SIGHUP)
END_TIMEOUT_S = 85.0
"""Seconds after its signal in which a process must end. Then it is ended: systemd would do that
after 90 s, by SIGKILL, and nothing would show where its threads waited.
"""

_received: list[int] = []
"""The signals to end that have come: none or one."""
_stops: list[Callable[[], object]] = []
"""The function that the next signal calls, if there is one."""


_pipe: list[int] = []
"""The descriptors between the handler in C and the thread that calls ``stop``."""


def accept_ends() -> None:
    """Let SIGTERM and SIGINT reach this process. Call it first in each service.

    A process that was started below slurmctld, or by a program that blocks these signals, inherits
    the block, and no signal but SIGKILL would end it. Until ``on_end`` a signal has its default
    effect: the process ends at once, which loses nothing.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def on_end(stop: Callable[[], object]) -> None:
    """Call ``stop`` in another thread at the first signal to end. Later signals are ignored. If a
    signal has already come, for another ``stop``, call this one at once. A process that does not
    end within END_TIMEOUT_S shows on stderr where its threads are, and is ended with status 1.
    """
    if _received:
        stop()
        return
    _stops[:] = [stop]
    _watch_signals()
    for number in _ENDING:
        signal.signal(number, _note)
    accept_ends()
    # Checked again, because a signal may have come to the handler of an earlier ``stop``.
    if _received:
        _call_stop()


def bound_end() -> None:
    """End this process after END_TIMEOUT_S, whatever its threads do."""
    # The timer is a thread in C, so it works also if the interpreter hangs while it exits.
    faulthandler.dump_traceback_later(END_TIMEOUT_S, exit=True, file=2)


def _note(number: int, _frame: object) -> None:
    """Python's part of the handler, in the main thread.

    Later signals must be ignored: Python restores the default actions while it exits, so a second
    SIGTERM would kill the process, and its sender would see a failure.
    """
    _received.append(number)
    for end_signal in _ENDING:
        signal.signal(end_signal, signal.SIG_IGN)


def _watch_signals() -> None:
    """Start the thread that calls ``stop``, once in a process.

    Python runs a handler only in the main thread, when that runs Python code again. A main thread
    that waits for a lock or a connection may sleep on: the kernel may give the signal to another
    thread, or right before the wait. The wakeup descriptor is written in the handler in C.
    """
    if _pipe:
        return
    _pipe.extend(os.pipe2(os.O_CLOEXEC))
    readable, writable = _pipe
    os.set_blocking(writable, False)  # as signal.set_wakeup_fd demands
    threading.Thread(target=_watch, args=(readable,), name="signals", daemon=True).start()
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    # A fork shares the pipe: a signal to the child must not end this process.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


def _watch(descriptor: int) -> None:
    # Other signals that Python handles are written, too.
    while os.read(descriptor, 1)[0] not in _ENDING:
        pass
    _received.append(signal.SIGTERM)
    bound_end()
    _call_stop()


def _call_stop() -> None:
    # Two threads may come here, and only one thread gets the function by ``pop``.
    try:
        stop = _stops.pop()
    except IndexError:
        return
    stop()


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, and so does SIGINT even if the caller ran us
    with SIGINT ignored. Later signals are ignored, because they would interrupt the clean-up.
    """

    def interrupt(_number: int, _frame: object) -> None:
        for number in _BREAKING_OFF:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _BREAKING_OFF}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
