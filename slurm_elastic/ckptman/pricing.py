"""Keeps the price book up to date, in a thread of its own: a throttled API delays nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from slurm_elastic.ckptman.site import Site
from slurm_elastic.ledger import Machine
from slurm_elastic.model import Market
from slurm_elastic.prices.book import PriceBook

MOST_PAUSE = 900.0


class PriceReader:
    """Asks every so often, less often while the answer is an error."""

    def __init__(
        self, site: Site, book: PriceBook, machines: Callable[[], Mapping[str, Machine]]
    ) -> None:
        self._site, self._book, self._machines = site, book, machines
        self._thread = threading.Thread(target=self._run, name="prices", daemon=True)

    def start(self) -> None:
        """Until the site stops."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the reading that is under way."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        every = self._site.config.checkpoint.prices.every
        pause = 0.0
        while not self._site.stop.wait(pause):
            pause = every if self.read() else min(max(pause, every) * 2, MOST_PAUSE)

    def read(self) -> bool:
        """Once, for the spot machines there are; whether that went well."""
        spot = (m.instance for m in self._machines().values() if m.instance.market is Market.SPOT)
        keys = sorted({(i.instance_type, i.zone) for i in spot})
        if not keys:
            return True
        try:
            self._book.refresh(keys)
        except Exception as error:  # noqa: BLE001 - the prices of before still serve
            self._site.journal.health(self._book.name, f"{type(error).__name__}: {error}")
            return False
        self._site.journal.health(self._book.name, None)
        return True
