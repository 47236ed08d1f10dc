"""How processes end: services on the first SIGTERM or SIGINT, in good order and with status 0;
commands that must clean up, on SIGHUP as well.
"""

from __future__ import annotations

import _thread
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGTERM, signal.SIGINT)
_BREAKING_OFF = (*_ENDING, signal.SIGHUP)


_received: list[int] = []
"""The signals to end that have come: none or one."""


def on_end(stop: Callable[[], object]) -> None:
    """Call ``stop`` in a thread of its own at the first signal to end. Later signals are ignored.
    If a signal has already come, for another ``stop``, call this one at once.

    Later signals must be ignored: Python restores the default actions while it exits, so a second
    SIGTERM would kill the process, and whoever sent it twice would see a failure.
    """

    def end(number: int, _frame: object) -> None:
        _received.append(number)
        for end_signal in _ENDING:
            signal.signal(end_signal, signal.SIG_IGN)
        # Not in this thread: it may be inside Event.wait and hold the lock that Event.set takes.
        # Nor by threading.Thread, whose start() takes locks of its own.
        try:
            _thread.start_new_thread(stop, ())
        except RuntimeError:  # the system allows no more threads
            stop()

    if _received:
        stop()
        return
    for number in _ENDING:
        signal.signal(number, end)
    # Checked again, because a signal may have come to the handler of an earlier ``stop``.
    if _received:
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
