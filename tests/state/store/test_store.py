"""The files of both services: one transaction at a time, shared syncs, modes."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
from held import held
from msgspec.structs import replace
from patience import patience

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.state.store.disk import Disk
from slurm_elastic.state.store.journal import Fact
from slurm_elastic.state.store.store import KeyedTable, Reader, Store, Table
from slurm_elastic.state.store.view import Schema, transaction

NOTES = Schema(
    name="notes", maker="the test", version=1,
    statements=("create table notes (text text primary key, other text) without rowid",),
)  # fmt: skip
LATER = replace(NOTES, version=2, statements=(*NOTES.statements, "create table more (x)"))
INSERT = "insert into notes (text) values (?)"


class Notes(Store):
    tables_read: ClassVar[Mapping[str, Table]] = {}

    def __init__(self, path: Path, *, read_only: bool = False, schema: Schema = NOTES) -> None:
        home = (Reader if read_only else Disk)(path, schema)
        super().__init__(home, schema, tables=self.tables_read)

    def note(self, *texts: object) -> None:
        self._write(*(Fact(put="notes", rows=[{"text": text}]) for text in texts))

    def all(self) -> list[str]:
        return [row["text"] for row in self.select("select text from notes")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notes.db"


@pytest.fixture
def notes(path: Path) -> Iterator[Notes]:
    made = Notes(path)
    yield made
    made.close()


def test_writes_of_many_threads_are_all_there_and_share_transactions(notes: Notes) -> None:
    begun = []
    notes._db.set_trace_callback(lambda sql: begun.append(sql) if "begin" in sql else None)
    gate = threading.Barrier(16)

    def write(number: int) -> None:
        gate.wait(60)
        notes.note(f"{number} a", f"{number} b")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(16)]
    with notes.lock:  # so that some have to wait, and go together
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
        with notes.transaction() as db:
            db.execute(INSERT, ("half",))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert notes.all() == []


def test_a_transaction_that_sqlite_has_ended_itself_fails_with_its_own_error(path: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)

    def ended() -> None:
        with transaction(db):
            db.execute("rollback")  # as sqlite does where the disk is full
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ended()
    db.close()


def test_a_file_of_a_later_release_is_left_alone(path: Path) -> None:
    Notes(path, schema=LATER).close()
    with pytest.raises(ConfigError, match="has schema 2, this release knows schemas up to 1"):
        Notes(path)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_journal_of_a_later_release_is_left_alone_without_its_file(
    path: Path, *, read_only: bool
) -> None:
    later = Notes(path, schema=LATER)
    later.note("one")
    later.close()
    path.unlink()
    before = journal_files(path)
    with pytest.raises(ConfigError, match="install the newer slurm-elastic again") as refused:
        Notes(path, read_only=read_only)
    assert "notes-000001.jsonl has schema 2, this release knows schemas up to 1" in str(
        refused.value
    )
    assert (path.exists(), journal_files(path), held(path.parent)) == (False, before, [])
    again = Notes(path, schema=LATER)
    assert again.all() == ["one"]
    again.close()


def journal_files(path: Path) -> dict[str, bytes]:
    """The content of each segment of the journal, by its name."""
    files = (path.parent / "journal").glob("*.jsonl")
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize(
    ("there", "read_only", "error"),
    [(True, False, ConfigError), (True, True, ConfigError), (False, True, SlurmElasticError)],
)
def test_one_that_is_of_no_use_is_not_kept_open(
    path: Path, *, there: bool, read_only: bool, error: type[Exception]
) -> None:
    if there:
        Notes(path, schema=LATER).close()
    with pytest.raises(error) as caught:
        Notes(path, read_only=read_only)
    assert held(path.parent) == [], caught.value


def test_making_one_leaves_no_draft_and_nothing_open_whatever_the_umask(path: Path) -> None:
    before = os.umask(0o277)
    try:
        Notes(path).close()
    finally:
        os.umask(before)
    found = {one.name: one.stat().st_mode & 0o777 for one in path.parent.rglob("*.*")}
    assert found == dict.fromkeys(("notes.db", "notes.applied", "notes-000001.jsonl"), 0o600)
    assert held(path.parent) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_one_that_root_makes_belongs_to_its_directorys_owner(path: Path) -> None:
    os.chown(path.parent, 64030, 64031)
    Notes(path).close()
    assert {(p.stat().st_uid, p.stat().st_gid) for p in path.parent.rglob("*")} == {(64030, 64031)}


def test_a_directory_is_synced_and_let_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    writing.sync_directory(path.parent)
    assert synced == [str(path.parent)]
    assert held(path.parent) == []
    writing.sync_directory(path.parent / "left")


def test_a_closed_one_may_be_closed_again(path: Path) -> None:
    made = Notes(path)
    made.close()
    assert held(path.parent) == []
    made.close()


def test_it_is_not_closed_in_the_middle_of_what_another_thread_does(notes: Notes) -> None:
    closes = threading.Thread(target=notes.close)
    with notes.transaction(None) as db:
        closes.start()
        closes.join(0.2)
        db.execute(INSERT, ("a",))
    closes.join(patience(10))
    assert not closes.is_alive()


def test_a_write_of_one_statement_needs_no_transaction_of_ours(notes: Notes) -> None:
    asked: list[str] = []
    notes._db.set_trace_callback(asked.append)
    notes.note("a")
    assert [sql.split()[0].lower() for sql in asked] == ["insert", "pragma"]


def test_one_that_cannot_go_on_in_memory_has_no_trouble_to_tell_of(notes: Notes) -> None:
    notes.look_after()
    assert (notes.trouble, notes.trouble_since) == (None, 0.0)


def test_nothing_to_write_begins_nothing(notes: Notes) -> None:
    begun: list[str] = []
    notes._db.set_trace_callback(begun.append)
    notes._write()
    assert begun == []


class Remembering(Notes):
    tables_read: ClassVar[Mapping[str, Table]] = {
        "notes": ("select text from notes order by text", lambda row: row["text"])
    }

    def known(self) -> tuple[str, ...]:
        return self.tables("notes")[0]


@pytest.fixture
def one(path: Path) -> Iterator[Remembering]:
    with closing(Remembering(path)) as made:
        yield made


@pytest.fixture
def other(path: Path, one: Remembering) -> Iterator[Notes]:
    with closing(Notes(path)) as made:
        yield made


def test_after_a_write_that_failed_the_file_is_read_anew(one: Remembering, other: Notes) -> None:
    one.refresh()
    assert one.known() == ()
    other.note("a")
    with pytest.raises(sqlite3.IntegrityError):
        one.note(None)
    assert one.known() == ("a",)


def test_what_was_read_in_a_transaction_that_failed_is_not_remembered(path: Path) -> None:
    keyed = {"notes": KeyedTable(table="notes", value=lambda row: row["text"])}
    with closing(Store(Disk(path, NOTES), NOTES, keyed=keyed)) as store:
        store.refresh()

        def writes() -> None:
            with store.transaction(None):
                store.change(INSERT, "a")
                assert store.by_key("notes") == {"a": "a"}
                raise RuntimeError

        with pytest.raises(RuntimeError):
            writes()
        assert store.by_key("notes") == {}


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
    one.execute("notes", INSERT, "d")
    one.known()
    one.execute(None, INSERT, "e")
    assert one.known() == ("a", "b", "c", "d"), "it said that it changes nothing"
    one.execute("notes", INSERT, "f")
    assert one.known() == ("a", "b", "c", "d", "e", "f")


def test_in_a_transaction_a_table_has_what_others_have_written_by_then(
    one: Remembering, other: Notes
) -> None:
    one.refresh()
    assert one.known() == ()
    other.note("a")
    with one.transaction("notes"):
        assert one.known() == ("a",)


def test_in_a_transaction_a_table_has_what_a_killed_process_has_appended(
    one: Remembering, path: Path
) -> None:
    one.refresh()
    assert one.known() == ()
    with closing(Disk(path, NOTES)) as other, other.turn():
        fact = Fact(put="notes", rows=[{"text": "a"}])
        other.journal.append(other.position, [[fact]], 1.0)
    with one.transaction("notes"):
        assert one.known() == ("a",)


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
        with one.transaction("notes") as db:
            db.execute(INSERT, ("half",))
            assert one.known() == ("half",)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert one.known() == ()


def test_several_writes_together_are_all_there_or_none(one: Remembering, other: Notes) -> None:
    one.refresh()
    with one.transaction():
        one.execute("notes", INSERT, "a")
        with one.transaction("notes") as db:
            db.execute(INSERT, ("b",))
        assert other.all() == []
    assert other.all() == ["a", "b"]
    assert one.known() == ("a", "b")

    def broken() -> None:
        with one.transaction():
            one.execute("notes", INSERT, "c")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert other.all() == ["a", "b"]
    assert one.known() == ("a", "b")


NOTHING = "delete from notes where false"


def test_what_a_write_came_to_is_remembered_outside_of_transactions_alone(
    one: Remembering,
) -> None:
    one.passing("notes", NOTHING, rows=("x",))
    assert one.known() == (), "before the first pass"
    one.refresh()
    with one.transaction():
        one.passing("notes", NOTHING, rows=("x",))
    assert one.known() == ()
    one.passing("notes", NOTHING, rows=("x",))
    assert one.known() == ("x",)


def test_of_a_view_that_was_made_anew_nothing_is_remembered(one: Remembering, path: Path) -> None:
    one.refresh()
    one.note("a")
    assert one.known() == ("a",)
    one._memory["notes"] = ("wrong",)
    path.unlink()
    one.refresh()
    assert one.known() == ("a",)


# reading alone


def test_a_reader_of_no_file_is_told_who_makes_it(path: Path) -> None:
    with pytest.raises(SlurmElasticError) as caught:
        Notes(path, read_only=True)
    assert str(caught.value) == f"there is no notes at {path}; the test makes it when it starts"
    assert not path.exists()


def test_a_reader_of_an_older_file_is_told_who_makes_it_anew_and_lets_it_go(path: Path) -> None:
    Notes(path).close()
    shutil.rmtree(path.parent / "journal")
    with pytest.raises(SlurmElasticError) as caught:
        Notes(path, read_only=True, schema=LATER)
    assert str(caught.value) == (
        f"an older one is notes at {path}; the test makes it when it starts"
    )
    assert held(path.parent) == []


def test_what_is_read_from_a_journal_alone_cannot_be_written_either(path: Path) -> None:
    with closing(Notes(path)) as made:
        made.note("a")
    path.unlink()
    with closing(Notes(path, read_only=True)) as reader:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.note("b")
        assert reader.all() == ["a"]


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
    with closing(Notes(path)) as made:
        made.note("a")
    opened(anyones)
    assert read_as_nobody(path) == "a"
    path.with_name("notes.db-wal").write_bytes(b"x" * 64)
    path.with_name("notes.db-wal").chmod(0o600)
    assert read_as_nobody(path) == "OperationalError"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be nobody")
@pytest.mark.parametrize(("there", "error"), [(True, "ConfigError"), (False, "SlurmElasticError")])
def test_a_file_of_another_release_is_not_read_there_either(
    anyones: Path, *, there: bool, error: str
) -> None:
    if there:
        Notes(anyones / "notes.db", schema=LATER).close()
        opened(anyones)
    assert read_as_nobody(anyones / "notes.db") == error


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be nobody")
def test_a_view_that_cannot_be_believed_is_read_from_its_journal(anyones: Path) -> None:
    path = anyones / "notes.db"
    with closing(Notes(path)) as made:
        made.note("a")
    path.write_bytes(b"not a database, but long enough" * 99)
    opened(anyones)
    assert read_as_nobody(path) == "a"
    path.unlink()
    assert read_as_nobody(path) == "a"


def opened(place: Path) -> None:
    for one in place.rglob("*"):
        one.chmod(0o755 if one.is_dir() else 0o644)


def read_as_nobody(path: Path) -> str:
    """By a process that may write nothing there."""
    code = (
        "import os, sqlite3, sys; from pathlib import Path\n"
        "from slurm_elastic.base.errors import SlurmElasticError\n"
        "from slurm_elastic.state.store.store import Reader\n"
        "from slurm_elastic.state.store.view import Schema\n"
        f"schema = Schema(name='notes', maker='the test', version=1, "
        f"statements={NOTES.statements!r})\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    print(*(row[0] for row in Reader(Path(sys.argv[1]), schema).db.execute("
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
