"""What Slurm only lets happen a moment later: holds whose node still powers down, jobs to hurry.

It has its own thread, as each of Slurm's commands may take a minute.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from concurrent.futures import Executor, Future

from slurm_elastic.errors import SlurmError
from slurm_elastic.ledger import Health
from slurm_elastic.lifecycle import holds
from slurm_elastic.lifecycle.site import Site

log = logging.getLogger(__name__)

TICK = 0.3
"""Seconds between two passes: SuspendTimeout, the time to drain in, may be short."""
PACE = 5.0
"""A pass at most takes one part in so many and one of the time: on a large cluster a reading of all
nodes and jobs is work for slurmctld.
"""
AGAIN = 5.0
"""Seconds after a pass that failed."""


class Settler:
    """Passes over holds and requeued jobs. Slurm is only asked while something has to settle:
    holds may stand for days.
    """

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        self._worker = worker
        self._running: Future[None] | None = None
        self._next = float("-inf")
        self._recalled = False
        self._anew = False
        self._waiting = True
        self._settled: frozenset[tuple[str, float]] = frozenset()

    @property
    def busy(self) -> bool:
        """Whether something waits to settle."""
        return self._waiting or bool(self._site.restarts)

    def look_anew(self) -> None:
        """At all holds with the next pass, as an admin may have changed a node, and for jobs that
        are still to get their ``--no-requeue`` back.
        """
        self._anew = True

    def tick(self) -> None:
        """Start a pass, unless one runs or the next is not due."""
        if self._running is not None and not self._running.done():
            return
        if self._site.monotonic() >= self._next:
            self._running = self._worker.submit(self._guarded)

    def _guarded(self) -> None:
        clock = self._site.monotonic
        began = clock()
        try:
            self._settle()
        except SlurmError as error:
            slurm_fails(self._site, error)
        except sqlite3.Error as error:
            log.warning("the ledger cannot be used: %s", error)
        except Exception:
            log.exception("holds and requeued jobs: a pass fails; the next one starts anew")
        else:
            self._next = clock() + max(TICK, PACE * (clock() - began))
            return
        self._next = clock() + AGAIN

    def _settle(self) -> None:
        site = self._site
        if not self._recalled:
            site.restarts.recall(site.ledger, site.monotonic())
            self._recalled = True
        elif self._anew:
            site.restarts.recall_left(site.ledger, site.now(), site.monotonic())
        try:
            site.restarts.tick(site.slurm, site.ledger, site.now(), site.monotonic())
        finally:
            self._settle_holds()

    def _settle_holds(self) -> None:
        if self._anew:
            self._anew, self._settled = False, frozenset()
        held = frozenset((row.node, row.since) for row in self._site.ledger.holds())
        if held - self._settled:
            with self._site.holding:
                self._waiting = holds.settle(self._site, self._site.slurm.nodes())
            self._settled = frozenset() if self._waiting else held
        else:
            self._waiting, self._settled = False, held


def slurm_fails(site: Site, error: SlurmError) -> None:
    """Say so, in the log and in ``status``."""
    log.warning("slurm cannot be read or changed: %s", error)
    health = Health(name="slurm", checked=site.now(), error=str(error), code="slurm")
    with contextlib.suppress(sqlite3.Error):  # the heartbeat fails, too, and says so
        site.ledger.report_health(health)
