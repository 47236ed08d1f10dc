"""The ledger's rows of ``--no-requeue`` jobs that may be requeued once."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slurm_elastic.state.store.store import Store, Table

TABLES: Mapping[str, Table] = {
    "lifted": ("select job, restarts, at from lifted_requeues order by job", tuple)
}


class LiftedRequeues:
    """The rows of jobs whose ``--no-requeue`` is lifted. Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def lift(self, job: int, restarts: int, now: float) -> None:
        """Record a ``--no-requeue`` job and its number of restarts, before Slurm gets the order to
        allow its requeue.
        """
        # "or ignore": the first row has the time from which the job's own setting is missing.
        sql = "insert or ignore into lifted_requeues (job, restarts, at) values (?, ?, ?)"
        self._store.execute("lifted", sql, job, restarts, now)

    def lifted(self, until: float = math.inf) -> tuple[tuple[int, int], ...]:
        """Jobs that do not have their own setting back yet, each with its number of restarts at
        ``lift``; only jobs that were lifted up to ``until`` (Unix time).
        """
        (rows,) = self._store.tables("lifted")
        return tuple((job, restarts) for job, restarts, lifted_at in rows if lifted_at <= until)

    def forget(self, job: int) -> None:
        """Delete the row of a job that left the queue or has its own setting again."""
        self._store.execute("lifted", "delete from lifted_requeues where job = ?", job)
