"""The ledger's rows of ``--no-requeue`` jobs that may be requeued once."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slurm_elastic.state.store.store import Store, Table

TABLES: Mapping[str, Table] = {
    "lifted": ("select job, restarts, at from lifted_requeues order by job", tuple)
}


class Requeues:
    """Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def lift(self, job: int, restarts: int, now: float) -> None:
        """Before a ``--no-requeue`` job (restarted so often) is given leave to be requeued."""
        sql = "insert or ignore into lifted_requeues (job, restarts, at) values (?, ?, ?)"
        self._store.execute("lifted", sql, job, restarts, now)

    def lifted(self, until: float = math.inf) -> tuple[tuple[int, int], ...]:
        """Jobs whose own setting is not put back yet, each with its restarts at that time; those
        that were lifted ``until`` then (Unix time).
        """
        (rows,) = self._store.tables("lifted")
        return tuple((job, restarts) for job, restarts, at in rows if at <= until)

    def put_back(self, job: int) -> None:
        """The job has its own setting again, or is gone."""
        self._store.execute("lifted", "delete from lifted_requeues where job = ?", job)
