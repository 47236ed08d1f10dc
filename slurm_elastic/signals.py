"""How our services end: on the first SIGTERM or SIGINT, in good order and with status 0."""

from __future__ import annotations

import signal
from collections.abc import Callable

_ENDING = (signal.SIGTERM, signal.SIGINT)


def on_end(stop: Callable[[], object]) -> None:
    """Call ``stop``, in the main thread, at the first signal to end; later ones change nothing.

    A second one that came while Python takes itself down would kill the process, as Python gives
    signals back their default action on its way out: who asks twice would see a failure.
    """

    def end(_number: int, _frame: object) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        stop()

    for number in _ENDING:
        signal.signal(number, end)
