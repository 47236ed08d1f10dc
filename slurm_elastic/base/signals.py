"""How our services end: on the first SIGTERM or SIGINT, in good order and with status 0; and how
commands do that have something to clear up.
"""

from __future__ import annotations

import _thread
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGTERM, signal.SIGINT)
_BREAKING_OFF = (*_ENDING, signal.SIGHUP)


_asked: list[int] = []
"""The signal to end that this process has got; none, or one."""


def on_end(stop: Callable[[], object]) -> None:
    """Call ``stop``, in a thread of its own, at the first signal to end; later ones change nothing.
    Where that has come already, for another ``stop``, this one is called at once.

    A second one that came while Python takes itself down would kill the process, as Python gives
    signals back their default action on its way out: who asks twice would see a failure.
    """

    def end(number: int, _frame: object) -> None:
        _asked.append(number)
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        # Not in this thread: it may be in the midst of Event.wait, and holds the lock that
        # Event.set takes. Nor by threading.Thread, whose start takes locks of its own.
        try:
            _thread.start_new_thread(stop, ())
        except RuntimeError:  # no more threads may be had
            stop()

    if _asked:
        stop()
        return
    for number in _ENDING:
        signal.signal(number, end)
    if _asked:
        stop()


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, and SIGINT even where the caller had it
    ignored. Later ones change nothing: they would leave behind what is being cleared up.
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
