"""Finishes changes that Slurm accepts only a moment later: holds whose node still powers down, and
requeued jobs that are not pending yet.
"""

from __future__ import annotations

import logging
from concurrent.futures import Executor

from slurm_elastic.controller import holds
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.oversized import move_or_hold_jobs
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.model.exclusion import HOLDS
from slurm_elastic.state.ledger import LedgerState

log = logging.getLogger(__name__)


TICK_S = 0.3
"""Seconds between two passes. A held node must be drained within SuspendTimeout, which may be a few
seconds.
"""
PACE_RATIO = 5.0
"""The pause after a pass is at least this many times as long as the pass took."""
RETRY_AFTER_S = 5.0
"""Seconds between a pass that failed and the next."""


class Settler:
    """Makes passes over holds and requeued jobs. ``task``: the periodic task. It asks Slurm only
    while a change is unfinished, because holds may stand for days.
    """

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        task_name = "holds and requeued jobs"
        self.task = SiteTask(
            site, worker, self._settle, task_name, period=TICK_S, pace=PACE_RATIO,
            again=RETRY_AFTER_S, idle=self._is_idle,
        )  # fmt: skip
        self._recalled = False
        self.must_recheck = False
        """Whether the next pass checks all holds again, because an admin may have changed a node,
        and looks for jobs that must still get their ``--no-requeue`` back.
        """
        self._waiting = True
        self._settled: frozenset[tuple[str, float]] = frozenset()

    @property
    def is_busy(self) -> bool:
        """Whether a hold or a requeued job is unfinished."""
        return self._waiting or bool(self._site.requeues or self._site.oversized)

    def _is_idle(self, state: LedgerState) -> bool:
        """Whether there is no hold and no lifted setting, now and at the last pass."""
        if state.lifted or self._settled or self.is_busy or not self._recalled:
            return False
        return all(row.kind not in HOLDS for row in state.exclusions)

    def _settle(self) -> None:
        site = self._site
        state = site.ledger.state()
        if state.lifted and not self._recalled:
            site.requeues.recall(site.ledger, site.now(), site.monotonic())
        elif state.lifted and self.must_recheck:
            site.requeues.recall_left(site.ledger, site.now(), site.monotonic())
        self._recalled = True
        try:
            site.requeues.tick(site.slurm, site.ledger, site.now(), site.monotonic())
            move_or_hold_jobs(site)
        finally:
            # Also after an error with a job: the time in which a node can be drained may be short.
            self._settle_holds()

    def _settle_holds(self) -> None:
        if self.must_recheck:
            self.must_recheck, self._settled = False, frozenset()
        rows = self._site.ledger.state().exclusions
        held = frozenset((row.scope, row.since) for row in rows if row.kind in HOLDS)
        if held - self._settled:
            self._waiting = holds.drain_when_powered_down(self._site)
            self._settled = frozenset() if self._waiting else held
        else:
            self._waiting, self._settled = False, held
