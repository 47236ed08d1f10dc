"""An open file of ours for many threads: reads, transactions, and writes that share a sync."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TypeVar, cast

STATE = "state"
"""The name under which a store may remember what it makes of its REMEMBERED tables."""
Write = tuple[str, tuple[object, ...]]
"""A statement and its values."""
Row = TypeVar("Row")


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
        self.done = False
        self.error: sqlite3.Error | None = None


class Store:
    """One thing at a time in this connection; sqlite3.Error passes through.

    ``_remembered`` are tables that a loop asks for many times a pass: who calls ``refresh`` at the
    start of each pass has them from memory until a write here changes them.
    """

    REMEMBERED: tuple[str, ...] = ()

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
        of REMEMBERED it changes, None where none, and all where nothing is said.
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
                for name in changes or self.REMEMBERED:
                    self._forget(name)

    def _select(self, sql: str, *values: object) -> list[sqlite3.Row]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def _put(self, changes: str | None, sql: str, *values: object) -> None:
        """One statement that writes, a transaction by itself or a part of the one that is open."""
        with self._lock:
            self._select(sql, *values)
            self._forget(changes)

    def _forget(self, name: str | None) -> None:
        """A table has changed; the caller has the lock."""
        if name is not None:
            self._memory.pop(name, None)
            self._memory.pop(STATE, None)

    def _remembered(
        self, name: str, sql: str, read: Callable[[sqlite3.Row], Row]
    ) -> tuple[Row, ...]:
        """The rows of ``sql``, one of REMEMBERED, as of the last write here or ``refresh``; read
        anew each time for who never refreshes.
        """
        with self._lock:
            if name in self._memory:
                return cast("tuple[Row, ...]", self._memory[name])
            rows = tuple(read(row) for row in self._select(sql))
            if self._version is not None and not self._depth:
                self._memory[name] = rows
            return rows

    def _keep(self, name: str, rows: object) -> None:
        """These are the rows now: for a write that knows what it came to, once it is on the disk.
        The caller has the lock. Inside a transaction nothing is remembered, as that may not come to
        its end.
        """
        if self._version is not None and not self._depth:
            self._memory[name] = rows

    def _write(self, writes: Sequence[Write], applied: Callable[[], None] | None = None) -> None:
        """On the disk on return. Whoever gets the file writes for all that wait by then.

        ``applied`` makes the same change in what is remembered; without it that is read anew.
        """
        if not writes:
            return
        mine = Ticket(writes, applied or self._memory.clear)
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
        finally:
            for ticket in tickets:
                ticket.done = True
