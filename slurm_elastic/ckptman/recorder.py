"""Decisions and their reasons: logged at once, kept in the ledger for ``explain``, and counted; so
are saves and moves of jobs, and what these came to.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from slurm_elastic.base.errors import ProviderError, SlurmElasticError, SlurmError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.model.causes import as_cause
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.directive import scope_of_cloud
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration, Step
from slurm_elastic.state.ledger import Decision, Health, Ledger
from slurm_elastic.state.ledger.histograms import Counts, Labels, sums

log = logging.getLogger("slurm_elastic.ckptman")

WRITE_COUNTERS_EVERY_S = 60.0
"""Seconds between two times that counters are written."""
MAX_WAITING = 20_000
"""Decisions that wait for a ledger that cannot be written, and values that wait to be counted; then
the oldest are dropped.
"""


class DecisionRecorder:
    """Safe for several threads. The ledger is the other service's: while it cannot be written,
    decisions wait in memory and jobs are saved all the same.
    """

    guarded_by: ClassVar[GuardedBy] = {
        "_lock": Guarded("_decisions", "_counts", "_observed", "_counted"),
    }

    def __init__(self, ledger: Ledger, state: CheckpointState, now: Callable[[], float]) -> None:
        self._ledger, self._state, self._now = ledger, state, now
        self._lock = threading.Lock()
        self._decisions: list[Decision] = []
        self._counts: defaultdict[tuple[str, Labels], float] = defaultdict(float)
        self._observed: list[tuple[str, float, Labels]] = []
        self._counted = float("-inf")
        self._healths = ReportOnce[str]()
        self._ledger_reports = ReportOnce[str]()

    def record(
        self,
        correlation: str,
        kind: str,
        subjects: Iterable[str],
        reason: str,
        *,
        level: int = logging.INFO,
    ) -> None:
        """One decision or finding."""
        named = tuple(subjects)
        shown = ",".join(named[:10]) + (f",+{len(named) - 10}" if len(named) > 10 else "")
        log.log(level, "%s subjects=%s id=%s reason=%s", kind, shown, correlation, reason)
        decision = Decision(
            at=self._now(),
            correlation=correlation,
            kind=kind,
            subjects=named,
            cause=as_cause(reason),
        )
        with self._lock:
            self._decisions.append(decision)
            del self._decisions[:-MAX_WAITING]
            self._counts["ckpt_decisions_total", (("kind", kind),)] += 1

    def record_run(
        self, run: JobRun, kind: str, reason: str, *,
        nodes: Sequence[str] = (), level: int = logging.INFO,
    ) -> None:  # fmt: skip
        """One step in the life of a job's run, which has a correlation id of its own."""
        key = f"ckpt-{run.label}-{run.attempt}"
        self.record(key, kind, (f"job:{run.job}", *nodes), reason, level=level)

    def count(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name, tuple(labels.items())] += value

    def observe(self, name: str, value: float, **labels: str) -> None:
        """One value more of a histogram."""
        with self._lock:
            self._observed.append((name, value, tuple(labels.items())))
            del self._observed[:-MAX_WAITING]

    def count_save(self, image: Image) -> None:
        """A checkpoint is complete."""
        self.count("ckpt_saves_total", method=image.method, outcome="saved")
        self.observe("checkpoint_seconds", image.seconds, method=image.method)

    def count_move(self, move: Migration) -> None:
        """A move is over; one whose job runs again also has its duration, and what it lost."""
        self.count("ckpt_migrations_total", outcome=str(move.step), method=move.method)
        if move.step is Step.BACK:
            cause = str(move.cause)
            took = max(move.reached.get(str(Step.BACK), move.began) - move.began, 0.0)
            self.observe("migration_seconds", took, cause=cause)
            self.count("lost_node_seconds_total", lost_node_seconds(move), cause=cause)

    def report_failure(self, name: str, error: Exception) -> None:
        """A source raised this. The code names Slurm or the cloud that is at fault, because other
        sources fail for the same cause.
        """
        if not isinstance(error, SlurmElasticError):
            self.report_health(name, f"{type(error).__name__}: {error}")
        elif isinstance(error, ProviderError):
            self.report_health(name, str(error), scope_of_cloud(error.cloud))
        else:
            self.report_health(
                name, str(error), "slurm" if isinstance(error, SlurmError) else "ckpt"
            )

    def report_health(self, name: str, error: str | None, code: str = "ckpt") -> None:
        """How a source answered; told once for each change."""
        if not self._healths.is_news(name, error):
            return
        if error:
            log.warning("%s fails: %s", name, error)
        try:
            self._ledger.health.report(
                Health(name=name, checked=self._now(), error=error, code=code if error else None)
            )
        except sqlite3.Error as trouble:
            self._report_ledger(trouble)
            # Not told to the ledger yet: the next answer is to be news once more.
            self._healths.over(name)

    def flush(self, *, last: bool = False) -> None:
        """Write down what was noted since; once a minute, and at the ``last`` time, what was
        counted.
        """
        now, counts = self._now(), Counts(float)
        with self._lock:
            decisions, self._decisions = self._decisions, []
            # Below 0 the clock was set back, and the next time would be far away.
            if last or not 0 <= now - self._counted < WRITE_COUNTERS_EVERY_S:
                self._counted = now
                counts = sums(self._counts, self._observed)
                self._counts, self._observed = defaultdict(float), []
        try:
            if decisions:
                self._ledger.decisions.record(*decisions)
            self._ledger_reports.over("ledger")
        except sqlite3.Error as error:
            self._report_ledger(error)
            with self._lock:
                # Before those that were noted meanwhile.
                self._decisions[:0] = decisions
        if counts:
            self._state.count(counts)

    def _report_ledger(self, error: sqlite3.Error) -> None:
        if self._ledger_reports.is_news("ledger", str(error)):
            log.warning("the ledger cannot be written, decisions wait: %s", error)


def lost_node_seconds(move: Migration) -> float:
    """The work of all nodes of the run that the next one does again."""
    return lost_seconds(move) * max(len(move.run.nodes), 1)


def lost_seconds(move: Migration) -> float:
    """The work of the run that the next one does again: from what that goes on from, an image of
    the run or its start, until it was suspended, stopped for a save or put back into the queue.
    """
    run, image = move.run, move.image
    stops = [move.reached[str(s)] for s in (Step.SAVED, Step.REQUEUED) if str(s) in move.reached]
    since = image.taken if image is not None and image.attempt == run.attempt else run.started
    end = min(stops, default=move.changed)
    return max((min(end, move.suspended) if move.suspended else end) - since, 0.0)
