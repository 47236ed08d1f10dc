"""How long tests wait. A deadline only ends what hangs, and says nothing about how fast anything is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

IDLE, MOST = 2.0, 10.0
"""By how much a deadline is stretched on an idle machine, and at most."""


def patience(seconds: float) -> float:
    """Seconds to wait for what an idle machine does within ``seconds``: more, the busier this one is."""
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * min(MOST, IDLE + busy)


def eventually(
    condition: Callable[[], T],
    seconds: float = 60.0,
    told: Callable[[], object] = lambda: "it did not happen",
) -> T:
    """Wait until ``condition`` is true; its value. ``told`` goes into the failure."""
    deadline = time.monotonic() + patience(seconds)
    while not (value := condition()):
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)
    return value
