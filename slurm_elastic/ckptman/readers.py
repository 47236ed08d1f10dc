"""Periodic readings in threads of their own, so that a slow or throttled answer delays nothing
else: prices, and Slurm's plans for nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.processes.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import SlurmPlans
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.memory import PLANS_EVERY_S
from slurm_elastic.providers.base.prices.book import PriceBook, price_key
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)

MAX_PAUSE_S = 900.0
PLANS_RETRY_S = 10.0
PACE = 20.0
"""A reading of Slurm's plans may take at most 1/PACE of the time, for the sake of slurmctld."""


class PeriodicReader(PeriodicThread):
    """Calls ``read`` every ``every`` seconds. While it raises, it is called after the pauses of
    ``retry`` (None: less often), and the last successful reading stays in use. The result is
    reported under ``name``. ``pace``: see PeriodicTask.
    """

    def __init__(
        self,
        site: CheckpointSite,
        name: str,
        every: float,
        read: Callable[[], None],
        retry: Backoff | None = None,
        pace: float = 0.0,
    ) -> None:
        retry = retry or Backoff(2 * every, MAX_PAUSE_S)
        task = PeriodicTask(name, self.read, every, pace=pace, retry=retry, clock=site.monotonic)
        super().__init__(task, site.stop)
        self._site, self._name, self._read = site, name, read

    def read(self) -> bool:
        """Read once. Returns whether that succeeded."""
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 - whatever it raises, the others go on
            self._site.recorder.report_failure(self._name, error)
            return False
        self._site.recorder.report_health(self._name, None)
        return True


def plans_reader(site: CheckpointSite, plans: SlurmPlans) -> PeriodicReader:
    """The reader of Slurm's plans for nodes."""
    # Never rarer than the usual reading: ``status`` shows the error until the next success, and an
    # operator who has just started slurmctld again must not see it for minutes.
    retry = Backoff(PLANS_RETRY_S, PLANS_EVERY_S)
    return PeriodicReader(site, plans.name, PLANS_EVERY_S, plans.read, retry, PACE)


def spot_prices(book: PriceBook, machines: Callable[[], Mapping[str, Machine]]) -> None:
    """Read the prices of the existing spot machines, if there are any."""
    spot_machines = (m for m in machines().values() if m.instance.market is Market.SPOT)
    if keys := sorted({price_key(machine) for machine in spot_machines}):
        book.refresh(keys)
