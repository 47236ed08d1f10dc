"""What goes from a ledger's file into memory, and what has changed there back into the file.

Decisions stay in the file, as there are many of them and nothing but ``explain`` reads those of
long ago; new ones are added to it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping

from msgspec import MsgspecError

from slurm_elastic.ledger.rows import aside_from, hold_from, launch_from, machine_from

KEPT = 40 * 86400.0
"""Seconds: what was paid longer ago counts in no budget."""
Key = tuple[object, ...]
Rows = dict[str, dict[Key, tuple[object, ...]]]
"""By table and key, each row's values in the order of its columns."""

_KEYS: Mapping[str, tuple[str, ...]] = {
    "launches": ("generation",),
    "machines": ("cloud", "id"),
    "cool_downs": ("key",),
    "holds": ("node", "kind"),
    "breakers": ("pool",),
    "wanted_by": ("node",),
    "set_aside": ("job",),
    "lifted_requeues": ("job",),
    "read_whole": ("cloud",),
    "health": ("name",),
}
_WHERE = {
    "launches": "where state = 'intent' or created >= :since",
    "machines": "where ended is null or ended >= :since",
}
_READERS: Mapping[str, Callable[[sqlite3.Row], object]] = {
    "launches": launch_from,
    "machines": machine_from,
    "holds": hold_from,
    "set_aside": aside_from,
}
"""What a row of a damaged file has to pass, as what cannot be read would stop everything."""
_NEWER = (
    "update machines set state = ?, address = coalesce(?, address), last_seen = ?, misses = ?, "
    "suspending = coalesce(suspending, ?), ended = coalesce(ended, ?), why = coalesce(why, ?), "
    "registered = coalesce(registered, ?) where cloud = ? and id = ?"
)
"""A machine that memory has only by its tags; the file knows more of it."""
_NEWS = ("state", "address", "last_seen", "misses", "suspending", "ended", "why", "registered")


def copied(source: sqlite3.Connection, now: float, patience: int) -> tuple[Rows, bool]:
    """All rows that can be read within ``patience`` ms a table, and whether that is all of them.
    Where it is not, no cloud counts as read: it may have machines that are not among the rows.
    """
    rows: Rows = {}
    whole = True
    try:
        source.execute(f"pragma busy_timeout = {patience}")
    except sqlite3.Error:
        return {}, False
    for table in _KEYS:
        rows[table], complete = _read(source, table, now)
        whole = whole and complete
    if not whole:
        rows["read_whole"] = {}
    return rows, whole


def _read(
    source: sqlite3.Connection, table: str, now: float
) -> tuple[dict[Key, tuple[object, ...]], bool]:
    found: dict[Key, tuple[object, ...]] = {}
    whole = True
    try:
        sql = f"select * from {table} {_WHERE.get(table, '')}"
        for row in source.execute(sql, {"since": now - KEPT}):
            if _is_readable(table, row):
                found[_key(table, row)] = tuple(row)
            else:
                whole = False
    except sqlite3.Error:
        whole = False
    return found, whole


def _is_readable(table: str, row: sqlite3.Row) -> bool:
    try:
        _READERS.get(table, tuple)(row)
    except (MsgspecError, ValueError, TypeError, KeyError):
        return False
    return True


def _key(table: str, row: sqlite3.Row) -> Key:
    return tuple(row[name] for name in _KEYS[table])


def put(target: sqlite3.Connection, rows: Rows) -> None:
    """Insert these rows, or replace those of the same key, all in one transaction."""
    _together(target, lambda: _put(target, rows))


def _put(target: sqlite3.Connection, rows: Rows, how: str = "insert or replace") -> None:
    for table, some in rows.items():
        for values in some.values():
            marks = ", ".join("?" * len(values))
            target.execute(f"{how} into {table} values ({marks})", values)


def merge(memory: sqlite3.Connection, file: sqlite3.Connection, had: Rows) -> None:
    """Write what differs from the rows that memory ``had`` at first into the file, whole or not at
    all. What the file has and memory never had stays, but for machines' ends.
    """
    _together(file, lambda: _merge(memory, file, had))


def _merge(memory: sqlite3.Connection, file: sqlite3.Connection, had: Rows) -> None:
    for table, names in _KEYS.items():
        known = had.get(table, {})
        rows = {_key(table, row): row for row in memory.execute(f"select * from {table}")}
        new = {key: row for key, row in rows.items() if tuple(row) != known.get(key)}
        where = " and ".join(f"{name} = ?" for name in names)
        for key in known.keys() - rows.keys():
            file.execute(f"delete from {table} where {where}", key)
        _put(file, {table: {k: tuple(r) for k, r in new.items() if k in known}})
        strange = {key: row for key, row in new.items() if key not in known}
        _put(file, {table: {k: tuple(r) for k, r in strange.items()}}, "insert or ignore")
        if table == "machines":
            file.executemany(
                _NEWER, [(*(row[n] for n in _NEWS), *key) for key, row in strange.items()]
            )
    _add_decisions(memory, file)


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
