"""The view: an sqlite file of the rows that result from the journal. All reads go to it.

The view is not synced. If it is missing, damaged, of another boot of this host (a power cut may
have torn it) or of another schema, it is rebuilt from the journal. Columns are matched by name:
columns that a journal of an earlier release lacks get their defaults.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.state import statedir
from slurm_elastic.state.store.journal import Begin, Damage, Fact, Journal, Position, read_line

BUSY_TIMEOUT = 10.0
"""Seconds to wait for other processes, for the journal's turn as for sqlite's locks."""
_AT_ONCE = 200
_SIGNED = 2**31 - 1
"""``pragma application_id`` stores 32 signed bits."""
OF_LIST = "(select value from json_each(?))"
"""SQL for the values of a list, which the statement gets as one JSON text."""
_INFINITE = "9e999"
"""sqlite reads this text as infinity in a column of numbers. JSON has no infinity."""
_NUMBERED = 20
"""Bits of the id of a ``numbered`` row that hold its place in its line."""


class Schema(Struct, frozen=True, kw_only=True):
    """One memory: its ``name``, the service that makes it, and its tables.

    ``version``: the first release has 1, and a release with other tables or columns has the next
    number. ``unjournaled_tables``: tables without journal lines,
    because the service writes their rows again and again. ``numbered_tables``: tables whose ``id``
    the view assigns. ``recent_rows``: per table the condition (``:since``) for the rows that
    ``state.store.endurance`` keeps in memory. ``newer_wins``: columns for which a value found while
    the journal was unreadable replaces the journal's value. ``clearable_tables``: tables from which
    a person may delete rows.
    ``row_translators``: per table, how a row of an earlier release becomes a row of this release.
    ``reset_columns``: counters, with the values to which a rebuilt view resets them.
    """

    name: str
    maker: str
    version: int
    statements: tuple[str, ...]
    unjournaled_tables: frozenset[str] = frozenset()
    numbered_tables: frozenset[str] = frozenset()
    recent_rows: Mapping[str, str] = field(default_factory=dict)
    newer_wins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    clearable_tables: frozenset[str] = frozenset()
    row_translators: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = field(
        default_factory=dict
    )
    reset_columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def begin_counts_anew(db: sqlite3.Connection, schema: Schema) -> None:
    """Reset the ``reset_columns`` of all rows to their first values."""
    with transaction(db):
        for table, values in schema.reset_columns.items():
            columns = ", ".join(f"{name} = ?" for name in values)
            db.execute(f"update {table} set {columns}", tuple(values.values()))


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction: after an error no write inside is kept."""
    db.execute("begin immediate")
    try:
        yield db
        db.execute("commit")
    except BaseException:
        if db.in_transaction:  # sqlite rolls back by itself if the disk is full
            db.execute("rollback")
        raise


def boot() -> str:
    """The id of this boot: unsynced pages survive a killed process, but no power cut."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def connect(path: Path, how: str = "rw", timeout: float | None = None) -> sqlite3.Connection:
    """Open the file. ``how``: rw, ro, or ``immutable`` for a file without a writer."""
    mode = "ro&immutable=1" if how == "immutable" else how
    return _connect(f"file:{quote(str(path.absolute()))}?mode={mode}", timeout)


def _connect(uri: str, timeout: float | None = None) -> sqlite3.Connection:
    connection = sqlite3.connect(
        uri,
        uri=True,
        timeout=BUSY_TIMEOUT if timeout is None else timeout,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.row_factory = sqlite3.Row
    return connection


def open_memory(schema: Schema) -> sqlite3.Connection:
    """An empty view in memory."""
    connection = _connect(":memory:")
    _create(connection, schema)
    return connection


def open_scratch(schema: Schema) -> sqlite3.Connection:
    """An empty view in a temporary file of sqlite, because it may become large."""
    connection = _connect("")
    _create(connection, schema)
    return connection


def _create(db: sqlite3.Connection, schema: Schema) -> None:
    with transaction(db):
        for statement in schema.statements:
            db.execute(statement)
        db.execute(f"pragma user_version = {schema.version}")


def number_of(db: sqlite3.Connection) -> int:
    """The number of the last line that the view has."""
    return int(db.execute("pragma application_id").fetchone()[0])


def set_number(db: sqlite3.Connection, number: int) -> None:
    """Record the number of the last line that the view has."""
    db.execute(f"pragma application_id = {number & _SIGNED}")


def require_sound(db: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError if pages are damaged; reads all pages."""
    (result,) = db.execute("pragma quick_check(1)").fetchone()
    if result != "ok":
        error = sqlite3.DatabaseError(f"malformed: {result}")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def version_of(db: sqlite3.Connection, path: Path, schema: Schema) -> int:
    """The schema version of the file. Raises ConfigError if this release does not know it."""
    version = int(db.execute("pragma user_version").fetchone()[0])
    require_known(version, path, schema)
    return version


def has_rows(path: Path, schema: Schema) -> bool:
    """Whether the file is a view, and not an empty file. Raises sqlite3.DatabaseError for another
    program's database.
    """
    with contextlib.closing(connect(path)) as db:
        version = version_of(db, path, schema)
        if not version and tables_of(db):
            raise sqlite3.DatabaseError(f"{path} is a database, and no {schema.name}")
        return version > 0


def require_known(version: int, path: Path, schema: Schema) -> None:
    """Raise ConfigError for the schema of a later release."""
    if version > schema.version:
        raise ConfigError(
            f"the {schema.name} {path} has schema {version}, this release knows schemas up to "
            f"{schema.version}: install the newer slurm-elastic again"
        )


def open_writer(path: Path, timeout: float | None = None) -> sqlite3.Connection:
    """A connection to read and write an existing view."""
    connection = connect(path, "rw", timeout)
    try:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = off")
        # On a read-only disk sqlite silently opens the file read-only. Fail here, not at a write.
        connection.execute("begin immediate")
        set_number(connection, number_of(connection))
        connection.execute("rollback")
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path, schema: Schema) -> sqlite3.Connection:
    """A connection for reading only, also for users who may not write in the directory.

    Such users can read a file in WAL mode only if its ``-wal`` and ``-shm`` files exist, as they do
    while the daemon runs. After a clean stop the file alone is complete, so it may be opened as
    immutable (https://www.sqlite.org/wal.html, "Read-Only Databases").
    """
    for how in ("ro", "immutable"):
        connection = connect(path, how)
        try:
            version_of(connection, path, schema)
        except sqlite3.OperationalError:
            connection.close()
            if how == "immutable" or path.with_name(path.name + "-wal").exists():
                raise
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise AssertionError


# facts of the journal


class Filler:
    """Applies facts to the tables of one connection."""

    def __init__(self, db: sqlite3.Connection, schema: Schema) -> None:
        self._db, self._schema = db, schema
        self._columns = columns_of(schema)
        self._put_sql = functools.lru_cache(512)(self._made_sql)

    def facts(self, facts: Iterable[Fact], number: int) -> None:
        """Apply the facts of line ``number`` in their order. Tables and columns that this release
        no longer has are left out.
        """
        place = first_id(number)
        for fact in facts:
            rows, table = fact.rows, fact.put or fact.drop
            if table not in self._columns:
                continue
            if fact.drop:
                keys = keys_of(self._schema, table)
                sql = f"delete from {table} where {' and '.join(f'{k} = ?' for k in keys)}"
                self._db.executemany(sql, [[row[k] for k in keys] for row in rows])
                continue
            if (translate := self._schema.row_translators.get(table)) is not None:
                rows = [dict(translate(row)) for row in rows]
            if table in self._schema.reset_columns:
                rows = [{**row, **self._schema.reset_columns[table]} for row in rows]
            if table in self._schema.numbered_tables:
                rows = [{"id": place + i, **row} for i, row in enumerate(rows)]
                place += len(rows)
            for names, alike in itertools.groupby(rows, tuple):
                sql, columns = self._put_sql(table, names)
                if columns == names:
                    self._db.executemany(sql, [tuple(row.values()) for row in alike])
                else:
                    self._db.executemany(sql, [[row[name] for name in columns] for row in alike])

    def _made_sql(self, table: str, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        names_known = tuple(name for name in names if name in self._columns[table])
        marks = ", ".join("?" * len(names_known))
        columns = ", ".join(f'"{name}"' for name in names_known)
        return f"insert or replace into {table} ({columns}) values ({marks})", names_known


_columns: dict[tuple[str, ...], Mapping[str, Mapping[str, int]]] = {}


def columns_of(schema: Schema) -> Mapping[str, Mapping[str, int]]:
    """The columns of each table, with their place in the key (0: not in the key)."""
    tables = _columns.get(schema.statements)
    if tables is None:
        with contextlib.closing(open_memory(schema)) as db:
            tables = {
                table: {row["name"]: row["pk"] for row in db.execute(f"pragma table_info({table})")}
                for table in tables_of(db)
            }
        _columns[schema.statements] = tables
    return tables


def keys_of(schema: Schema, table: str) -> list[str]:
    """The columns of the table's key."""
    places = columns_of(schema)[table]
    return sorted((name for name, place in places.items() if place), key=lambda n: places[n])


def first_id(number: int) -> int:
    """The id of the first ``numbered`` row in line ``number`` of the journal."""
    return number << _NUMBERED


def least(db: sqlite3.Connection, schema: Schema) -> int:
    """The least possible number of the last line. The next line gets a greater number: no number is
    used twice, and the ids of its rows are above all existing ids.
    """
    tops = [db.execute(f"select max(id) from {t}").fetchone()[0] for t in schema.numbered_tables]
    least = max((top >> _NUMBERED for top in tops if top is not None), default=0)
    return max(number_of(db), int(least))


def tables_of(db: sqlite3.Connection) -> list[str]:
    """The tables by name."""
    rows = db.execute("select name from sqlite_master where type = 'table' order by name")
    return [row[0] for row in rows if not row[0].startswith("sqlite_")]


def to_json(value: object) -> str:
    """Any of our values as JSON text."""
    return msgspec.json.encode(value).decode()


def fact_row(row: sqlite3.Row | Mapping[str, Any]) -> dict[str, Any]:
    """The row in the form of a fact of the journal."""
    return {
        name: _INFINITE if value == math.inf else value
        for name, value in zip(row.keys(), tuple(row), strict=True)
    }


def key_of(schema: Schema, table: str, row: Mapping[str, Any]) -> tuple[object, ...]:
    """The table and the key of a row; the table alone if the view assigns the row's id."""
    has_key = table in columns_of(schema) and table not in schema.numbered_tables
    return (table, *(row.get(key) for key in keys_of(schema, table))) if has_key else (table,)


def row_like(
    db: sqlite3.Connection, schema: Schema, table: str, row: Mapping[str, Any]
) -> dict[str, Any]:
    """The existing row with the key of ``row``; empty if there is none."""
    keys = [] if table in schema.numbered_tables else keys_of(schema, table)
    where = " and ".join(f"{key} = ?" for key in keys) or "0"
    rows = db.execute(f"select * from {table} where {where}", [row[key] for key in keys])
    return next((fact_row(match) for match in rows), {})


def copied(
    source: sqlite3.Connection, target: sqlite3.Connection, schema: Schema, since: float
) -> None:
    """Copy all tables to an empty view; of ``recent_rows`` only rows not before ``since``."""
    with transaction(target):
        for table, columns in columns_of(schema).items():
            where = schema.recent_rows.get(table, "")
            rows = source.execute(
                f"select * from {table} {where}", {"since": since} if where else {}
            )
            marks = ", ".join("?" * len(columns))
            target.executemany(f"insert into {table} values ({marks})", map(tuple, rows))


def rows_of(db: sqlite3.Connection, schema: Schema) -> Iterator[Fact]:
    """The facts with which a new segment begins."""
    for table in tables_of(db):
        if table in schema.unjournaled_tables:
            continue
        chunk: list[dict[str, Any]] = []
        for row in db.execute(f"select * from {table}"):
            chunk.append(fact_row(row))
            if len(chunk) == _AT_ONCE:
                yield Fact(put=table, rows=chunk)
                chunk = []
        if chunk:
            yield Fact(put=table, rows=chunk)


def begin_of(db: sqlite3.Connection, schema: Schema) -> Begin:
    """The head of a segment of these rows."""
    tables = [table for table in tables_of(db) if table not in schema.unjournaled_tables]
    rows = sum(db.execute(f"select count(*) from {table}").fetchone()[0] for table in tables)
    return Begin(memory=schema.name, schema=schema.version, rows=rows)


def filled(
    db: sqlite3.Connection, schema: Schema, journal: Journal
) -> tuple[Position, list[Damage]]:
    """Apply the whole journal to an empty view; return its end and its damages.

    If the first rows of the newest segment are damaged, the one before it is applied first.
    """
    segments = journal.segments()
    try:
        return _filled(db, schema, journal, segments)
    except FileNotFoundError:
        if journal.segments()[:1] == segments[:1]:
            raise
    return filled(db, schema, journal)  # a writer began a segment and deleted an old one


def _filled(
    db: sqlite3.Connection, schema: Schema, journal: Journal, segments: Sequence[int]
) -> tuple[Position, list[Damage]]:
    start = segments[-1]
    if len(segments) > 1 and not _begins_whole(journal, start):
        before = journal.first(segments[-2])
        # Another origin: a backup was restored, so older segments are of another journal.
        if before is not None and before.origin == journal.newest_head().origin:
            start = segments[-2]
    damages: list[Damage] = []
    end = Position(segments[-1], 0, 0)
    filler = Filler(db, schema)
    with transaction(db):
        for line, end in journal.lines(Position(start), damages):
            if line is None:
                continue
            if line.begin is not None:
                require_known(line.begin.schema, journal.path(end.segment), schema)
            filler.facts(line.facts, line.n)
    return past_damage(end, damages, journal), damages


def past_damage(end: Position, damages: Sequence[Damage], journal: Journal) -> Position:
    """The position after damaged lines at the end of the newest segment, which stay in the file.
    Half a line is not skipped: no finished write has reported it, so the next write replaces it.
    """
    newest = max(journal.segments(), default=end.segment)
    end = max(end, Position(newest, 0, end.number))
    for damage in damages:
        if damage.path == journal.path(newest) and not damage.torn:
            end = max(end, end._replace(offset=damage.end))
    return end


def _begins_whole(journal: Journal, segment: int) -> bool:
    """Whether each of the rows that the segment begins with can be read."""
    head = None
    rows_read = 0
    for content, _, whole in journal.read(segment):
        line = read_line(content) if whole else None
        if line is None:
            return False
        if head is None and line.begin is None:
            return False
        head = line.begin or head
        rows_read += sum(len(fact.rows) for fact in line.facts)
        if head is not None and rows_read >= head.rows:
            return True
    return False


def made_anew(path: Path, schema: Schema, journal: Journal) -> tuple[Position, list[Damage]]:
    """Rebuild the view at ``path`` from the journal; it replaces an existing file."""
    owner = writing.owner_in(path.absolute().parent)
    with writing.draft(path, mode=statedir.FILE, owner=owner) as draft:
        with contextlib.closing(connect(draft)) as db:
            db.execute("pragma synchronous = off")
            db.execute("pragma auto_vacuum = full")
            _create(db, schema)
            filled_to = filled(db, schema, journal)
            set_number(db, filled_to[0].number)
        for beside in ("-wal", "-shm"):  # else sqlite applies their old pages to the new file
            path.with_name(path.name + beside).unlink(missing_ok=True)
        os.replace(draft, path)
    return filled_to
