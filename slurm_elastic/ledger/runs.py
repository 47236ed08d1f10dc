"""The ledger's rows of who used the machines: runs of jobs, and nodes that took none.

Part of ``ledger.Ledger``, which opens the file and describes its tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import astuple

from slurm_elastic.ledger.rows import RUN_COLUMNS, run_from, run_row
from slurm_elastic.model_ledger import Drained, Run
from slurm_elastic.store.store import Store

_PUT = f"insert or replace into runs ({RUN_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)"


class Runs(Store):
    """All methods are one transaction each."""

    def write_runs(self, runs: Sequence[Run], drains: Sequence[Drained] = ()) -> None:
        """New ones, and what is known better of those that are there."""
        if not runs and not drains:
            return
        with self._transaction(None) as db:
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
        return tuple(run_from(row) for row in self._select(sql))

    def open_drains(self) -> tuple[Drained, ...]:
        """The spans that are not over, by node."""
        sql = "select node, begin, end from drains where end is null order by node"
        return tuple(Drained(**dict(row)) for row in self._select(sql))

    def drains(self, since: float, until: float) -> tuple[Drained, ...]:
        """The spans without jobs of which some part is in that span of time, by node and begin."""
        sql = (
            "select node, begin, end from drains where (end is null or end > ?) and begin < ? "
            "order by node, begin"
        )
        return tuple(Drained(**dict(row)) for row in self._select(sql, since, until))
