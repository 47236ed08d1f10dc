"""What a cloud has told, kept for as long as it serves."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable
from typing import Any, ClassVar

from slurm_elastic.base.guards import Guarded, GuardedBy


class Kept:
    """By what was asked. Thread-safe; two who ask at once may both ask the cloud."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_told")}

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._told: dict[Hashable, tuple[float, Any]] = {}

    def of(self, what: Hashable, fresh: float, ask: Callable[[], Any]) -> Any:  # noqa: ANN401
        """The answer of the last ``fresh`` seconds, or a new one."""
        with self._lock:
            since, value = self._told.get(what, (float("-inf"), None))
        if self._monotonic() - since < fresh:
            return value
        value = ask()
        with self._lock:
            self._told[what] = self._monotonic(), value
        return value

    def last(self, what: Hashable, otherwise: Any, age: float = math.inf) -> Any:  # noqa: ANN401
        """The last answer, unless it is older than ``age`` (s)."""
        with self._lock:
            since, value = self._told.get(what, (float("-inf"), otherwise))
        return value if self._monotonic() - since < age else otherwise

    def forget(self) -> None:
        """Ask anew."""
        with self._lock:
            self._told.clear()
