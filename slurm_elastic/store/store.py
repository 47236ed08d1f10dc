"""An open file of ours for many threads: reads, transactions, and writes that share a sync."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from slurm_elastic.store.transaction import transaction

Write = tuple[str, tuple[object, ...]]
"""A statement and its values."""


class Ticket:
    """Writes of one caller that go to the disk together with those of others."""

    def __init__(self, writes: Sequence[Write]) -> None:
        self.writes = writes
        self.done = False
        self.error: sqlite3.Error | None = None


class Store:
    """One thing at a time in this connection; sqlite3.Error passes through."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._lock = threading.RLock()
        self._gather = threading.Lock()
        self._tickets: list[Ticket] = []

    def close(self) -> None:
        """Close the file; closing twice is no error."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """For what is read and then written."""
        with self._lock, transaction(self._db) as db:
            yield db

    def _select(self, sql: str, *values: object) -> list[sqlite3.Row]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def _write(self, writes: Sequence[Write]) -> None:
        """On the disk on return. Whoever gets the file writes for all that wait by then."""
        if not writes:
            return
        mine = Ticket(writes)
        with self._gather:
            self._tickets.append(mine)
        with self._lock:
            if not mine.done:
                with self._gather:
                    batch, self._tickets = self._tickets, []
                self._commit(batch)
        if mine.error is not None:
            raise mine.error

    def _commit(self, batch: Iterable[Ticket]) -> None:
        tickets = list(batch)
        try:
            with transaction(self._db) as db:
                for ticket in tickets:
                    for sql, values in ticket.writes:
                        db.execute(sql, values)
        except sqlite3.Error as error:
            for ticket in tickets:
                ticket.error = error
        finally:
            for ticket in tickets:
                ticket.done = True
