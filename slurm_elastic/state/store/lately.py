"""The rows of a file of ours that have come, or are over, since its last copy, as lines beside it.

A copy is minutes old: a machine that was bought and has ended since would be in no book once the
file is damaged. Each line is one row as JSON, on the disk before the write that made it returns.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.base import writing
from slurm_elastic.state.store import files
from slurm_elastic.state.store.moving import Key, Rows, Table, copied, past

log = logging.getLogger(__name__)

LONG = 8 << 20
"""Bytes from which on the lines are looked through for those that later ones have replaced: while
no copy fits on the disk, nothing else ends the file's growth.
"""
_GONE = '"row": null}'
"""The end of a line about a row that is not there any more."""


class Lately:
    """For the tables that say which columns ``turns`` are. Its caller has the file's lock."""

    def __init__(self, path: Path, schema: files.Schema, tables: Sequence[Table]) -> None:
        self._path = path.with_name(f"{path.name}.lately")
        self._schema = schema
        self._tables = {table.name: table for table in tables if table.turns}
        self._changed: dict[tuple[str, Key], None] = {}
        self._long = LONG

    def watch(self, connection: sqlite3.Connection) -> None:
        """From now on what this connection changes is to be written down."""
        connection.create_function("lately", -1, self._note)
        for name, table in self._tables.items():
            new, old = (", ".join(f"{row}.{key}" for key in table.keys) for row in ("new", "old"))
            columns = ", ".join(f'"{column}"' for column in (*table.turns, *table.keys))
            for event, rows in (("insert", [new]), (f"update of {columns}", [old, new])):
                notes = ", ".join(f"lately('{name}', {row})" for row in rows)
                connection.execute(
                    f"create temp trigger lately_{name}_{event[:6]} after {event} on {name} "
                    f"begin select {notes}; end"
                )

    def _note(self, table: str, *key: object) -> None:
        self._changed[table, key] = None

    def write(self, connection: sqlite3.Connection) -> None:
        """Have on the disk what was committed; where that fails it is tried again the next time."""
        if not self._changed:
            return
        try:
            lines = [self._line(connection, *changed) for changed in self._changed]
            size = writing.append(self._path, "".join(f"\n{line}" for line in lines).encode())
        except (OSError, sqlite3.Error) as error:
            log.warning("what has changed since the last copy is not kept: %s", error)
            return
        self._changed.clear()
        if size > self._long:
            self._shorten(connection, size)

    def _shorten(self, connection: sqlite3.Connection, size: int) -> None:
        """One line for each row that there still is, as it is now; as it was where that fails."""
        try:
            keys = dict.fromkeys(key for line in self._lines() if (key := self._key(line)))
            lines = [self._line(connection, *key) for key in keys]
            text = "".join(f"\n{line}" for line in lines if not line.endswith(_GONE)).encode()
            writing.replace(self._path, text)
            size = len(text)
        except (OSError, sqlite3.Error) as error:
            log.warning("%s stays as long as it is: %s", self._path, error)
        self._long = max(LONG, 2 * size)

    def _key(self, line: bytes) -> tuple[str, Key] | None:
        """The row that a line is about; None for one that ``_put`` leaves out."""
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            told = json.loads(line)
            table = self._tables[told["table"]]
            if len(told["key"]) == len(table.keys):
                return table.name, tuple(told["key"])
        return None

    def _line(self, connection: sqlite3.Connection, name: str, key: Key) -> str:
        row = connection.execute(
            f"select * from {name} where {_where(self._tables[name])}", key
        ).fetchone()
        return json.dumps({"table": name, "key": key, "row": None if row is None else dict(row)})

    def forget(self) -> None:
        """A copy has all of it. A line that outlives it tells nothing else: see ``restored``."""
        self._changed.clear()
        self._long = LONG
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self._path, 0)

    def restored(self, copy: Rows, now: float) -> Rows:
        """The rows of the last copy that nothing changes any more, and those that were written down
        since. If a power cut has brought a line back, the copy may know its end.
        """
        with contextlib.closing(files.open_memory(self._schema)) as memory:
            for line in self._lines():
                self._put(memory, line)
            rows, _ = copied(memory, tuple(self._tables.values()), now, 0)
            over = past(memory, tuple(self._tables.values()), now)
        return {
            name: {**rows.get(name, {}), **copy.get(name, {}), **over.get(name, {})}
            for name in {*rows, *copy}
        }

    def _lines(self) -> Sequence[bytes]:
        try:
            return self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return ()
        except OSError as error:
            log.warning("what has changed since the last copy is not known: %s", error)
            return ()

    def _put(self, memory: sqlite3.Connection, line: bytes) -> None:
        """The line's row in place of an earlier one; one that was cut off, or is of a release with
        other columns, is left out.
        """
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, sqlite3.Error):
            told = json.loads(line)
            table = self._tables[told["table"]]
            memory.execute(f"delete from {table.name} where {_where(table)}", told["key"])
            if (row := told["row"]) is not None:
                columns = ", ".join(f'"{column}"' for column in row)
                marks = ", ".join("?" * len(row))
                memory.execute(
                    f"insert into {table.name} ({columns}) values ({marks})", tuple(row.values())
                )


def _where(table: Table) -> str:
    return " and ".join(f"{key} = ?" for key in table.keys)
