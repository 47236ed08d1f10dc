"""Tasks that the daemon does again and again, each in a thread of its own, as each of Slurm's
commands may take a minute. A failure is told, in the log and in ``status``, and does not end the
daemon.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future

from slurm_elastic.base.background import submit
from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.periodic import PeriodicTask
from slurm_elastic.controller.context import Site
from slurm_elastic.state.ledger import Health, LedgerState

log = logging.getLogger(__name__)


class SiteTask(PeriodicTask):
    """A periodic task in a worker; ``what`` is its name in the log.

    ``pace`` is for looks that read all nodes and jobs, which is work for slurmctld on a large
    cluster. After a failure the next look is due in ``again`` seconds, if given. If by
    ``hurried`` something has happened, it is due before ``period``, but never before ``pace``.
    If by ``idle`` there is nothing to look at in the ledger's state, the worker is not woken.
    """

    def __init__(
        self, site: Site, worker: Executor, look: Callable[[], None], what: str, *,
        period: float, pace: float = 0.0, again: float | None = None,
        idle: Callable[[LedgerState], bool] | None = None,
        hurried: Callable[[float], bool] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            what, lambda: run_guarded(site, self._look, what), period,
            pace=pace, retry=None if again is None else Backoff(again, again), clock=site.monotonic,
        )  # fmt: skip
        self._worker, self._look, self._idle, self._hurried = worker, look, idle, hurried
        self._running: Future[bool] | None = None

    @property
    def is_due(self) -> bool:
        """Whether the next look is due, and none runs."""
        over = self._running is None or self._running.done()
        clock = self._clock()
        return over and (clock >= self._due_at or self._is_hurried(clock))

    def _is_hurried(self, clock: float) -> bool:
        return self._hurried is not None and clock >= self._soonest_at and self._hurried(clock)

    def tick(self, state: LedgerState | None = None) -> None:
        """Start a look, unless none is due or, by the ledger's ``state``, none is needed."""
        if not self.is_due:
            return
        if state is not None and self._idle is not None and self._idle(state):
            self.skip()
        else:
            self._running = submit(self._worker, self.name, self.once)


def tick_all(tasks: Iterable[SiteTask], read: Callable[[], LedgerState]) -> None:
    """Start the looks that are due, by the ledger as ``read`` has it."""
    due = [task for task in tasks if task.is_due]
    state = read() if due else None
    for task in due:
        task.tick(state)


def run_guarded(site: Site, look: Callable[[], None], what: str) -> bool:
    """Whether a look goes well. A Slurm that does not answer and a full disk pass by themselves."""
    try:
        look()
    except SlurmError as error:
        slurm_fails(site, error)
    except sqlite3.Error as error:
        log.warning("%s: the ledger cannot be used: %s", what, error)
    except Exception:
        log.exception("%s: a look fails; the next one starts anew", what)
    else:
        return True
    return False


def slurm_fails(site: Site, error: SlurmError) -> None:
    """Say so, in the log and in ``status``."""
    log.warning("slurm cannot be read or changed: %s", error)
    health = Health(name="slurm", checked=site.now(), error=str(error), code="slurm")
    with contextlib.suppress(sqlite3.Error):  # the heartbeat fails, too, and says so
        site.ledger.health.report(health)
