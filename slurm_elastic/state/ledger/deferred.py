"""The ledger's deferred jobs: their settings from before they were kept away from public clouds."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from slurm_elastic.model.memory import Deferral
from slurm_elastic.state.store.store import Store
from slurm_elastic.state.store.view import OF_LIST, to_json


class DeferredJobs:
    """The rows of the jobs that are kept away from public clouds. Each method is one
    transaction.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def defer(self, rows: Sequence[Deferral]) -> None:
        """Record the settings of these jobs, before they are kept away from public clouds."""
        values = [(r.job, r.account, to_json(r.partitions), r.begin, r.until) for r in rows]
        with self._store.transaction(None):
            columns = "job, account, partitions, begin, until"
            self._store.insert("insert or replace into set_aside", columns, values)

    def jobs(self) -> tuple[Deferral, ...]:
        """All deferred jobs, by number."""
        return tuple(
            _deferral_from(r) for r in self._store.select("select * from set_aside order by job")
        )

    def forget(self, jobs: Sequence[int]) -> None:
        """Delete the rows of jobs that left the queue or have their own settings again."""
        self._store.execute(None, f"delete from set_aside where job in {OF_LIST}", to_json(jobs))


def _deferral_from(row: sqlite3.Row) -> Deferral:
    """A row as a value."""
    partitions = msgspec.json.decode(row["partitions"], type=tuple[str, ...])
    names = ("job", "account", "begin", "until")
    return Deferral(partitions=partitions, **{name: row[name] for name in names})
