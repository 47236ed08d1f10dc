"""How many threads a piece of work has started, whatever else ends meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable


def new_threads() -> Callable[[], int]:
    """Counts the living threads that were not there at this moment."""
    before = set(threading.enumerate())
    return lambda: len(set(threading.enumerate()) - before)
