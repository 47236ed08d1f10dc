"""Periodic tasks of the daemon. Each runs in a thread of its own, because a command of Slurm may
take a minute. A failure is reported in the log and in ``status``; the daemon continues.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import SlurmError, bounded
from slurm_elastic.base.processes.background import submit
from slurm_elastic.base.processes.periodic import PeriodicTask
from slurm_elastic.controller.context import Site
from slurm_elastic.state.ledger import Health, LedgerState
from slurm_elastic.state.store.trouble import passes

log = logging.getLogger(__name__)
_FAILED = "%s: a round failed; the next one starts over"
TASK = "task "
"""Begins the name of a task among those whose health ``status`` shows."""


class SiteTask(PeriodicTask):
    """A periodic task in a worker. ``task_name`` is its name in the log.

    ``look`` is called every ``period`` seconds. If it takes long, the pause is longer: at least
    ``pace`` times the duration of the last look, because reading all nodes and jobs is work for
    slurmctld on a large cluster. ``again``: seconds until the next look after a failure.
    ``hurried(clock)``: whether an event makes the next look due before ``period``, but not before
    ``pace`` allows it. ``idle(state)``: whether the ledger has nothing to look at; then the worker
    is not woken. ``only_looks``: it starts and ends no machine and changes nothing in Slurm, so it
    continues while another head works for this cluster (``other_heads``).
    """

    def __init__(
        self, site: Site, worker: Executor, look: Callable[[], None], task_name: str, *,
        period: float, pace: float = 0.0, again: float | None = None,
        idle: Callable[[LedgerState], bool] | None = None,
        hurried: Callable[[float], bool] | None = None,
        only_looks: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            task_name, lambda: run_guarded(site, self._look, task_name), period,
            pace=pace, retry=None if again is None else Backoff(again, again), clock=site.monotonic,
        )  # fmt: skip
        self.only_looks = only_looks
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
        """Start a look if it is due and, according to the ledger's ``state``, needed."""
        if not self.is_due:
            return
        if state is not None and self._idle is not None and self._idle(state):
            self.skip()
        else:
            self._running = submit(self._worker, self.name, self.once)


def start_due_tasks(tasks: Iterable[SiteTask], read: Callable[[], LedgerState]) -> None:
    """Start the due looks. ``read`` returns the ledger's state."""
    # Read the ledger only if a look is due: the main loop calls this every second.
    due_tasks = [task for task in tasks if task.is_due]
    state = read() if due_tasks else None
    for task in due_tasks:
        task.tick(state)


def name_repair(cloud: str) -> str:
    """The name of a cloud's repair in the log and in ``status``."""
    # One name per cloud, so that a good repair of one cloud does not hide a failure of another.
    return f"repair of {cloud}"


def run_guarded(
    site: Site, look: Callable[[], None], task_name: str, *, shows_recovery: bool = True
) -> bool:
    """Do a look and return whether it succeeded. Errors are logged, because the next look may
    succeed: slurmctld may answer again, and a full disk may have room. ``shows_recovery``: whether
    a success ends the fault of ``task_name`` in ``status``.
    """
    try:
        look()
    except SlurmError as error:
        report_slurm_failure(site, error)
    except sqlite3.Error as error:
        log.warning("%s: the ledger cannot be used: %s", task_name, error)
    except OSError as error:
        if passes(error):
            log.warning("%s: the state directory cannot be used: %s", task_name, error)
        else:
            log.exception(_FAILED, task_name)
            _report_fault(site, task_name, error)
    # A bug in one look must not end the task: the next look may find another state.
    except Exception as error:
        log.exception(_FAILED, task_name)
        _report_fault(site, task_name, error)
    else:
        if shows_recovery:
            _end_faults(site, lambda name: name == f"{TASK}{task_name}")
        return True
    return False


def end_earlier_faults(site: Site) -> None:
    """End in ``status`` the faults of the time before this start: their tasks may never run again,
    because a feature or a cloud has left the configuration. A task that still fails is reported
    again.
    """
    _end_faults(site, lambda name: name.startswith(TASK))


def _report_fault(site: Site, task_name: str, error: Exception) -> None:
    """Have ``status`` show an error that no code foresaw: a task that fails at each look may be the
    one that ends machines.
    """
    text = f"it fails, so its work is not done: {error!r}; see the log"
    with contextlib.suppress(sqlite3.Error, OSError):
        name = f"{TASK}{task_name}"
        site.ledger.health.report(
            Health(name=name, checked=site.now(), error=bounded(text), code="fault")
        )


def _end_faults(site: Site, is_over: Callable[[str], bool]) -> None:
    with contextlib.suppress(sqlite3.Error, OSError):
        rows = [row for row in site.ledger.health.all() if row.error and is_over(row.name)]
        site.ledger.health.report(*(Health(name=row.name, checked=site.now()) for row in rows))


def report_slurm_failure(site: Site, error: SlurmError) -> None:
    """Report in the log and in ``status`` that Slurm fails."""
    log.warning("slurm cannot be read or changed: %s", error)
    health = Health(name="slurm", checked=site.now(), error=str(error), code="slurm")
    # If the ledger fails, too, the heartbeat reports it.
    with contextlib.suppress(sqlite3.Error):
        site.ledger.health.report(health)
