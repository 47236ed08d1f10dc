"""Readings that are made again and again in a thread of their own, so that a slow or throttled
answer delays nobody: prices, and the plans that Slurm has for nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.model.cluster import Market
from slurm_elastic.providers.base.prices.book import PriceBook
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)

MAX_PAUSE_S = 900.0
PACE = 20.0
"""A reading may take one part in so many of the time, and one more."""


class PeriodicReader(PeriodicThread):
    """Calls ``read`` every so often (s), less often while it raises: what was read before serves
    then. ``name`` is told with how that goes.
    """

    def __init__(
        self, site: CheckpointSite, name: str, every: float, read: Callable[[], None]
    ) -> None:
        retry = Backoff(2 * every, MAX_PAUSE_S)
        task = PeriodicTask(name, self.read, every, pace=PACE, retry=retry, clock=site.monotonic)
        super().__init__(task, site.stop)
        self._site, self._name, self._read = site, name, read

    def read(self) -> bool:
        """Once; whether that went well."""
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 - whatever it raises, the others go on
            self._site.recorder.report_failure(self._name, error)
            return False
        self._site.recorder.report_health(self._name, None)
        return True


def spot_prices(book: PriceBook, machines: Callable[[], Mapping[str, Machine]]) -> None:
    """Read the prices of the spot machines that there are, if any."""
    spot = (m.instance for m in machines().values() if m.instance.market is Market.SPOT)
    keys = sorted({(i.instance_type, i.zone) for i in spot})
    if keys:
        book.refresh(keys)
