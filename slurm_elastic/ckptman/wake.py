"""The events of slurmctld: something happened, so it is looked at now, not by the next poll.

Its programs for resume and suspend, and for jobs on our partitions, send a datagram (programs/).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from slurm_elastic.base.lasting import LastingThread

SOCKET = "ckptman.sock"
"""In the state directory; programs/power.py and programs/slurm-elastic-wait name it, too."""
TICK = 1.0
"""Seconds after which the end of the service is noticed."""


class Events:
    """``wait`` gives the datagrams that came within so many seconds; what they say does not matter,
    as all that is to be known stands in Slurm: ``happened`` is called once for any number of them.
    """

    def __init__(
        self,
        stop: threading.Event,
        wait: Callable[[float], Sequence[bytes]],
        happened: Callable[[], None],
    ) -> None:
        self._stop, self._wait, self._happened = stop, wait, happened
        self._thread = LastingThread("slurm's events", self._run)

    def start(self) -> None:
        """Until the service stops."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the thread."""
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._wait(TICK):
                self._happened()
