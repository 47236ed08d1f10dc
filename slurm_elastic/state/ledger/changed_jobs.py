"""The ledger's record of jobs with changed partitions, begin time or hold, and their own values."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from slurm_elastic.model.changed_jobs import ChangedJob, JobValues, Wish
from slurm_elastic.model.job_key import JobKey
from slurm_elastic.state.store.store import Store
from slurm_elastic.state.store.view import OF_LIST, to_json

_COLUMNS = "job, identity, own, latest, before, answered, wishes, overruled"


class ChangedJobRows:
    """One row for each changed job. Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keep(self, rows: Sequence[ChangedJob]) -> None:
        """Write these rows, before the jobs are changed: after a crash in between, the jobs' own
        values exist only here.
        """
        values = [
            (
                row.key.number, to_json(row.key), to_json(row.own), to_json(row.latest),
                to_json(row.before), int(row.is_answered), to_json(row.wishes),
                to_json(row.overruled),
            )
            for row in rows
        ]  # fmt: skip
        with self._store.transaction(None):
            self._store.insert("insert or replace into changed_jobs", _COLUMNS, values)

    def all(self) -> tuple[ChangedJob, ...]:
        """All changed jobs, by number."""
        rows = self._store.select("select * from changed_jobs order by job")
        return tuple(_changed_job_from(row) for row in rows)

    def has_wish(self, kind: type[Struct]) -> bool:
        """Whether some job has such a wish, or has overruled an order. This is cheap, because
        idle loops ask it at each tick.
        """
        tag = kind.__struct_config__.tag
        wish = f'%"type":"{tag}"%'
        query = "select 1 from changed_jobs where wishes like ? or overruled <> '[]' limit 1"
        return bool(self._store.select(query, wish))

    def forget(self, jobs: Sequence[int]) -> None:
        """Delete the rows of jobs that left the queue or have their own values again."""
        self._store.execute(None, f"delete from changed_jobs where job in {OF_LIST}", to_json(jobs))


def _changed_job_from(row: sqlite3.Row) -> ChangedJob:
    """A row as a value."""
    decode = msgspec.json.decode
    return ChangedJob(
        key=decode(row["identity"], type=JobKey),
        own=decode(row["own"], type=JobValues),
        latest=decode(row["latest"], type=JobValues),
        before=decode(row["before"], type=JobValues | None),
        is_answered=bool(row["answered"]),
        wishes=decode(row["wishes"], type=tuple[Wish, ...]),
        overruled=decode(row["overruled"], type=tuple[int, ...]),
    )
