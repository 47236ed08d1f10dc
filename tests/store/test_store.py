"""What the files of both services have in common: one transaction at a time, shared syncs, modes."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.ckptstate import SCHEMA as CHECKPOINTS
from slurm_elastic.errors import ConfigError, SlurmElasticError
from slurm_elastic.ledger.schema import LEDGER
from slurm_elastic.store.files import (
    BUSY_TIMEOUT,
    Schema,
    open_memory,
    open_reader,
    open_writer,
    wait_as_usual,
)
from slurm_elastic.store.store import Store, Write, transaction

NOTES = Schema("notes", "the test", (("create table notes (text text not null)",),))
INSERT = "insert into notes (text) values (?)"


class Notes(Store):
    def note(self, *texts: object) -> None:
        self._write([(INSERT, (text,)) for text in texts])

    def all(self) -> list[str]:
        return [row["text"] for row in self._select("select text from notes")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notes.db"


@pytest.fixture
def notes(path: Path) -> Iterator[Notes]:
    made = Notes(open_writer(path, NOTES))
    yield made
    made.close()


def test_who_waited_a_moment_only_waits_as_usual_again() -> None:
    connection = sqlite3.connect(":memory:", timeout=0.1)
    wait_as_usual(connection)
    (found,) = connection.execute("pragma busy_timeout").fetchone()
    connection.close()
    assert found == BUSY_TIMEOUT * 1000


def test_writes_of_many_threads_are_all_there_and_share_transactions(notes: Notes) -> None:
    begun = []
    notes._db.set_trace_callback(lambda sql: begun.append(sql) if "begin" in sql else None)
    gate = threading.Barrier(16)

    def write(number: int) -> None:
        gate.wait(60)
        notes.note(f"{number} a", f"{number} b")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(16)]
    with notes._lock:  # so that some have to wait, and go together
        for thread in threads:
            thread.start()
        while len(notes._tickets) < 16:
            pass
    for thread in threads:
        thread.join(60)
    assert sorted(notes.all()) == sorted(f"{n} {x}" for n in range(16) for x in "ab")
    assert len(begun) == 1


def test_one_that_fails_is_told_to_all_who_shared_it_and_nothing_stays(notes: Notes) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        notes.note("first", None)
    assert notes.all() == []
    notes.note("second")
    assert notes.all() == ["second"]


def test_an_error_inside_takes_back_what_was_written(notes: Notes) -> None:
    def half() -> None:
        with notes._transaction() as db:
            db.execute(INSERT, ("half",))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert notes.all() == []


def test_a_transaction_that_sqlite_has_ended_itself_fails_with_its_own_error(path: Path) -> None:
    db = open_writer(path, NOTES)

    def ended() -> None:
        with transaction(db):
            db.execute("rollback")  # as sqlite does where the disk is full
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ended()
    db.close()


@pytest.mark.parametrize("schema", [LEDGER, CHECKPOINTS], ids=lambda schema: str(schema.name))
@pytest.mark.parametrize("back", [0, 1])
def test_a_file_of_an_earlier_release_is_brought_up_to_date(
    tmp_path: Path, schema: Schema, back: int
) -> None:
    file = tmp_path / "x.db"
    before = Schema(schema.name, schema.maker, schema.migrations[: len(schema.migrations) - back])
    open_writer(file, before).close()
    if back:
        with pytest.raises(SlurmElasticError, match="brings it up to date when it starts"):
            open_reader(file, schema)
    db = open_writer(file, schema)
    assert shape(db) == shape(open_memory(schema))
    assert file.stat().st_mode & 0o777 == 0o600
    db.close()


def shape(db: sqlite3.Connection) -> list[tuple[str, str]]:
    rows = db.execute("select name, sql from sqlite_master where sql is not null order by name")
    return [(row["name"], " ".join(row["sql"].split())) for row in rows]


def test_a_file_of_a_later_release_is_left_alone(path: Path) -> None:
    later = Schema("notes", "the test", (*NOTES.migrations, ("create table more (x)",)))
    open_writer(path, later).close()
    with pytest.raises(ConfigError, match="has schema 2, this release knows schemas up to 1"):
        open_writer(path, NOTES)


def test_nothing_to_write_begins_nothing(notes: Notes) -> None:
    begun: list[str] = []
    notes._db.set_trace_callback(begun.append)
    nothing: list[Write] = []
    notes._write(nothing)
    assert begun == []
