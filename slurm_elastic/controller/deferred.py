"""Changes that Slurm takes a moment later: holds whose node still powers down, jobs to hurry."""

from __future__ import annotations

from concurrent.futures import Executor

from slurm_elastic.controller import holds, oversized
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.periodic import PeriodicTask

TICK = 0.3
"""Seconds between two passes: SuspendTimeout, the time to drain in, may be short."""
PACE = 5.0
"""A pass at most takes one part in so many and one of the time."""
AGAIN = 5.0
"""Seconds after a pass that failed."""


class DeferredUpdates:
    """Passes over holds and requeued jobs. Slurm is only asked while something has to settle:
    holds may stand for days.
    """

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        what = "holds and requeued jobs"
        self._looks = PeriodicTask(
            site, worker, self._settle, what, period=TICK, pace=PACE, again=AGAIN
        )
        self._recalled = False
        self._anew = False
        self._waiting = True
        self._settled: frozenset[tuple[str, float]] = frozenset()

    @property
    def busy(self) -> bool:
        """Whether something waits to settle."""
        return self._waiting or bool(self._site.requeues or self._site.oversized)

    def look_anew(self) -> None:
        """At all holds with the next pass, as an admin may have changed a node, and for jobs that
        are still to get their ``--no-requeue`` back.
        """
        self._anew = True

    def tick(self) -> None:
        """Start a pass, unless one runs or the next is not due."""
        self._looks.tick()

    def _settle(self) -> None:
        site = self._site
        if not self._recalled:
            site.requeues.recall(site.ledger, site.monotonic())
            self._recalled = True
        elif self._anew:
            site.requeues.recall_left(site.ledger, site.now(), site.monotonic())
        try:
            site.requeues.tick(site.slurm, site.ledger, site.now(), site.monotonic())
            oversized.keep_out(site)
        finally:
            self._settle_holds()

    def _settle_holds(self) -> None:
        if self._anew:
            self._anew, self._settled = False, frozenset()
        held = frozenset((row.node, row.since) for row in self._site.ledger.holds())
        if held - self._settled:
            self._waiting = holds.settle(self._site)
            self._settled = frozenset() if self._waiting else held
        else:
            self._waiting, self._settled = False, held
