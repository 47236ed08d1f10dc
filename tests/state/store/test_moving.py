"""Rows on their way from a file into memory and back."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from slurm_elastic.state.store import files
from slurm_elastic.state.store.moving import KEPT, Rows, Table, copied, merge, past, put, walk

SCHEMA = files.Schema(
    "notes", "nobody",
    (("create table notes (id text primary key, paid real, ended real)",
      "create table known (cloud text primary key)"),),
)  # fmt: skip
NOW = 1_800_000_000.0


def reader(row: sqlite3.Row) -> object:
    if row["paid"] == 13:
        raise ValueError("unlucky")
    return row


NOTES = Table(name="notes", keys=("id",), reader=reader, past="ended is not null",
              where="where (ended is null or ended >= :since)")  # fmt: skip
KNOWN = Table(name="known", keys=("cloud",), doubted=True)
TABLES = (NOTES, KNOWN)


@pytest.fixture
def file() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(files.open_memory(SCHEMA)) as made:
        made.execute("insert into known values ('aws')")
        yield made


@pytest.fixture
def memory() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(files.open_memory(SCHEMA)) as made:
        yield made


def note(db: sqlite3.Connection, *rows: tuple[str, float, float | None]) -> None:
    db.executemany("insert or replace into notes values (?, ?, ?)", rows)


def notes(db: sqlite3.Connection) -> list[tuple[object, ...]]:
    return [tuple(row) for row in db.execute("select * from notes order by id")]


def test_what_matters_still_is_copied_whole(file: sqlite3.Connection) -> None:
    note(file, ("a", 1, None), ("b", 2, NOW - KEPT), ("c", 3, NOW - KEPT - 1))
    rows, whole = copied(file, TABLES, NOW, 5)
    assert whole
    assert rows == {
        "notes": {("a",): ("a", 1, None), ("b",): ("b", 2, NOW - KEPT)},
        "known": {("aws",): ("aws",)},
    }
    assert file.execute("pragma busy_timeout").fetchone()[0] == 5


def test_without_one_row_what_is_in_doubt_then_does_not_count(file: sqlite3.Connection) -> None:
    note(file, ("a", 1, None), ("b", 13, None))
    rows, whole = copied(file, TABLES, NOW, 5)
    assert not whole
    assert rows == {"notes": {("a",): ("a", 1, None)}, "known": {}}


def test_a_table_that_cannot_be_read_costs_no_other(file: sqlite3.Connection) -> None:
    note(file, ("a", 1, None))
    gone = Table(name="gone", keys=("id",))
    rows, whole = copied(file, (gone, NOTES), NOW, 5)
    assert (rows, whole) == ({"gone": {}, "notes": {("a",): ("a", 1, None)}}, False)


def test_of_a_connection_that_is_closed_nothing_is_copied() -> None:
    closed = sqlite3.connect(":memory:")
    closed.close()
    assert copied(closed, TABLES, NOW, 5) == ({}, False)


def test_of_an_older_copy_only_what_nothing_changes_any_more_counts(
    file: sqlite3.Connection,
) -> None:
    note(file, ("a", 1, None), ("b", 2, NOW), ("c", 13, NOW), ("d", 2, NOW - KEPT - 1))
    assert past(file, TABLES, NOW) == {"notes": {("b",): ("b", 2, NOW)}}


def test_a_walk_meets_what_cannot_be_read(file: sqlite3.Connection) -> None:
    note(file, ("a", 13, None))
    walk(file, TABLES, NOW)
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        walk(file, (*TABLES, Table(name="gone", keys=("id",))), NOW)


def test_rows_take_the_place_of_those_of_the_same_key_or_none_does(
    memory: sqlite3.Connection,
) -> None:
    note(memory, ("a", 1, None))
    put(memory, {"notes": {("a",): ("a", 2, None), ("b",): ("b", 3, NOW)}})
    assert notes(memory) == [("a", 2, None), ("b", 3, NOW)]
    with pytest.raises(sqlite3.OperationalError):
        put(memory, {"notes": {("a",): ("a", 9, None)}, "gone": {("x",): ("x",)}})
    assert notes(memory) == [("a", 2, None), ("b", 3, NOW)]


HAD: Rows = {"notes": {(n,): (n, 1.0, None) for n in "abc"}}


@pytest.mark.parametrize(
    ("in_memory", "in_file", "newer", "after"),
    [
        # As it was on both sides.
        ([("a", 1, None)], [("a", 1, None)], (), [("a", 1, None)]),
        # Changed in memory, deleted there, new there.
        ([("a", 5, None)], [("a", 1, None), ("b", 1, None)], (), [("a", 5, None)]),
        ([("x", 1, None)], [], (), [("x", 1, None)]),
        # Another process wrote meanwhile: what memory has not changed is the file's.
        ([("a", 1, None), ("b", 1, None), ("c", 1, None)], [("a", 7, None), ("z", 1, None)], (),
         [("a", 7, None), ("z", 1, None)]),
        # A row that memory never had: the file knows more of it, but for what is newer.
        ([("x", 1, NOW)], [("x", 9, None)], (), [("x", 9, None)]),
        ([("x", 1, NOW)], [("x", 9, None)], ("ended",), [("x", 9, NOW)]),
        ([("x", 1, None)], [("x", 9, NOW)], ("ended",), [("x", 9, NOW)]),
        ([("a", 1, None), ("x", 1, NOW)], [("a", 1, None), ("y", 9, None)], ("ended",),
         [("a", 1, None), ("x", 1, NOW), ("y", 9, None)]),
    ],
)  # fmt: skip
def test_what_memory_changed_goes_into_the_file(
    file: sqlite3.Connection,
    memory: sqlite3.Connection,
    in_memory: list[tuple[str, float, float | None]],
    in_file: list[tuple[str, float, float | None]],
    newer: tuple[str, ...],
    after: list[tuple[str, float, float | None]],
) -> None:
    note(memory, *in_memory)
    note(file, *in_file)
    merge(memory, file, (replace(NOTES, newer=newer), KNOWN), HAD)
    assert notes(file) == after
    assert file.execute("select count(*) from known").fetchone()[0] == 1


def test_the_rest_goes_in_the_same_transaction(
    file: sqlite3.Connection, memory: sqlite3.Connection
) -> None:
    note(memory, ("x", 1, None))

    def fails(_: sqlite3.Connection, to: sqlite3.Connection) -> None:
        note(to, ("y", 1, None))
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(sqlite3.OperationalError):
        merge(memory, file, TABLES, {}, fails)
    assert notes(file) == []
    merge(memory, file, TABLES, {}, lambda _, to: note(to, ("y", 1, None)))
    assert notes(file) == [("x", 1, None), ("y", 1, None)]
