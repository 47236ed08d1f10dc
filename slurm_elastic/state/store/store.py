"""The memory of a service for many threads: reads, transactions, and writes that share a sync.

The effect of a failed write depends on the owner of the store:

================  =================================================================================
owner             effect
================  =================================================================================
a command         its error; nothing was changed
slurm-elasticd    end-only: nothing is bought; ends, charges, exclusions, decisions and listings
                  are kept in memory, and appended when the disk is back
ckptman: its own  jobs are still saved and requeued; steps, images and notices are kept in memory,
                  and appended when the disk is back
ckptman: ledger   decisions wait with it; what it asks of machines it reads from the clouds
================  =================================================================================

Heartbeats, health and ``last_seen`` are written to the view alone, and so are deletions of old
rows: the next segment of the journal lacks these rows.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, cast

from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.state.store import view
from slurm_elastic.state.store.disk import Disk, Elsewhere
from slurm_elastic.state.store.endurance import Memory, Refuge
from slurm_elastic.state.store.journal import Fact
from slurm_elastic.state.store.shared_journal import journal_of
from slurm_elastic.state.store.trouble import JournalError, Trouble
from slurm_elastic.state.store.view import Schema, fact_row

log = logging.getLogger(__name__)

Table = tuple[str, Callable[[sqlite3.Row], Any]]
"""The statement that reads a table, and how a row of it becomes a value."""
AT_ONCE = 100
"""Rows per statement. sqlite allows 32,766 values, and more rows are not faster."""
_STATEMENT = re.compile(r"\s*(?:insert(?: or \w+)? into|update|(delete) from)\s+(\w+)")


class KeyedTable(Struct, frozen=True):
    """Rows of ``table`` cached by key. ``value`` makes the cached value of a row, None for a row
    that is left out. ``where``: a condition for the rows to read.
    """

    table: str
    value: Callable[[Mapping[str, Any] | sqlite3.Row], Any]
    where: str = ""


class Ticket(Struct):
    """Facts of one caller, written to the disk together with the facts of other callers."""

    facts: Sequence[Fact]
    error: BaseException | None = None


class Reader(Memory):
    """A read-only memory for users who may not write: the view if it is up to date, else rows that
    are read from the journal.
    """

    def __init__(self, path: Path, schema: Schema) -> None:
        super().__init__(_opened(path, schema), schema)


class Store:
    """One thread at a time uses the connection; sqlite3.Error passes through.

    ``tables`` are read many times per round. If the owner calls ``refresh`` at the start of each
    round, their rows are cached until a write here changes them. ``keyed`` tables are cached in the
    same way, but facts that threads write together change only their own rows in the cache.
    """

    guarded_by: ClassVar[GuardedBy] = {
        "lock": Guarded(
            "_db",
            "_memory",
            "_depth",
            "_is_reading",
            "_version",
            "_facts",
            "_line",
            callers_hold_lock=["change", "insert", "first_id", "by_key"],
        ),
        "_gather": Guarded("_tickets"),
    }

    def __init__(
        self,
        home: Disk | Elsewhere | Refuge | Reader,
        schema: Schema,
        now: Callable[[], float] = time.time,
        tables: Mapping[str, Table] | None = None,
        keyed: Mapping[str, KeyedTable] | None = None,
    ) -> None:
        self._home, self._schema, self._now = home, schema, now
        self._read, self._keyed = tables or {}, keyed or {}
        # ``itemgetter`` returns the value for one key column and a tuple for several.
        self._key_of = {
            name: itemgetter(*view.keys_of(schema, table_keyed.table))
            for name, table_keyed in self._keyed.items()
        }
        self.lock = threading.RLock()
        self._memory: dict[str, object] = {}
        self._version: int | None = None
        self._depth = 0
        self._is_reading = False
        self._facts: list[Fact] = []
        self._line = 0  # of the open transaction
        self._gather = threading.Lock()
        self._tickets: list[Ticket] = []
        self._db: sqlite3.Connection
        if not isinstance(home, Elsewhere):
            self._current()

    def close(self) -> None:
        """Close the files; closing twice is no error."""
        with self.lock:
            self._home.close()

    @property
    def trouble(self) -> Trouble | None:
        """Why this store continues in memory; None if it uses the disk."""
        return self._home.trouble if isinstance(self._home, Refuge) else None

    @property
    def trouble_since(self) -> float:
        """Since when this store is in memory (Unix time)."""
        return self._home.since if isinstance(self._home, Refuge) else 0.0

    def look_after(self) -> None:
        """Switch to memory if the files cannot be used, and back if they can."""
        if isinstance(self._home, Refuge):
            with self.lock:
                self._home.check()
                self._current()

    def give_up(self, error: Exception) -> bool:
        """Continue in memory after the files failed with ``error``, if this store can. Return
        whether something changed.
        """
        if not isinstance(self._home, Refuge):
            return False
        with self.lock:
            changed = self._home.give_up(error)
            self._current()
            return changed

    def _current(self) -> Disk | Memory:
        """The disk, or the memory that replaces it now."""
        current = self._home.require_current()
        if current.changed:
            current.changed = False
            self._memory.clear()
        self._db = current.db
        return current

    def refresh(self) -> None:
        """Drop cached rows if another process has written: the first step of a round."""
        # sqlite changes data_version only for writes of other connections. This store drops the
        # rows of its own writes itself.
        with self.lock:
            version = int(self.select("pragma data_version")[0][0])
            if version != self._version:
                self._memory.clear()
            self._version = version

    @contextmanager
    def transaction(self, *changes: str | None) -> Iterator[sqlite3.Connection]:
        """A transaction for reads and writes; an inner one is a part of the outer one. ``changes``:
        the tables whose cached rows it drops, None for none. The changes by ``change`` become one
        line of the journal.
        """
        with self.lock:
            self._require_no_moment()
            self._depth += 1
            try:
                if self._depth > 1:
                    yield self._db
                    return
                self._facts = []
                current = self._current()
                with current.write(self._facts, self._now) as self._db:
                    self._line = current.position.number + 1
                    if current.changed:
                        current.changed = False
                        self._memory.clear()
                    yield self._db
            except BaseException as error:
                self._memory.clear()
                self._home.damage = error
                raise
            finally:
                self._depth -= 1
                for name in changes:
                    self._memory.pop(name or "", None)

    @contextmanager
    def moment(self) -> Iterator[None]:
        """All reads inside see the rows of one moment, even while other processes write. A write
        inside raises RuntimeError.
        """
        with self.lock:
            if self._depth:
                yield
                return
            with self._damage_noted():
                self._current()
            self._depth += 1
            self._is_reading = True
            try:
                self.select("begin")
                yield
            finally:
                self._is_reading = False
                self._depth -= 1
                with contextlib.suppress(sqlite3.Error):  # it may not have begun
                    self._db.execute("rollback")

    def _require_no_moment(self) -> None:
        """Raise RuntimeError inside a ``moment``: its rollback would lose the write."""
        if self._is_reading:
            raise RuntimeError("a write is not possible inside reads as of one moment")

    def select(self, sql: str, *values: object) -> list[sqlite3.Row]:
        with self.lock, self._damage_noted():
            if not self._depth:
                self._current()
            return self._db.execute(sql, values).fetchall()

    @contextmanager
    def _damage_noted(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self._home.damage = error
            raise

    def change(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """Execute a statement that changes rows, inside a transaction. Return the changed rows, or
        the deleted rows as they were.
        """
        full, table, is_delete = _returning(sql)
        by_name = values[0] if values and isinstance(values[0], dict) else None
        changed_rows = self._db.execute(full, values if by_name is None else by_name).fetchall()
        if not changed_rows:
            return changed_rows
        rows = [fact_row(row) for row in changed_rows]
        if is_delete:
            keys = view.keys_of(self._schema, table)
            rows = [{key: row[key] for key in keys} for row in rows]
        elif table in self._schema.numbered_tables:
            for row in rows:
                del row["id"]
        self._facts.append(Fact(drop=table, rows=rows) if is_delete else Fact(put=table, rows=rows))
        return changed_rows

    def insert(self, how: str, columns: str, rows: Sequence[Sequence[object]]) -> list[sqlite3.Row]:
        """Insert rows inside a transaction, many per statement; ``how`` begins the statement and
        names the table. Return the inserted rows, like ``change``.
        """
        marks = f"({', '.join('?' * (columns.count(',') + 1))})"
        inserted = []
        for start in range(0, len(rows), AT_ONCE):
            chunk = rows[start : start + AT_ONCE]
            values = [value for row in chunk for value in row]
            sql = f"{how} ({columns}) values {', '.join([marks] * len(chunk))}"
            inserted += self.change(sql, *values)
        return inserted

    def first_id(self) -> int:
        """The id that the view gives the next row of a ``numbered`` table in the open transaction.
        It derives from the number of the journal's line, so a rebuilt view has the same ids.
        """
        rows = sum(len(f.rows) for f in self._facts if f.put in self._schema.numbered_tables)
        return view.first_id(self._line) + rows

    def execute(self, changes: str | None, sql: str, *values: object) -> None:
        """Execute a statement that changes rows, as a transaction or as a part of the open one."""
        with self.transaction(changes):
            self.change(sql, *values)

    def passing(
        self, changes: str | None, sql: str, *values: object, rows: tuple[object, ...] | None = None
    ) -> None:
        """Execute a statement on the view alone, without a line of the journal. ``rows``: the rows
        of the table ``changes`` after it, for the cache. Inside a transaction they are not cached,
        because the transaction may be rolled back.
        """
        with self.lock:
            self._require_no_moment()
            self.select(sql, *values)
            self._memory.pop(changes or "", None)
            if changes and rows is not None and self._version is not None and not self._depth:
                self._memory[changes] = rows

    def tables(self, *names: str) -> list[tuple[Any, ...]]:
        """The rows of these tables, as of the last write here or ``refresh``; read each time if the
        owner never calls ``refresh``. Tables that one call reads are as of one moment.
        """
        with self.lock:
            if not self._depth and not self._memory.keys() >= set(names):
                with self._damage_noted():
                    self._current()  # before ``missing``, because it may clear the cache
            missing = [name for name in names if name not in self._memory]
            rows_read = self._read_together(missing)
            if self._version is not None and not self._depth:
                self._memory.update(rows_read)
            rows = {
                name: rows_read[name] if name in rows_read else self._memory[name] for name in names
            }
        return [cast("tuple[Any, ...]", rows[name]) for name in names]

    def _read_together(self, names: Sequence[str]) -> dict[str, tuple[Any, ...]]:
        """The rows of these tables as of one moment: a launch that another process answers between
        two statements would be in no table.
        """
        with self.moment() if len(names) > 1 else contextlib.nullcontext():
            rows_by_table = {}
            for name in names:
                sql, read = self._read[name]
                rows_by_table[name] = tuple(read(row) for row in self.select(sql))
            return rows_by_table

    def by_key(self, name: str) -> dict[Any, Any]:
        """The values of a ``keyed`` table, as of the last write here or ``refresh``. The caller
        holds the lock while it uses the result.
        """
        values_by_key = self._memory.get(name)
        if values_by_key is None:
            keyed = self._keyed[name]
            key = self._key_of[name]
            rows = self.select(f"select * from {keyed.table} {keyed.where}")
            values = ((key(row), keyed.value(row)) for row in rows)
            values_by_key = {key: value for key, value in values if value is not None}
            if self._version is not None:
                self._memory[name] = values_by_key
        return cast("dict[Any, Any]", values_by_key)

    def _write(self, *facts: Fact) -> None:
        """Write facts; on return they are on the disk. The thread that gets the lock writes the
        tickets of all waiting threads with one sync.
        """
        ticket = Ticket([fact for fact in facts if fact.rows])
        if not ticket.facts:
            return
        with self._gather:
            self._tickets.append(ticket)
        with self.lock:
            self._require_no_moment()
            with self._gather:
                batch, self._tickets = self._tickets, []
            if batch:
                self._commit(batch)
        if ticket.error is not None:
            raise ticket.error

    def _commit(self, tickets: Sequence[Ticket]) -> None:
        try:
            self._append([ticket.facts for ticket in tickets])
        except BaseException as error:  # noqa: BLE001 - each waiting caller raises it
            self._memory.clear()
            self._home.damage = error
            for ticket in tickets:
                ticket.error = error
        else:
            for ticket in tickets:
                self._remember(ticket.facts)

    def _remember(self, facts: Sequence[Fact]) -> None:
        """Apply the facts to the caches by key, and drop all other caches."""
        for name in list(self._memory):
            keyed = self._keyed.get(name)
            if keyed is None:
                del self._memory[name]
                continue
            values_by_key, key = cast("dict[Any, Any]", self._memory[name]), self._key_of[name]
            table_facts = [fact for fact in facts if keyed.table in (fact.put, fact.drop)]
            for row, is_put in ((row, bool(fact.put)) for fact in table_facts for row in fact.rows):
                values_by_key.pop(key(row), None)
                value = keyed.value(row) if is_put else None
                if value is not None:
                    values_by_key[key(row)] = value

    def _append(self, batches: Sequence[Sequence[Fact]]) -> None:
        self._current().put(batches, self._now)

    def shorten(self) -> None:
        """Checkpoint the view, and begin a new segment of the journal if the current one is long.
        If a new segment fails, the current one stays in use and a later call tries again.
        """
        with self.lock:
            current = self._current()
            self.select("pragma wal_checkpoint(passive)")
        if isinstance(current, Disk):
            try:
                current.shorten(self.lock, self._now())
            except JournalError as error:
                log.warning("cannot begin a segment of %s: %s", current.journal.directory, error)


def _opened(path: Path, schema: Schema) -> sqlite3.Connection:
    journal = journal_of(path)
    # This head's old view would look complete if the other head's segments could not be read.
    journal.require_reachable()
    is_there = bool(journal.segments())
    is_own = journal.applied().boot == view.boot() and journal.is_newest
    if path.exists() and (not is_there or is_own):
        try:
            reader = view.open_reader(path, schema)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) or not is_there:
                raise
        else:
            is_whole = not is_there or view.number_of(reader) >= journal.applied().position.number
            if is_whole and view.version_of(reader, path, schema) == schema.version:
                return reader
            reader.close()
    if not is_there:
        problem = "an older one is" if path.exists() else "there is no"
        raise SlurmElasticError(
            f"{problem} {schema.name} at {path}; {schema.maker} makes it when it starts"
        )
    memory = view.open_memory(schema)
    with JournalError.of_system():
        view.filled(memory, schema, journal)
    memory.execute("pragma query_only = on")
    return memory


@functools.lru_cache(512)
def _returning(sql: str) -> tuple[str, str, bool]:
    match = _STATEMENT.match(sql)
    if match is None:
        raise ValueError(f"found {sql}, expected a statement that changes rows")
    return f"{sql} returning *", match[2], match[1] is not None
