"""Events of slurmctld start a tick at once, before the next period.

Slurm's programs for resume and suspend, and the prologs and epilogs of jobs on our partitions, send
a datagram (programs/).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from slurm_elastic.base.processes.periodic import PeriodicTask, PeriodicThread

SOCKET = "ckptman.sock"
"""In the state directory. programs/power.py and programs/slurm-elastic-wait use the same name."""
TICK_S = 1.0
"""Seconds after which the thread notices that the service stops."""


class SlurmEvents(PeriodicThread):
    """Waits for datagrams. ``wait(seconds)`` returns the datagrams that came within that time.
    Their content does not matter, because Slurm itself is read afterwards; ``happened`` is called
    once for any number of them.
    """

    def __init__(
        self,
        stop: threading.Event,
        wait: Callable[[float], Sequence[bytes]],
        happened: Callable[[], None],
    ) -> None:
        # No pause between two calls, because each call waits by itself.
        super().__init__(PeriodicTask("slurm's events", self._hear, 0.0), stop)
        self._wait, self._happened = wait, happened

    def _hear(self) -> None:
        if self._wait(TICK_S):
            self._happened()
