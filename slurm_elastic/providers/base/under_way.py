"""The launches that a provider carries out now. Each ends its own failed machines, so ``tidy`` must
leave them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from slurm_elastic.base.guards import Guarded, GuardedBy


class LaunchesUnderWay:
    """The generations of the launches under way in this process. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_generations")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generations: set[str] = set()

    @contextmanager
    def hold(self, generation: str) -> Iterator[None]:
        """Count the launch as under way inside the block."""
        with self._lock:
            self._generations.add(generation)
        try:
            yield
        finally:
            with self._lock:
                self._generations.discard(generation)

    def now(self) -> frozenset[str]:
        """The generations of the launches under way."""
        with self._lock:
            return frozenset(self._generations)
