"""A memory of ours for many threads: reads, transactions, and writes that share a sync.

What a write that fails means, by who has the store:

================  =================================================================================
who               then
================  =================================================================================
a command         its error: nothing was done
slurm-elasticd    end-only: nothing is bought; ends, charges, exclusions, decisions and what a list
                  tells are kept in memory, and appended when the disk is back
ckptman: its own  jobs are saved and requeued as ever; steps, images and notices are kept in memory,
                  and appended when the disk is back
ckptman: ledger   decisions wait with it; what it asks of machines it reads from the clouds
================  =================================================================================

What is of the moment (heartbeats, health, when a machine was seen last) is in the view alone, as is
that old rows are forgotten: the next segment of the journal lacks them.
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
"""Rows in one statement: sqlite takes 32,766 values, and more rows are no quicker."""
_STATEMENT = re.compile(r"\s*(?:insert(?: or \w+)? into|update|(delete) from)\s+(\w+)")


class Keyed(Struct, frozen=True):
    """Rows of ``table`` that are remembered by key, and what each is to who asks: None for one that
    does not count. ``where``: those that may count.
    """

    table: str
    value: Callable[[Mapping[str, Any] | sqlite3.Row], Any]
    where: str = ""


class Ticket(Struct):
    """Facts of one caller that go to the disk together with those of others."""

    facts: Sequence[Fact]
    error: BaseException | None = None


class Reader(Memory):
    """What can be read by who may not write: the view where it can be believed, else what the
    journal tells.
    """

    def __init__(self, path: Path, schema: Schema) -> None:
        super().__init__(_opened(path, schema), schema)


class Store:
    """One thing at a time in this connection; sqlite3.Error passes through.

    ``tables`` are those that a loop asks for many times a pass: who calls ``refresh`` at the start
    of each pass has them from memory until a write here changes them. So it is with those that are
    ``keyed``, in which what threads write together is changed row by row.
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
        keyed: Mapping[str, Keyed] | None = None,
    ) -> None:
        self._home, self._schema, self._now = home, schema, now
        self._read, self._keyed = tables or {}, keyed or {}
        # Of one column the value itself, of several a tuple.
        self._key_of = {
            name: itemgetter(*view.keys_of(schema, one.table)) for name, one in self._keyed.items()
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
        """Why it goes on in memory."""
        return self._home.trouble if isinstance(self._home, Refuge) else None

    @property
    def trouble_since(self) -> float:
        """Since when (Unix time)."""
        return self._home.since if isinstance(self._home, Refuge) else 0.0

    def look_after(self) -> None:
        """Go over to memory where the files cannot be used, and back where they can."""
        if isinstance(self._home, Refuge):
            with self.lock:
                self._home.check()
                self._current()

    def give_up(self, error: Exception) -> bool:
        """The files have failed with ``error``: go on without, where that is how it is. Whether
        something has changed by that.
        """
        if not isinstance(self._home, Refuge):
            return False
        with self.lock:
            changed = self._home.give_up(error)
            self._current()
            return changed

    def _current(self) -> Disk | Memory:
        """What is read and written now."""
        found = self._home.require_current()
        if found.changed:
            found.changed = False
            self._memory.clear()
        self._db = found.db
        return found

    def refresh(self) -> None:
        """Take in what other processes have written since: the first step of a pass."""
        with self.lock:
            version = int(self.select("pragma data_version")[0][0])
            if version != self._version:
                self._memory.clear()
            self._version = version

    @contextmanager
    def transaction(self, *changes: str | None) -> Iterator[sqlite3.Connection]:
        """For what is read and then written; inside another one, a part of that. ``changes``: which
        of the tables it changes, None where none. What ``change`` did is a line of the journal.
        """
        with self.lock:
            self._require_no_moment()
            self._depth += 1
            try:
                if self._depth > 1:
                    yield self._db
                    return
                self._facts = []
                found = self._current()
                with found.write(self._facts, self._now) as self._db:
                    self._line = found.position.number + 1
                    if found.changed:
                        found.changed = False
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
        """All reads inside are as of one moment, also while other processes write. Nothing may be
        written inside.
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
        """The writes of a ``moment`` would be lost at its end."""
        if self._is_reading:
            raise RuntimeError("a write inside of reads as of one moment")

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
        """A statement that changes rows, in a transaction; the rows as they are then, or were."""
        full, table, is_delete = _returning(sql)
        by_name = values[0] if values and isinstance(values[0], dict) else None
        found = self._db.execute(full, values if by_name is None else by_name).fetchall()
        if not found:
            return found
        rows = [fact_row(row) for row in found]
        if is_delete:
            keys = view.keys_of(self._schema, table)
            rows = [{key: row[key] for key in keys} for row in rows]
        elif table in self._schema.numbered:
            for row in rows:
                del row["id"]
        self._facts.append(Fact(drop=table, rows=rows) if is_delete else Fact(put=table, rows=rows))
        return found

    def insert(self, how: str, columns: str, rows: Sequence[Sequence[object]]) -> list[sqlite3.Row]:
        """Rows of a table, ``how`` says which: many in one statement, inside a transaction. Those
        that came in, as ``change`` has them.
        """
        marks = f"({', '.join('?' * (columns.count(',') + 1))})"
        found = []
        for begin in range(0, len(rows), AT_ONCE):
            some = rows[begin : begin + AT_ONCE]
            values = [value for row in some for value in row]
            sql = f"{how} ({columns}) values {', '.join([marks] * len(some))}"
            found += self.change(sql, *values)
        return found

    def first_id(self) -> int:
        """For rows that are known by their line: the id that the view will give the next one of the
        open transaction.
        """
        rows = sum(len(fact.rows) for fact in self._facts if fact.put in self._schema.numbered)
        return view.first_id(self._line) + rows

    def execute(self, changes: str | None, sql: str, *values: object) -> None:
        """One statement that changes rows, a transaction by itself or a part of the open one."""
        with self.transaction(changes):
            self.change(sql, *values)

    def passing(
        self, changes: str | None, sql: str, *values: object, rows: tuple[object, ...] | None = None
    ) -> None:
        """One statement about what is of the moment: for the view alone. ``rows`` are those of the
        table that it ``changes`` afterwards, for who knows them. Inside a transaction nothing is
        remembered, as that may not come to its end.
        """
        with self.lock:
            self._require_no_moment()
            self.select(sql, *values)
            self._memory.pop(changes or "", None)
            if changes and rows is not None and self._version is not None and not self._depth:
                self._memory[changes] = rows

    def tables(self, *names: str) -> list[tuple[Any, ...]]:
        """The rows of these tables, as of the last write here or ``refresh``; read anew each time
        for who never refreshes. Tables that are read in one call are as of one moment.
        """
        with self.lock:
            if not self._depth and not self._memory.keys() >= set(names):
                with self._damage_noted():
                    self._current()  # first, as it may forget the rows that are remembered
            missing = [name for name in names if name not in self._memory]
            found = self._read_together(missing)
            if self._version is not None and not self._depth:
                self._memory.update(found)
            rows = {name: found[name] if name in found else self._memory[name] for name in names}
        return [cast("tuple[Any, ...]", rows[name]) for name in names]

    def _read_together(self, names: Sequence[str]) -> dict[str, tuple[Any, ...]]:
        """The rows of these tables as of one moment: a launch that another process answers between
        two statements would be in no table.
        """
        with self.moment() if len(names) > 1 else contextlib.nullcontext():
            found = {}
            for name in names:
                sql, read = self._read[name]
                found[name] = tuple(read(row) for row in self.select(sql))
            return found

    def by_key(self, name: str) -> dict[Any, Any]:
        """One that is ``keyed``, as of the last write here or ``refresh``. The caller has the lock
        for as long as it uses that.
        """
        found = self._memory.get(name)
        if found is None:
            one = self._keyed[name]
            key = self._key_of[name]
            rows = self.select(f"select * from {one.table} {one.where}")
            values = ((key(row), one.value(row)) for row in rows)
            found = {key: value for key, value in values if value is not None}
            if self._version is not None:
                self._memory[name] = found
        return cast("dict[Any, Any]", found)

    def _write(self, *facts: Fact) -> None:
        """On the disk on return: those that have rows. Whoever gets the files writes for all that
        wait by then.
        """
        mine = Ticket([fact for fact in facts if fact.rows])
        if not mine.facts:
            return
        with self._gather:
            self._tickets.append(mine)
        with self.lock:
            self._require_no_moment()
            with self._gather:
                batch, self._tickets = self._tickets, []
            if batch:
                self._commit(batch)
        if mine.error is not None:
            raise mine.error

    def _commit(self, tickets: Sequence[Ticket]) -> None:
        try:
            self._append([ticket.facts for ticket in tickets])
        except BaseException as error:  # noqa: BLE001 - each of those who wait raises it
            self._memory.clear()
            self._home.damage = error
            for ticket in tickets:
                ticket.error = error
        else:
            for ticket in tickets:
                self._remember(ticket.facts)

    def _remember(self, facts: Sequence[Fact]) -> None:
        """The same change in what is remembered by key; all else is forgotten."""
        for name in list(self._memory):
            one = self._keyed.get(name)
            if one is None:
                del self._memory[name]
                continue
            known, key = cast("dict[Any, Any]", self._memory[name]), self._key_of[name]
            mine = [fact for fact in facts if one.table in (fact.put, fact.drop)]
            for row, is_put in ((row, bool(fact.put)) for fact in mine for row in fact.rows):
                known.pop(key(row), None)
                value = one.value(row) if is_put else None
                if value is not None:
                    known[key(row)] = value

    def _append(self, batches: Sequence[Sequence[Fact]]) -> None:
        self._current().put(batches, self._now)

    def shorten(self) -> None:
        """Give room back to the disk, and begin a new segment of the journal where that is due: one
        for which there is no room is tried again, and the one that there is gone on with.
        """
        with self.lock:
            found = self._current()
            self.select("pragma wal_checkpoint(passive)")
        if isinstance(found, Disk):
            try:
                found.shorten(self.lock, self._now())
            except JournalError as error:
                log.warning("no new segment of %s was begun: %s", found.journal.directory, error)


def _opened(path: Path, schema: Schema) -> sqlite3.Connection:
    journal = journal_of(path)
    is_there = bool(journal.segments())
    is_own = journal.applied().boot == view.boot() and journal.is_newest
    if path.exists() and (not is_there or is_own):
        try:
            found = view.open_reader(path, schema)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) or not is_there:
                raise
        else:
            is_whole = not is_there or view.number_of(found) >= journal.applied().position.number
            if is_whole and view.version_of(found, path, schema) == schema.version:
                return found
            found.close()
    if not is_there:
        why = "an older one is" if path.exists() else "there is no"
        raise SlurmElasticError(
            f"{why} {schema.name} at {path}; {schema.maker} makes it when it starts"
        )
    made = view.open_memory(schema)
    with JournalError.of_system():
        view.filled(made, schema, journal)
    made.execute("pragma query_only = on")
    return made


@functools.lru_cache(512)
def _returning(sql: str) -> tuple[str, str, bool]:
    found = _STATEMENT.match(sql)
    if found is None:
        raise ValueError(f"found {sql}, expected a statement that changes rows")
    return f"{sql} returning *", found[2], found[1] is not None
