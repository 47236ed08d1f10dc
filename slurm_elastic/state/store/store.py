"""An open file of ours for many threads: reads, transactions, and writes that share a sync."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, cast

Table = tuple[str, Callable[[sqlite3.Row], Any]]
"""The statement that reads a table, and how a row of it becomes a value."""
Write = tuple[str, tuple[object, ...]]
"""A statement and its values."""


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Everything that is written inside is on the disk afterwards; after an error none of it is."""
    db.execute("begin immediate")
    try:
        yield db
    except BaseException:
        if db.in_transaction:  # sqlite ends it itself where the disk is full
            db.execute("rollback")
        raise
    db.execute("commit")


class Ticket:
    """Writes of one caller that go to the disk together with those of others; ``applied`` is called
    once they are there, with the store's lock held.
    """

    def __init__(self, writes: Sequence[Write], applied: Callable[[], None]) -> None:
        self.writes = writes
        self.applied = applied
        self.error: sqlite3.Error | None = None


class Store:
    """One thing at a time in this connection; sqlite3.Error passes through.

    TABLES are those that a loop asks for many times a pass: who calls ``refresh`` at the start of
    each pass has them from memory until a write here changes them.
    """

    TABLES: ClassVar[Mapping[str, Table]] = {}

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._lock = threading.RLock()
        self._memory: dict[str, object] = {}
        self._version: int | None = None
        self._depth = 0
        self._gather = threading.Lock()
        self._tickets: list[Ticket] = []

    def close(self) -> None:
        """Close the file; closing twice is no error."""
        with self._lock:
            self._db.close()

    def _use(self, db: sqlite3.Connection) -> None:
        """From now on this file, or this memory."""
        if db is not self._db:
            self._memory.clear()
            self._db = db

    def _forget(self) -> None:
        self._memory.clear()

    def refresh(self) -> None:
        """Take in what other processes have written since: the first step of a pass."""
        with self._lock:
            version = int(self._select("pragma data_version")[0][0])
            if version != self._version:
                self._memory.clear()
            self._version = version

    @contextmanager
    def together(self) -> Iterator[None]:
        """Several writes of this thread as one transaction: all of them, or none after a crash."""
        with self._transaction(None):
            yield

    @contextmanager
    def _transaction(self, *changes: str | None) -> Iterator[sqlite3.Connection]:
        """For what is read and then written; inside another one, a part of that. ``changes``: which
        of TABLES it changes, None where none.
        """
        with self._lock:
            self._depth += 1
            try:
                with transaction(self._db) if self._depth == 1 else nullcontext(self._db) as db:
                    yield db
            except BaseException:
                self._memory.clear()
                raise
            finally:
                self._depth -= 1
                for name in changes:
                    self._memory.pop(name or "", None)

    def _select(self, sql: str, *values: object) -> list[sqlite3.Row]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def _put(
        self, changes: str | None, sql: str, *values: object, rows: tuple[object, ...] | None = None
    ) -> None:
        """One statement that writes, a transaction by itself or a part of the one that is open.
        ``rows`` are those of the table that it ``changes`` afterwards, for who knows them. Inside
        a transaction nothing is remembered, as that may not come to its end.
        """
        with self._lock:
            self._select(sql, *values)
            self._memory.pop(changes or "", None)
            if changes and rows is not None and self._version is not None and not self._depth:
                self._memory[changes] = rows

    def _tables(self, *names: str) -> list[tuple[Any, ...]]:
        """The rows of these TABLES, as of the last write here or ``refresh``; read anew each time
        for who never refreshes.
        """
        found = []
        with self._lock:
            for name in names:
                rows = self._memory.get(name)
                if rows is None:
                    sql, read = self.TABLES[name]
                    rows = tuple(read(row) for row in self._select(sql))
                    if self._version is not None and not self._depth:
                        self._memory[name] = rows
                found.append(cast("tuple[Any, ...]", rows))
        return found

    def _write(self, writes: Sequence[Write], applied: Callable[[], None] | None = None) -> None:
        """On the disk on return. Whoever gets the file writes for all that wait by then.

        ``applied`` makes the same change in what is remembered; without it that is read anew.
        """
        if not writes:
            return
        mine = Ticket(writes, applied or self._forget)
        with self._gather:
            self._tickets.append(mine)
        with self._lock:
            with self._gather:
                batch, self._tickets = self._tickets, []
            self._commit(batch)
        if mine.error is not None:
            raise mine.error

    def _commit(self, tickets: Sequence[Ticket]) -> None:
        writes = [write for ticket in tickets for write in ticket.writes]
        try:
            # One statement is a transaction by itself.
            with transaction(self._db) if len(writes) > 1 else nullcontext(self._db) as db:
                for sql, values in writes:
                    db.execute(sql, values)
        except sqlite3.Error as error:
            self._memory.clear()
            for ticket in tickets:
                ticket.error = error
        else:
            for ticket in tickets:
                ticket.applied()
