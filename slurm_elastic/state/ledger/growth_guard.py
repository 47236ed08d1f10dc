"""The ledger's rows of the guard against machines that no job uses (``policies.growth``)."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from slurm_elastic.model.memory import Purchase, UnhelpedJob
from slurm_elastic.state.store.store import Store, Table
from slurm_elastic.state.store.view import OF_LIST, to_json

_PURCHASE_COLUMNS = "first_node, at, open, came_up, unused, jobs"
_JOB_COLUMNS = "job, asks, since, nodes, reason, strikes"


def _purchase_from(row: sqlite3.Row) -> Purchase:
    nodes = {
        name: frozenset(msgspec.json.decode(row[name], type=tuple[str, ...]))
        for name in ("open", "unused")
    }
    came_up = msgspec.json.decode(row["came_up"], type=dict[str, float])
    jobs = msgspec.json.decode(row["jobs"], type=dict[int, str])
    return Purchase(first_node=row["first_node"], at=row["at"], came_up=came_up, jobs=jobs, **nodes)


def _job_from(row: sqlite3.Row) -> UnhelpedJob:
    return UnhelpedJob(**{**dict(row), "nodes": tuple(msgspec.json.decode(row["nodes"]))})


TABLES: Mapping[str, Table] = {
    "growth_purchases": (
        f"select {_PURCHASE_COLUMNS} from growth_purchases order by at, first_node",
        _purchase_from,
    ),
    "unhelped_jobs": (f"select {_JOB_COLUMNS} from unhelped_jobs order by job", _job_from),
}


class GrowthGuard:
    """The rows of purchases and of jobs that growth does not count. Each method is one
    transaction.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def purchases(self) -> tuple[Purchase, ...]:
        """The purchases not judged yet, the oldest first."""
        return self._store.tables("growth_purchases")[0]

    def rows(self) -> tuple[UnhelpedJob, ...]:
        """All jobs that did not use the machines bought for them, by number, also after their
        pause.
        """
        return self._store.tables("unhelped_jobs")[0]

    def jobs(self, now: float) -> tuple[UnhelpedJob, ...]:
        """The jobs that growth policies do not count at ``now``, by number."""
        return tuple(row for row in self.rows() if row.is_paused(now))

    def watch(self, purchases: Sequence[Purchase]) -> None:
        """Record purchases; each replaces its earlier row."""
        rows = [
            (
                row.first_node, row.at, to_json(sorted(row.open)), to_json(dict(row.came_up)),
                to_json(sorted(row.unused)), to_json({str(k): v for k, v in row.jobs.items()}),
            )
            for row in purchases
        ]  # fmt: skip
        with self._store.transaction("growth_purchases"):
            how = "insert or replace into growth_purchases"
            self._store.insert(how, _PURCHASE_COLUMNS, rows)

    def judge(self, purchase: Purchase, jobs: Sequence[UnhelpedJob]) -> None:
        """Delete the purchase, and record the jobs that it did not help."""
        rows = [
            (row.job, row.asks, row.since, to_json(row.nodes), row.reason, row.strikes)
            for row in jobs
        ]
        # In one transaction: a purchase judged twice would count a strike twice.
        with self._store.transaction("growth_purchases", "unhelped_jobs"):
            sql = "delete from growth_purchases where first_node = ? and at = ?"
            self._store.change(sql, purchase.first_node, purchase.at)
            self._store.insert("insert or replace into unhelped_jobs", _JOB_COLUMNS, rows)

    def count_again(self, jobs: Sequence[int]) -> int:
        """Let growth policies count these jobs again; return how many they did not count."""
        with self._store.transaction("unhelped_jobs"):
            sql = f"delete from unhelped_jobs where job in {OF_LIST}"
            return len(self._store.change(sql, to_json(jobs)))
