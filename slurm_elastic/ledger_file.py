"""The ledger's file, opened: one connection for all threads of a process."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_elastic.ledger_schema import open_reader, open_writer


class LedgerFile:
    """What every table is read and written by."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._lock = threading.RLock()
        self._db = open_reader(path) if read_only else open_writer(path)

    def close(self) -> None:
        """Close the file; closing twice is no error."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("begin immediate")
            try:
                yield self._db
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")

    def _select(self, sql: str, *values: object) -> list[sqlite3.Row]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()
