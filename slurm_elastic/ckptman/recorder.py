"""Records decisions with their reasons: each is logged at once, kept in the ledger for ``explain``,
and counted. Saves and moves are counted with their results.
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
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.directive import scope_of_cloud
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep
from slurm_elastic.state.ledger import Decision, Health, Ledger
from slurm_elastic.state.ledger.histograms import Counts, Labels, sums

log = logging.getLogger("slurm_elastic.ckptman")

WRITE_COUNTERS_EVERY_S = 60.0
"""Seconds between two writes of the counters."""
MAX_WAITING = 20_000
"""The limit of decisions waiting for a ledger that cannot be written, and of values waiting to be
counted. Beyond it the oldest are dropped.
"""


class BufferedRecorder:
    """Records decisions in the ledger, which belongs to slurm-elasticd. Thread-safe.

    While the ledger cannot be written, decisions wait in memory, and jobs are saved and moved all
    the same.
    """

    guarded_by: ClassVar[GuardedBy] = {
        "_lock": Guarded("_decisions", "_counts", "_observed", "_counted_at"),
    }

    def __init__(self, ledger: Ledger, state: CheckpointState, now: Callable[[], float]) -> None:
        self._ledger, self._state, self._now = ledger, state, now
        self._lock = threading.Lock()
        self._decisions: list[Decision] = []
        self._counts: defaultdict[tuple[str, Labels], float] = defaultdict(float)
        self._observed: list[tuple[str, float, Labels]] = []
        self._counted_at = float("-inf")
        self._healths = ReportOnce[str]()
        self._ledger_reports = ReportOnce[str]()

    def record(
        self,
        correlation: str,
        kind: str,
        subjects: Iterable[str],
        cause: AnyCause,
        *,
        level: int = logging.INFO,
        detail: dict[str, object] | None = None,
    ) -> None:
        """Record a decision or finding. Decisions with one ``correlation`` belong together.

        ``detail``: data for programs.
        """
        subject_list = tuple(subjects)
        shown_subjects = ",".join(subject_list[:10]) + (
            f",+{len(subject_list) - 10}" if len(subject_list) > 10 else ""
        )
        log.log(level, "%s subjects=%s id=%s reason=%s", kind, shown_subjects, correlation, cause)
        decision = Decision(
            at=self._now(),
            correlation=correlation,
            kind=kind,
            subjects=subject_list,
            cause=cause,
            detail=detail,
        )
        with self._lock:
            self._decisions.append(decision)
            del self._decisions[:-MAX_WAITING]
            self._counts["ckpt_decisions_total", (("kind", kind),)] += 1

    def record_run(
        self, run: JobRun, kind: str, cause: AnyCause, *,
        nodes: Sequence[str] = (), level: int = logging.INFO,
        detail: dict[str, object] | None = None,
    ) -> None:  # fmt: skip
        """Record one step in the life of a job's run. Each run has its own correlation id."""
        key = f"ckpt-{run.label}-{run.attempt}"
        subjects = (f"job:{run.job}", *nodes)
        self.record(key, kind, subjects, cause, level=level, detail=detail)

    def count(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name, tuple(labels.items())] += value

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add one value to a histogram."""
        with self._lock:
            self._observed.append((name, value, tuple(labels.items())))
            del self._observed[:-MAX_WAITING]

    def count_save(self, image: Image) -> None:
        """Count a complete checkpoint and its duration."""
        self.count("ckpt_saves_total", method=image.method, outcome="saved")
        self.observe("checkpoint_seconds", image.seconds, method=image.method)

    def count_move(self, move: Migration) -> None:
        """Count a finished move. If its job runs again, also count the move's duration and the work
        it lost.
        """
        self.count("ckpt_migrations_total", outcome=str(move.step), method=move.method)
        if move.step is MigrationStep.BACK:
            cause = str(move.cause)
            duration_s = max(
                move.reached.get(str(MigrationStep.BACK), move.began) - move.began, 0.0
            )
            self.observe("migration_seconds", duration_s, cause=cause)
            self.count("lost_node_seconds_total", lost_node_seconds(move), cause=cause)

    def report_failure(self, name: str, error: Exception) -> None:
        """Report that reading a source raised ``error``. The code names Slurm or the cloud, so that
        other findings with the same cause can refer to it.
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
        """Report how a source answered; only changes are logged and written to the ledger."""
        if not self._healths.is_news(name, error):
            return
        if error:
            log.warning("%s fails: %s", name, error)
        try:
            self._ledger.health.report(
                Health(name=name, checked=self._now(), error=error, code=code if error else None)
            )
        except sqlite3.Error as ledger_error:
            self._report_ledger(ledger_error)
            # The ledger does not have this report yet, so the next answer must count as a change
            # again.
            self._healths.clear(name)

    def flush(self, *, last: bool = False) -> None:
        """Write the decisions to the ledger. Once a minute, and with ``last`` in any case, write
        the counters.
        """
        now, counts = self._now(), Counts(float)
        with self._lock:
            decisions, self._decisions = self._decisions, []
            # A negative age means the clock was set back. Without this check the next write would
            # be far in the future.
            if last or not 0 <= now - self._counted_at < WRITE_COUNTERS_EVERY_S:
                self._counted_at = now
                counts = sums(self._counts, self._observed)
                self._counts, self._observed = defaultdict(float), []
        try:
            # Without the lock: a write may wait for slurm-elasticd's, and the threads that save
            # jobs must not wait with it.
            if decisions:
                self._ledger.decisions.record(*decisions)
            self._ledger_reports.clear("ledger")
        except sqlite3.Error as error:
            self._report_ledger(error)
            with self._lock:
                # Keep the order: these are older than the decisions recorded during the failed
                # write.
                self._decisions[:0] = decisions
        # Counters are in our own state, so they are written while the ledger cannot be.
        if counts:
            self._state.count(counts)

    def _report_ledger(self, error: sqlite3.Error) -> None:
        if self._ledger_reports.is_news("ledger", str(error)):
            log.warning("the ledger cannot be written, decisions wait: %s", error)


def lost_node_seconds(move: Migration) -> float:
    """Node-seconds of work that the next run repeats, over all nodes of the run."""
    return lost_seconds(move) * max(len(move.run.nodes), 1)


def lost_seconds(move: Migration) -> float:
    """Seconds of work that the next run repeats: from the image that it continues from (or the
    start of the run) until the run was suspended, stopped for a save, or requeued.
    """
    run, image = move.run, move.image
    stops = [
        move.reached[str(step)]
        for step in (MigrationStep.SAVED, MigrationStep.REQUEUED)
        if str(step) in move.reached
    ]
    since_at = image.taken if image is not None and image.attempt == run.attempt else run.started
    end_at = min(stops, default=move.changed)
    return max((min(end_at, move.suspended) if move.suspended else end_at) - since_at, 0.0)
