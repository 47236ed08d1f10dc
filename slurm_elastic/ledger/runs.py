"""The ledger's rows of who used the machines: runs of jobs, and nodes that took none.

Part of ``ledger.Ledger``, which opens the file and describes its tables.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Mapping, Sequence

from msgspec.structs import astuple

from slurm_elastic.ledger.rows import RUN_COLUMNS, run_from, run_row
from slurm_elastic.model_ledger import Drained, Run
from slurm_elastic.store.store import Store

_PUT = f"insert or replace into runs ({RUN_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)"

_COUNT = (
    "insert into counters (name, value) values (?, ?) "
    "on conflict (name) do update set value = value + excluded.value"
)


@functools.lru_cache(4096)
def series(name: str, **labels: str) -> str:
    """The name of a counter with its labels: ``name{label="value"}``."""
    text = ",".join(f'{key}="{_quoted(labels[key])}"' for key in sorted(labels))
    return f"{name}{{{text}}}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Runs(Store):
    """All methods are one transaction each."""

    def write_runs(self, runs: Sequence[Run], drains: Sequence[Drained] = ()) -> None:
        """New ones, and what is known better of those that are there."""
        if not runs and not drains:
            return
        with self._transaction("runs", "drains") as db:
            db.executemany(_PUT, [run_row(run) for run in runs])
            db.executemany(
                "insert or replace into drains (node, begin, end) values (?, ?, ?)",
                [astuple(drain) for drain in drains],
            )

    def runs(self, since: float, until: float) -> tuple[Run, ...]:
        """The runs of which some part is in that span of time, by begin and job."""
        sql = (
            f"select {RUN_COLUMNS} from runs where (end is null or end > ?) and begin < ? "
            "order by begin, job"
        )
        return tuple(run_from(row) for row in self._select(sql, since, until))

    def open_runs(self) -> tuple[Run, ...]:
        """The runs that are not known to have ended, by begin and job."""
        sql = f"select {RUN_COLUMNS} from runs where end is null order by begin, job"
        return self._remembered("runs", sql, run_from)

    def count(self, counts: Mapping[str, float]) -> None:
        """Add to counters, ``name{label="value"}`` as Prometheus has them."""
        with self._transaction(None) as db:
            db.executemany(_COUNT, list(counts.items()))

    def counters(self) -> Mapping[str, float]:
        """All counters by name."""
        rows = self._select("select name, value from counters order by name")
        return {row["name"]: row["value"] for row in rows}

    def settle(self, until: float, counts: Mapping[str, float]) -> None:
        """The counters have all up to ``until`` with these."""
        with self._transaction(None) as db:
            self.count(counts)
            db.execute("delete from settled")
            db.execute("insert into settled (at) values (?)", (until,))

    def settled(self) -> float | None:
        """Up to when the counters have what machines and jobs came to; None: they never had."""
        rows = self._select("select at from settled")
        return float(rows[0]["at"]) if rows else None

    def newly_told(
        self, keys: Sequence[str], now: float, again: float, most: int, within: float
    ) -> list[str]:
        """Write down that people are told of these: those of ``keys`` that they were not told of in
        the last ``again`` seconds, as far as that makes ``most`` in ``within`` seconds.
        """
        with self._transaction(None) as db:
            db.execute("delete from told where at < ?", (now - max(again, within),))
            rows = dict(db.execute("select key, at from told"))
            room = most - sum(at > now - within for at in rows.values())
            new = [key for key in dict.fromkeys(keys) if rows.get(key, -again) <= now - again]
            new = new[: max(room, 0)]
            db.executemany(
                "insert or replace into told (key, at) values (?, ?)", [(key, now) for key in new]
            )
        return new

    def open_drains(self) -> tuple[Drained, ...]:
        """The spans that are not over, by node."""
        sql = "select node, begin, end from drains where end is null order by node"
        return self._remembered("drains", sql, _drained_from)

    def drains(self, since: float, until: float) -> tuple[Drained, ...]:
        """The spans without jobs of which some part is in that span of time, by node and begin."""
        sql = (
            "select node, begin, end from drains where (end is null or end > ?) and begin < ? "
            "order by node, begin"
        )
        return tuple(_drained_from(row) for row in self._select(sql, since, until))


def _drained_from(row: sqlite3.Row) -> Drained:
    return Drained(**dict(row))
