"""Rows that go from a file of ours into memory, and what has changed there back into the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence

from msgspec import MsgspecError, Struct
from msgspec.structs import replace

from slurm_elastic.state.store.store import transaction

KEPT = 40 * 86400.0
"""Seconds: what was paid longer ago counts in no budget."""
Key = tuple[object, ...]
Rows = dict[str, dict[Key, tuple[object, ...]]]
"""By table and key, each row's values in the order of its columns."""
Also = Callable[[sqlite3.Connection, sqlite3.Connection], None]
"""From memory to the file."""


class Table(Struct, frozen=True, kw_only=True):
    """``keys`` are its columns; ``where`` says which rows matter still (``:since``). ``reader`` is
    what a row has to pass, as one that cannot be read would stop everything.

    ``newer``: columns in which memory's row counts where the file has one that memory never had: it
    may know of the same thing by other means, and less of it. ``doubted``: without the whole file
    nothing of it counts. ``past`` says which rows nothing changes any more: where they cannot be
    read, those of an older copy serve. ``turns``: columns whose change is written down at once, as
    is a new row, for what is younger than that copy (``state.store.lately``). ``at_once``: the
    copy is made anew whoever changes one of its few rows.
    """

    name: str
    keys: tuple[str, ...]
    where: str = ""
    reader: Callable[[sqlite3.Row], object] = tuple
    newer: tuple[str, ...] = ()
    doubted: bool = False
    past: str = ""
    turns: tuple[str, ...] = ()
    at_once: bool = False


def copied(
    source: sqlite3.Connection, tables: Sequence[Table], now: float, patience: int
) -> tuple[Rows, bool]:
    """All rows that can be read within ``patience`` ms a table, and whether that is all of them."""
    rows: Rows = {}
    whole = True
    try:
        source.execute(f"pragma busy_timeout = {patience}")
    except sqlite3.Error:
        return {}, False
    for table in tables:
        rows[table.name], complete = _read(source, table, now)
        whole = whole and complete
    if not whole:
        rows |= {table.name: {} for table in tables if table.doubted}
    return rows, whole


def past(source: sqlite3.Connection, tables: Sequence[Table], now: float) -> Rows:
    """The rows of an older copy that nothing changes any more, as far as they can be read."""
    rows: Rows = {}
    for table in tables:
        if table.past:
            where = f"{table.where} and {table.past}" if table.where else f"where {table.past}"
            rows[table.name], _ = _read(source, replace(table, where=where), now)
    return rows


def walk(source: sqlite3.Connection, tables: Sequence[Table], now: float) -> None:
    """Read all rows that matter still; sqlite3.Error where one cannot be."""
    for table in tables:
        for _ in source.execute(*_query(table, now)):
            pass


def _query(table: Table, now: float) -> tuple[str, dict[str, float]]:
    return f"select * from {table.name} {table.where}", {"since": now - KEPT} if table.where else {}


def _read(
    source: sqlite3.Connection, table: Table, now: float
) -> tuple[dict[Key, tuple[object, ...]], bool]:
    found: dict[Key, tuple[object, ...]] = {}
    whole = True
    try:
        for row in source.execute(*_query(table, now)):
            if _is_readable(table, row):
                found[_key(table, row)] = tuple(row)
            else:
                whole = False
    except sqlite3.Error:
        whole = False
    return found, whole


def _is_readable(table: Table, row: sqlite3.Row) -> bool:
    try:
        table.reader(row)
    except (MsgspecError, ValueError, TypeError, KeyError):
        return False
    return True


def _key(table: Table, row: sqlite3.Row) -> Key:
    return tuple(row[name] for name in table.keys)


def put(target: sqlite3.Connection, rows: Rows) -> None:
    """Insert these rows, or replace those of the same key, all in one transaction."""
    with transaction(target):
        _put(target, rows)


def _put(target: sqlite3.Connection, rows: Rows, how: str = "insert or replace") -> None:
    for table, some in rows.items():
        for values in some.values():
            marks = ", ".join("?" * len(values))
            target.execute(f"{how} into {table} values ({marks})", values)


def merge(
    memory: sqlite3.Connection,
    file: sqlite3.Connection,
    tables: Sequence[Table],
    had: Rows,
    also: Also | None = None,
) -> None:
    """Write what differs from the rows that memory ``had`` at first into the file, whole or not at
    all. A row that the file has and memory never had stays, but for what is ``newer``. ``also``
    moves the rest in the same transaction.
    """
    with transaction(file):
        for table in tables:
            _merge(memory, file, table, had.get(table.name, {}))
        if also is not None:
            also(memory, file)


def _merge(
    memory: sqlite3.Connection,
    file: sqlite3.Connection,
    table: Table,
    known: Mapping[Key, tuple[object, ...]],
) -> None:
    rows = {_key(table, row): row for row in memory.execute(f"select * from {table.name}")}
    new = {key: row for key, row in rows.items() if tuple(row) != known.get(key)}
    where = " and ".join(f"{name} = ?" for name in table.keys)
    for key in known.keys() - rows.keys():
        file.execute(f"delete from {table.name} where {where}", key)
    _put(file, {table.name: {k: tuple(r) for k, r in new.items() if k in known}})
    strange = {key: row for key, row in new.items() if key not in known}
    _put(file, {table.name: {k: tuple(r) for k, r in strange.items()}}, "insert or ignore")
    if table.newer:
        columns = ", ".join(f"{name} = coalesce(?, {name})" for name in table.newer)
        file.executemany(
            f"update {table.name} set {columns} where {where}",
            [(*(row[n] for n in table.newer), *key) for key, row in strange.items()],
        )
