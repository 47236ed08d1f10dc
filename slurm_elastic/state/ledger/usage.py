"""The ledger's rows of job runs on machines, and the counters over all time."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec.structs import astuple

from slurm_elastic.model.memory import ChargedRun, Drained
from slurm_elastic.state.store.counters import COUNT
from slurm_elastic.state.store.store import Store, Table
from slurm_elastic.state.store.view import to_json

RUN_COLUMNS = "job, begin, end, label, user, uid, account, partition, shares"


def run_from(row: sqlite3.Row) -> ChargedRun:
    """A row of RUN_COLUMNS as a value."""
    shares = msgspec.json.decode(row["shares"], type=tuple[tuple[str, int], ...])
    names = ("job", "begin", "end", "label", "user", "uid", "account", "partition")
    return ChargedRun(shares=shares, **{name: row[name] for name in names})


def drained_from(row: sqlite3.Row) -> Drained:
    return Drained(**dict(row))


TABLES: Mapping[str, Table] = {
    "drains": (
        "select node, begin, end from drains where end is null order by node",
        drained_from,
    ),
    "runs": (
        f"select {RUN_COLUMNS} from runs where end is null order by begin, job",
        run_from,
    ),
}


class UsageRows:
    """The rows of runs and drains, and the counters. Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, runs: Sequence[ChargedRun], drains: Sequence[Drained] = ()) -> None:
        """Insert runs and drains; each replaces an earlier row of its key."""
        if not runs and not drains:
            return
        with self._store.transaction("runs", "drains"):
            statement = "insert or replace into"
            self._store.insert(
                f"{statement} runs",
                RUN_COLUMNS,
                [(*astuple(run)[:-1], to_json(run.shares)) for run in runs],
            )
            self._store.insert(
                f"{statement} drains", "node, begin, end", [astuple(drain) for drain in drains]
            )

    def runs(self, since: float, until: float) -> tuple[ChargedRun, ...]:
        """The runs that overlap that span of time (Unix seconds), by begin and job."""
        sql = (
            f"select {RUN_COLUMNS} from runs where (end is null or end > ?) and begin < ? "
            "order by begin, job"
        )
        return tuple(run_from(row) for row in self._store.select(sql, since, until))

    def runs_of(self, job: int) -> tuple[ChargedRun, ...]:
        """All known runs of one job, by begin."""
        sql = f"select {RUN_COLUMNS} from runs where job = ? order by begin"
        return tuple(run_from(row) for row in self._store.select(sql, job))

    def job_called(self, label: str) -> int | None:
        """The number of the newest job with this label, such as ``17_2``; None without a run."""
        sql = "select job from runs where label = ? order by begin desc limit 1"
        rows = self._store.select(sql, label)
        return int(rows[0]["job"]) if rows else None

    def labels(self, jobs: Collection[int]) -> dict[int, str]:
        """The labels of jobs called something else than their number."""
        sql = (
            "select distinct job, label from runs where job in (select value from json_each(?)) "
            "and label not in ('', cast(job as text))"
        )
        return {row["job"]: row["label"] for row in self._store.select(sql, to_json(sorted(jobs)))}

    def open_runs(self) -> tuple[ChargedRun, ...]:
        """The runs without an end, by begin and job."""
        return self._store.tables("runs")[0]

    def drains(self, since: float, until: float) -> tuple[Drained, ...]:
        """The drains that overlap that span of time (Unix seconds), by node and begin."""
        sql = (
            "select node, begin, end from drains where (end is null or end > ?) and begin < ? "
            "order by node, begin"
        )
        return tuple(drained_from(row) for row in self._store.select(sql, since, until))

    def count(self, counts: Mapping[str, float]) -> None:
        """Add to counters; their names are ``name{label="value"}`` as in Prometheus."""
        self._store.execute(None, COUNT, to_json(counts))

    def counters(self) -> Mapping[str, float]:
        """All counters by name."""
        rows = self._store.select("select name, value from counters order by name")
        return {row["name"]: row["value"] for row in rows}

    def settle(self, until: float, counts: Mapping[str, float]) -> None:
        """Add ``counts``, and record that the counters are complete up to ``until``."""
        # Both in one transaction: after a crash between them the counts would be added twice.
        with self._store.transaction(None):
            self.count(counts)
            self._store.change("insert or replace into settled (what, at) values ('all', ?)", until)

    def settled(self) -> float | None:
        """The time up to which the counters include machines and jobs; None if they never did."""
        rows = self._store.select("select at from settled where what = 'all'")
        return float(rows[0]["at"]) if rows else None
