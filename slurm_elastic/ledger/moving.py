"""What goes from a file of ours into memory, and what has changed there back into the file.

Decisions stay in the file, as there are many of them and nothing but ``explain`` reads those of
long ago; new ones are added to it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence

from msgspec import MsgspecError, Struct

from slurm_elastic.ledger.rows import aside_from, hold_from, launch_from, machine_from

KEPT = 40 * 86400.0
"""Seconds: what was paid longer ago counts in no budget."""
Key = tuple[object, ...]
Rows = dict[str, dict[Key, tuple[object, ...]]]
"""By table and key, each row's values in the order of its columns."""


class Table(Struct, frozen=True, kw_only=True):
    """``keys`` are its columns; ``where`` says which rows matter still (``:since``). ``reader`` is
    what a row has to pass, as one that cannot be read would stop everything.

    ``newer``: columns in which memory's row counts where the file has one that memory never had: it
    may know of the same thing by other means, and less of it. ``doubted``: without the whole file
    nothing of it counts.
    """

    name: str
    keys: tuple[str, ...]
    where: str = ""
    reader: Callable[[sqlite3.Row], object] = tuple
    newer: tuple[str, ...] = ()
    doubted: bool = False


_NEWS = ("state", "address", "last_seen", "misses", "suspending", "ended", "why", "registered")
LEDGER_TABLES = (
    Table(
        name="launches",
        keys=("generation",),
        where="where state = 'intent' or created >= :since",
        reader=launch_from,
    ),
    Table(
        name="machines",
        keys=("cloud", "id"),
        where="where ended is null or ended >= :since",
        reader=machine_from,
        newer=_NEWS,
    ),
    Table(name="cool_downs", keys=("key",)),
    Table(name="holds", keys=("node", "kind"), reader=hold_from),
    Table(name="breakers", keys=("pool",)),
    Table(name="wanted_by", keys=("node",)),
    Table(name="set_aside", keys=("job",), reader=aside_from),
    Table(name="lifted_requeues", keys=("job",)),
    # A cloud may have machines that are not among the rows.
    Table(name="read_whole", keys=("cloud",), doubted=True),
    Table(name="health", keys=("name",)),
)


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


def _read(
    source: sqlite3.Connection, table: Table, now: float
) -> tuple[dict[Key, tuple[object, ...]], bool]:
    found: dict[Key, tuple[object, ...]] = {}
    whole = True
    try:
        sql = f"select * from {table.name} {table.where}"
        for row in source.execute(sql, {"since": now - KEPT} if table.where else {}):
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
    _together(target, lambda: _put(target, rows))


def _put(target: sqlite3.Connection, rows: Rows, how: str = "insert or replace") -> None:
    for table, some in rows.items():
        for values in some.values():
            marks = ", ".join("?" * len(values))
            target.execute(f"{how} into {table} values ({marks})", values)


def merge(
    memory: sqlite3.Connection, file: sqlite3.Connection, tables: Sequence[Table], had: Rows
) -> None:
    """Write what differs from the rows that memory ``had`` at first into the file, whole or not at
    all. What the file has and memory never had stays, but for what is ``newer``.
    """

    def work() -> None:
        for table in tables:
            _merge(memory, file, table, had.get(table.name, {}))
        if "decisions" in _tables_of(file):
            _add_decisions(memory, file)

    _together(file, work)


def _tables_of(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute("select name from sqlite_master where type = 'table'")
    return {row["name"] for row in rows}


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


def _add_decisions(memory: sqlite3.Connection, file: sqlite3.Connection) -> None:
    columns = "at, correlation, kind, subjects, reason, detail"
    for row in memory.execute(f"select id, {columns} from decisions order by id"):
        sql = f"insert into decisions ({columns}) values (?, ?, ?, ?, ?, ?)"
        number = file.execute(sql, tuple(row)[1:]).lastrowid
        subjects = memory.execute(
            "select subject from decision_subjects where decision = ?", (row["id"],)
        ).fetchall()
        file.executemany(
            "insert or ignore into decision_subjects (subject, decision) values (?, ?)",
            [(subject["subject"], number) for subject in subjects],
        )


def _together(connection: sqlite3.Connection, work: Callable[[], None]) -> None:
    connection.execute("begin immediate")
    try:
        work()
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")
