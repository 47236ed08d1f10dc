"""Changes that Slurm takes a moment later: holds whose node still powers down, jobs to hurry."""

from __future__ import annotations

import logging
from concurrent.futures import Executor

from slurm_elastic.controller import holds
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.oversized import keep_out
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.model.exclusion import HOLDS
from slurm_elastic.state.ledger import LedgerState

log = logging.getLogger(__name__)


TICK = 0.3
"""Seconds between two passes: SuspendTimeout, the time to drain in, may be short."""
PACE = 5.0
"""A pass at most takes one part in so many and one of the time."""
AGAIN = 5.0
"""Seconds after a pass that failed."""


class Settler:
    """Passes over holds and requeued jobs. Slurm is only asked while something has to settle:
    holds may stand for days.
    """

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        what = "holds and requeued jobs"
        self.looks = SiteTask(
            site, worker, self._settle, what, period=TICK, pace=PACE, again=AGAIN,
            idle=self._is_idle,
        )  # fmt: skip
        self._recalled = False
        self.anew = False
        """Whether the next pass looks at all holds, as an admin may have changed a node, and for
        jobs that are still to get their ``--no-requeue`` back.
        """
        self._waiting = True
        self._settled: frozenset[tuple[str, float]] = frozenset()

    @property
    def busy(self) -> bool:
        """Whether something waits to settle."""
        return self._waiting or bool(self._site.requeues or self._site.oversized)

    def _is_idle(self, state: LedgerState) -> bool:
        """Whether nothing is held or lifted, and nothing was at the last pass."""
        if state.lifted or self._settled or self.busy or not self._recalled:
            return False
        return all(row.kind not in HOLDS for row in state.exclusions)

    def _settle(self) -> None:
        site = self._site
        state = site.ledger.state()
        if state.lifted and not self._recalled:
            site.requeues.recall(site.ledger, site.monotonic())
        elif state.lifted and self.anew:
            site.requeues.recall_left(site.ledger, site.now(), site.monotonic())
        self._recalled = True
        try:
            site.requeues.tick(site.slurm, site.ledger, site.now(), site.monotonic())
            keep_out(site)
        finally:
            # Also where a job cannot be changed: the time to drain a node in may be short.
            self._settle_holds()

    def _settle_holds(self) -> None:
        if self.anew:
            self.anew, self._settled = False, frozenset()
        rows = self._site.ledger.state().exclusions
        held = frozenset((row.scope, row.since) for row in rows if row.kind in HOLDS)
        if held - self._settled:
            self._waiting = holds.settle(self._site)
            self._settled = frozenset() if self._waiting else held
        else:
            self._waiting, self._settled = False, held
