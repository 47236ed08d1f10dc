"""Threads that a service needs for as long as it runs.

Python only prints the exception that ends a thread, and the service continues without the thread.
A thread of ours that fails is logged. It then starts over, or it ends the part that depends on it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from slurm_elastic.base.backoff import Backoff

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class LastingThread:
    """A daemon thread that calls ``run``, which returns only when the thread is no longer needed.

    If ``run`` raises, ``died`` is called once and the thread ends. Without ``died`` the thread
    starts over after a pause, which doubles up to a minute.
    """

    def __init__(
        self, name: str, run: Callable[[], object], died: Callable[[], object] | None = None
    ) -> None:
        self._name, self._run, self._died = name, run, died
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._last, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of ``run``, which does not start over from now on."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _last(self) -> None:
        pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        pause = pauses.longer(0.0)
        while not self._ended.is_set():
            began_at = time.monotonic()
            try:
                self._run()
            # A library may raise SystemExit, for which Python ends the thread and logs nothing.
            except (Exception, SystemExit):
                log.exception("thread %s fails, %s", self._name, self._consequence(pause))
            else:
                return
            if self._died is not None:
                self._died()
                return
            self._ended.wait(pause)
            # A thread that ran well for minutes begins again with the shortest pause.
            is_rare = time.monotonic() - began_at > 2 * LONGEST_PAUSE_S
            pause = pauses.longer(0.0 if is_rare else pause)

    def _consequence(self, pause: float) -> str:
        if self._died is not None:
            return "and ends what depends on it"
        return f"and starts over in {pause:.0f} s"
