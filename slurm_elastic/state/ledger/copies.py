"""The ledger's rows of copied files: which machine has the files of which run of a job."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import msgspec

from slurm_elastic.model.copying import CopyState, JobCopy
from slurm_elastic.state.store.store import Store, Table
from slurm_elastic.state.store.view import OF_LIST, to_json

_COLUMNS = "job, restarts, node, machine, uid, directory, outputs, state, since, reason"


def _copy_from(row: sqlite3.Row) -> JobCopy:
    values = dict(row)
    outputs = msgspec.json.decode(values.pop("outputs"), type=dict[str, int])
    return JobCopy(**values | {"outputs": outputs, "state": CopyState(values["state"])})


_OPEN = ", ".join(f"'{state}'" for state in CopyState if not state.is_over)
_SELECT = f"select {_COLUMNS} from copies where"
_ORDER = "order by job, restarts, node"

TABLES: Mapping[str, Table] = {"copies": (f"{_SELECT} state in ({_OPEN}) {_ORDER}", _copy_from)}


class CopyRows:
    """The rows about copies of jobs' files. Each method is one transaction.

    Each step of each copy reads rows while it has the ledger's lock, and there may be thousands of
    jobs a day, whose rows are kept for a week. So nothing reads the rows of all jobs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def open(self) -> tuple[JobCopy, ...]:
        """The copies that are not over, by job, run and node."""
        return self._store.tables("copies")[0]

    def of(self, job: int) -> tuple[JobCopy, ...]:
        """The copies of a job, by run and node."""
        return self._where("job = ?", job)

    def unsent(self) -> tuple[JobCopy, ...]:
        """The copies that could not be sent, and whose jobs are not held yet."""
        return self._where("state = ?", str(CopyState.UNSENT))

    def owing(self) -> tuple[JobCopy, ...]:
        """Return the copies to bring back. Their machines must not end before that."""
        return tuple(copy for copy in self.open() if copy.state is CopyState.OWED)

    def is_empty(self) -> bool:
        """Whether there is no copy, not even one that is over."""
        return not self._store.select("select 1 from copies limit 1")

    def _where(self, condition: str, value: object) -> tuple[JobCopy, ...]:
        rows = self._store.select(f"{_SELECT} {condition} {_ORDER}", value)
        return tuple(map(_copy_from, rows))

    def put(self, copy: JobCopy) -> None:
        """Write a new copy, or the present state of one."""
        places = ", ".join("?" * len(_COLUMNS.split(", ")))
        self._store.execute(
            "copies", f"insert or replace into copies ({_COLUMNS}) values ({places})",
            copy.job, copy.restarts, copy.node, copy.machine, copy.uid, copy.directory,
            to_json(copy.outputs), str(copy.state), copy.since, copy.reason,
        )  # fmt: skip

    def set_outputs(self, copy: JobCopy, outputs: Mapping[str, int]) -> None:
        """Change the outputs alone: another thread may change the state."""
        self._store.execute(
            "copies",
            "update copies set outputs = ? where job = ? and restarts = ? and node = ?"
            " and machine = ?",
            to_json(outputs), copy.job, copy.restarts, copy.node, copy.machine,
        )  # fmt: skip

    def set_state(self, copy: JobCopy) -> None:
        """Change the state, its time and its reason: another thread may change the outputs."""
        self._store.execute(
            "copies",
            "update copies set state = ?, since = ?, reason = ? where job = ? and restarts = ?"
            " and node = ? and machine = ?",
            str(copy.state), copy.since, copy.reason, copy.job, copy.restarts, copy.node,
            copy.machine,
        )  # fmt: skip

    def forget(self, now: float, kept_s: float) -> None:
        """Delete the copies that ended so long ago."""
        ((last,),) = self._store.select("select max(since) from copies")
        if last is None:
            return
        # Not by the clock alone: a clock in the future would delete all copies.
        before = min(now, last) - kept_s
        over = [state for state in CopyState if state.is_over]
        sql = f"delete from copies where since < ? and state in {OF_LIST}"
        self._store.execute("copies", sql, before, to_json(over))
