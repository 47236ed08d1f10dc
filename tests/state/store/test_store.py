"""The files of both services: one transaction at a time, shared syncs, modes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
from patience import patience

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.state.ckptstate import SCHEMA as CHECKPOINTS
from slurm_elastic.state.ledger.schema import LEDGER
from slurm_elastic.state.store import files
from slurm_elastic.state.store.files import (
    Schema,
    open_memory,
    open_reader,
    open_writer,
    wait_as_usual,
)
from slurm_elastic.state.store.store import Store, Table, Write, transaction

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
    assert found == 10_000, "ms"


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


def held(place: Path) -> set[str]:
    """The files below it that this process has open."""
    links = (Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
    names = {os.readlink(one) for one in links if os.path.lexists(one)}
    return {Path(name).name for name in names if name.startswith(str(place))}


@pytest.mark.parametrize(
    ("there", "open_", "error"),
    [
        (2, open_writer, ConfigError),
        (2, open_reader, ConfigError),
        (0, open_reader, SlurmElasticError),
    ],
)
def test_one_that_is_of_no_use_is_not_kept_open(
    path: Path, there: int, open_: Callable[[Path, Schema], object], error: type[Exception]
) -> None:
    migrations = (*NOTES.migrations, ("create table more (x)",))[:there]
    open_writer(path, Schema("notes", "the test", migrations)).close()
    with pytest.raises(error) as caught:
        open_(path, NOTES)
    assert held(path.parent) == set(), caught.value


def test_making_one_leaves_no_draft_and_nothing_open_whatever_the_umask(path: Path) -> None:
    before = os.umask(0o277)
    try:
        open_writer(path, NOTES).close()
    finally:
        os.umask(before)
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600
    assert held(path.parent) == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_one_that_root_makes_belongs_to_its_directorys_owner(path: Path) -> None:
    os.chown(path.parent, 64030, 64031)
    open_writer(path, NOTES).close()
    assert (path.stat().st_uid, path.stat().st_gid) == (64030, 64031)


def test_a_directory_is_synced_and_let_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    writing.sync_directory(path.parent)
    assert synced == [str(path.parent)]
    assert held(path.parent) == set()
    writing.sync_directory(path.parent / "left")


def test_each_commit_is_waited_for_on_the_disk_whatever_sqlite_does_by_itself(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = files._connect

    def lazy(uri: str, timeout: float | None = None) -> sqlite3.Connection:
        made = whole(uri, timeout)
        made.execute("pragma synchronous = off")
        return made

    monkeypatch.setattr(files, "_connect", lazy)
    with closing(open_writer(path, NOTES)) as db:
        assert db.execute("pragma synchronous").fetchone()[0] == 2, "sqlite's number of full"


def test_a_closed_one_may_be_closed_again(path: Path) -> None:
    made = Notes(open_writer(path, NOTES))
    made.close()
    assert held(path.parent) == set()
    made.close()


def test_a_write_of_one_statement_needs_no_transaction_of_ours(notes: Notes) -> None:
    asked: list[str] = []
    notes._db.set_trace_callback(asked.append)
    notes.note("a")
    assert [sql.split()[0].lower() for sql in asked] == ["insert"]


def test_nothing_to_write_begins_nothing(notes: Notes) -> None:
    begun: list[str] = []
    notes._db.set_trace_callback(begun.append)
    nothing: list[Write] = []
    notes._write(nothing)
    assert begun == []


class Remembering(Notes):
    TABLES: ClassVar[Mapping[str, Table]] = {
        "notes": ("select text from notes order by text", lambda row: row["text"])
    }

    def known(self) -> tuple[str, ...]:
        return self._tables("notes")[0]


@pytest.fixture
def one(path: Path) -> Iterator[Remembering]:
    with closing(Remembering(open_writer(path, NOTES))) as made:
        yield made


@pytest.fixture
def other(path: Path, one: Remembering) -> Iterator[Notes]:
    with closing(Notes(open_writer(path, NOTES))) as made:
        yield made


def test_after_a_write_that_failed_the_file_is_read_anew(one: Remembering, other: Notes) -> None:
    one.refresh()
    assert one.known() == ()
    other.note("a")
    with pytest.raises(sqlite3.IntegrityError):
        one.note(None)
    assert one.known() == ("a",)


def test_who_never_begins_a_pass_reads_each_time(one: Remembering, other: Notes) -> None:
    assert one.known() == ()
    other.note("a")
    assert one.known() == ("a",)


def test_in_a_pass_a_table_is_of_one_moment_but_for_ones_own_writes(
    one: Remembering, other: Notes
) -> None:
    one.refresh()
    assert one.known() == ()
    other.note("a")
    assert one.known() == ()
    one.note("b")
    assert one.known() == ("a", "b")
    other.note("c")
    one.refresh()
    assert one.known() == ("a", "b", "c")
    one._put(None, INSERT, "d")
    assert one.known() == ("a", "b", "c"), "it said that it changes nothing"
    one._put("notes", INSERT, "e")
    assert one.known() == ("a", "b", "c", "d", "e")


def test_a_pass_in_which_nobody_wrote_reads_nothing(one: Remembering) -> None:
    one.refresh()
    one.known()
    asked: list[str] = []
    one._db.set_trace_callback(asked.append)
    one.refresh()
    one.known()
    assert asked == ["pragma data_version"]


def test_what_is_read_inside_a_transaction_is_not_remembered(one: Remembering) -> None:
    one.refresh()

    def half() -> None:
        with one._transaction("notes") as db:
            db.execute(INSERT, ("half",))
            assert one.known() == ("half",)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert one.known() == ()


def test_several_writes_together_are_all_there_or_none(one: Remembering, other: Notes) -> None:
    one.refresh()
    with one.together():
        one._put("notes", INSERT, "a")
        with one._transaction("notes") as db:
            db.execute(INSERT, ("b",))
        assert other.all() == []
    assert other.all() == ["a", "b"]
    assert one.known() == ("a", "b")

    def broken() -> None:
        with one.together():
            one._put("notes", INSERT, "c")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert other.all() == ["a", "b"]
    assert one.known() == ("a", "b")


NOTHING = "delete from notes where false"


def test_what_a_write_came_to_is_remembered_outside_of_transactions_alone(
    one: Remembering,
) -> None:
    one._put("notes", NOTHING, rows=("x",))
    assert one.known() == (), "before the first pass"
    one.refresh()
    with one.together():
        one._put("notes", NOTHING, rows=("x",))
    assert one.known() == ()
    one._put("notes", NOTHING, rows=("x",))
    assert one.known() == ("x",)


def test_of_another_file_nothing_is_remembered(one: Remembering) -> None:
    one.refresh()
    one.note("a")
    assert one.known() == ("a",)
    before = one._db
    one._use(before)
    assert one._memory
    one._use(open_memory(NOTES))
    assert one.known() == ()
    before.close()


# reading alone


def test_a_reader_of_no_file_is_told_who_makes_it(path: Path) -> None:
    with pytest.raises(SlurmElasticError) as caught:
        open_reader(path, NOTES)
    assert str(caught.value) == f"there is no notes at {path}; the test makes it when it starts"
    assert not path.exists()


@pytest.fixture
def anyones() -> Iterator[Path]:
    """A directory that everybody may look into."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be nobody")
def test_a_file_is_read_where_nothing_may_be_written_beside_it(anyones: Path) -> None:
    """After a clean stop it is whole by itself; with a log beside it, it is not."""
    path = anyones / "notes.db"
    with closing(Notes(open_writer(path, NOTES))) as made:
        made.note("a")
    path.chmod(0o644)
    assert read_as_nobody(path) == "a"
    path.with_name("notes.db-wal").write_bytes(b"x" * 64)
    path.with_name("notes.db-wal").chmod(0o600)
    assert read_as_nobody(path) == "OperationalError"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be nobody")
@pytest.mark.parametrize(("there", "error"), [(2, "ConfigError"), (0, "SlurmElasticError")])
def test_a_file_of_another_release_is_not_read_there_either(
    anyones: Path, there: int, error: str
) -> None:
    path = anyones / "notes.db"
    migrations = (*NOTES.migrations, ("create table more (x)",))[:there]
    open_writer(path, Schema("notes", "the test", migrations)).close()
    path.chmod(0o644)
    assert read_as_nobody(path) == error


def read_as_nobody(path: Path) -> str:
    """By a process that may write nothing there."""
    code = (
        "import os, sqlite3, sys; from pathlib import Path\n"
        "from slurm_elastic.base.errors import SlurmElasticError\n"
        "from slurm_elastic.state.store.files import Schema, open_reader\n"
        f"schema = Schema('notes', 'the test', {NOTES.migrations!r})\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    print(*(row[0] for row in open_reader(Path(sys.argv[1]), schema).execute("
        "'select text from notes')))\n"
        "except (sqlite3.Error, SlurmElasticError) as error:\n"
        "    print(type(error).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True,
        timeout=patience(60), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
