"""Readings that are made again and again in a thread of their own, so that a slow or throttled
answer delays nobody: prices, and the plans that Slurm has for nodes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from slurm_elastic.ckptman.site import Site
from slurm_elastic.ledger import Machine
from slurm_elastic.model import Market
from slurm_elastic.prices.book import PriceBook

log = logging.getLogger(__name__)

MOST_PAUSE = 900.0
PACE = 20.0
"""A reading may take one part in so many of the time, and one more."""


class Reader:
    """Calls ``read`` every so often (s), less often while it raises: what was read before serves
    then. ``name`` is told with how that goes.
    """

    def __init__(self, site: Site, name: str, every: float, read: Callable[[], None]) -> None:
        self._site, self._name, self._every, self._read = site, name, every, read
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Until the site stops."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the reading that is under way."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        pause = 0.0
        while not self._site.stop.wait(pause):
            began = self._site.monotonic()
            well = self.read()
            longest = max(self._every, PACE * (self._site.monotonic() - began))
            pause = longest if well else min(max(pause, self._every) * 2, MOST_PAUSE)

    def read(self) -> bool:
        """Once; whether that went well."""
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 - whatever it raises, the others go on
            self._site.journal.health(self._name, f"{type(error).__name__}: {error}")
            return False
        self._site.journal.health(self._name, None)
        return True


def spot_prices(book: PriceBook, machines: Callable[[], Mapping[str, Machine]]) -> None:
    """Read the prices of the spot machines that there are, if any."""
    spot = (m.instance for m in machines().values() if m.instance.market is Market.SPOT)
    keys = sorted({(i.instance_type, i.zone) for i in spot})
    if keys:
        book.refresh(keys)


# slurmctld's events: its programs for resume and suspend and for jobs on our partitions send a
# datagram (programs/) when something happened, so that it is looked at now, not by the next poll.


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
        self._thread = threading.Thread(target=self._run, name="slurm's events", daemon=True)

    def start(self) -> None:
        """Until the service stops."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the thread."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self._wait(TICK):
                    self._happened()
        except OSError as error:
            log.warning("slurmctld's events are not heard any more, polling goes on: %s", error)
