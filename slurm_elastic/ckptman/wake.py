"""The events of slurmctld: something happened, so it is looked at now, not by the next poll.

Its programs for resume and suspend, and for jobs on our partitions, send a datagram (programs/).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from slurm_elastic.base.periodic import PeriodicTask, PeriodicThread

SOCKET = "ckptman.sock"
"""In the state directory; programs/power.py and programs/slurm-elastic-wait name it, too."""
TICK_S = 1.0
"""Seconds after which the end of the service is noticed."""


class SlurmEvents(PeriodicThread):
    """``wait`` gives the datagrams that came within so many seconds; what they say does not matter,
    as all that is to be known stands in Slurm: ``happened`` is called once for any number of them.
    """

    def __init__(
        self,
        stop: threading.Event,
        wait: Callable[[float], Sequence[bytes]],
        happened: Callable[[], None],
    ) -> None:
        # No pause between two calls: each waits by itself.
        super().__init__(PeriodicTask("slurm's events", self._hear, 0.0), stop)
        self._wait, self._happened = wait, happened

    def _hear(self) -> None:
        if self._wait(TICK_S):
            self._happened()
