"""Rows that came or were over since the last copy of a file: written at once, read back one by one."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.base import writing
from slurm_elastic.state.store import files
from slurm_elastic.state.store import lately as module
from slurm_elastic.state.store.lately import Lately
from slurm_elastic.state.store.moving import Table

SCHEMA = files.Schema(
    "notes", "nobody", (("create table notes (id text primary key, paid real, ended real)",),)
)
TABLES = (Table(name="notes", keys=("id",), past="ended is not null", turns=("ended",),
                where="where (ended is null or ended >= :since)"),)  # fmt: skip


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    made = files.open_writer(tmp_path / "notes.db", SCHEMA)
    yield made
    made.close()


@pytest.fixture
def lately(tmp_path: Path, db: sqlite3.Connection) -> Lately:
    made = Lately(tmp_path / "notes.db", SCHEMA, TABLES)
    made.watch(db)
    return made


def lines(tmp_path: Path) -> list[bytes]:
    path = tmp_path / "notes.db.lately"
    return [line for line in path.read_bytes().split(b"\n") if line] if path.exists() else []


def restored(tmp_path: Path, copy: dict[str, object] | None = None) -> dict[object, object]:
    rows = Lately(tmp_path / "notes.db", SCHEMA, TABLES).restored(
        {"notes": {(k,): v for k, v in (copy or {}).items()}},  # type: ignore[misc]
        100.0,
    )
    return {key[0]: row for key, row in rows.get("notes", {}).items()}


def test_new_rows_and_ends_are_read_back(
    tmp_path: Path, db: sqlite3.Connection, lately: Lately
) -> None:
    db.execute("insert into notes values ('a', 1, null), ('b', 2, null)")
    lately.write(db)
    db.execute("update notes set ended = 50 where id = 'a'")
    db.execute("update notes set paid = 9 where id = 'b'")
    lately.write(db)
    lately.write(db)
    assert len(lines(tmp_path)) == 3, "no line for what neither came nor ended, and none twice"
    assert restored(tmp_path) == {"a": ("a", 1.0, 50.0), "b": ("b", 2.0, None)}
    assert stat.S_IMODE((tmp_path / "notes.db.lately").stat().st_mode) == 0o600


def test_a_row_under_another_key_is_not_there_twice(
    tmp_path: Path, db: sqlite3.Connection, lately: Lately
) -> None:
    db.execute("insert into notes values ('a', 1, null)")
    lately.write(db)
    db.execute("update notes set id = 'b'")
    lately.write(db)
    assert restored(tmp_path) == {"b": ("b", 1.0, None)}


def test_a_line_that_was_cut_off_or_makes_no_sense_costs_no_other(
    tmp_path: Path, db: sqlite3.Connection, lately: Lately
) -> None:
    db.execute("insert into notes values ('a', 1, null)")
    lately.write(db)
    with (tmp_path / "notes.db.lately").open("ab") as file:
        file.write(b'\n[]\n{"table": "notes", "key": ["z"], "row": {"other": 1}}\n{"table": "no')
    db.execute("insert into notes values ('b', 2, 3)")
    lately.write(db)
    assert restored(tmp_path) == {"a": ("a", 1.0, None), "b": ("b", 2.0, 3.0)}


def test_after_a_copy_it_begins_anew(
    tmp_path: Path, db: sqlite3.Connection, lately: Lately
) -> None:
    db.execute("insert into notes values ('a', 1, null)")
    lately.write(db)
    lately.forget()
    assert lines(tmp_path) == []
    assert restored(tmp_path, {"a": ("a", 1.0, 4.0)}) == {"a": ("a", 1.0, 4.0)}


def test_a_line_that_outlived_its_copy_opens_nothing_that_is_over(
    tmp_path: Path, db: sqlite3.Connection, lately: Lately
) -> None:
    """The power failed before the disk had the shorter file."""
    db.execute("insert into notes values ('a', 1, null), ('b', 1, 7)")
    lately.write(db)
    assert restored(tmp_path, {"a": ("a", 1.0, 4.0)}) == {
        "a": ("a", 1.0, 4.0), "b": ("b", 1.0, 7.0)
    }  # fmt: skip


def test_what_a_full_disk_did_not_take_is_written_the_next_time(
    tmp_path: Path, db: sqlite3.Connection, lately: Lately, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    db.execute("insert into notes values ('a', 1, null)")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        lately.write(db)
    assert restored(tmp_path) == {}
    lately.write(db)
    assert restored(tmp_path) == {"a": ("a", 1.0, None)}


def test_what_was_taken_back_is_not_told(
    tmp_path: Path, db: sqlite3.Connection, lately: Lately
) -> None:
    with contextlib.suppress(RuntimeError), db:
        db.execute("begin")
        db.execute("insert into notes values ('a', 1, null)")
        raise RuntimeError
    lately.write(db)
    assert restored(tmp_path) == {}


def test_a_disk_that_takes_some_bytes_at_a_time_gets_them_all(
    tmp_path: Path, db: sqlite3.Connection, lately: Lately, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.write
    db.execute("insert into notes values ('a', 1, null)")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda file, data: whole(file, data[:7]))
        lately.write(db)
    assert restored(tmp_path) == {"a": ("a", 1.0, None)}


def test_lines_that_cannot_be_read_are_told_and_the_copy_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert restored(tmp_path, {"a": ("a", 1.0, 4.0)}) == {"a": ("a", 1.0, 4.0)}
    assert caplog.messages == [], "there are none"
    (tmp_path / "notes.db.lately").mkdir()
    assert restored(tmp_path, {"a": ("a", 1.0, 4.0)}) == {"a": ("a", 1.0, 4.0)}
    (told,) = caplog.messages
    assert told.startswith("what has changed since the last copy is not known: ")


def test_a_row_that_is_gone_is_told_as_gone(
    tmp_path: Path, db: sqlite3.Connection, lately: Lately
) -> None:
    db.execute("insert into notes values ('a', 1, null), ('b', 1, null)")
    lately.write(db)
    db.execute("update notes set ended = 9 where id = 'a'")
    db.execute("delete from notes where id = 'a'")
    lately.write(db)
    assert restored(tmp_path) == {"b": ("b", 1.0, None)}


def test_what_a_copy_has_is_not_written_down_after_it(
    tmp_path: Path, db: sqlite3.Connection, lately: Lately
) -> None:
    db.execute("insert into notes values ('a', 1, null)")
    lately.forget()
    lately.write(db)
    assert lines(tmp_path) == []


def test_no_file_stays_open(tmp_path: Path, db: sqlite3.Connection, lately: Lately) -> None:
    db.execute("insert into notes values ('a', 1, null)")
    lately.write(db)
    links = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    names = [os.readlink(one) for one in links if os.path.lexists(one)]
    assert str(tmp_path / "notes.db.lately") not in names
    assert str(tmp_path) not in names


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes from which on the file is looked through."""
    monkeypatch.setattr(module, "LONG", 4000)
    return 4000


def test_while_there_is_no_copy_it_is_no_longer_than_its_rows(
    tmp_path: Path, db: sqlite3.Connection, long: int
) -> None:
    (made := Lately(tmp_path / "notes.db", SCHEMA, TABLES)).watch(db)
    path, longest = tmp_path / "notes.db.lately", 0
    path.write_bytes(b'\n[]\nno line\n{"table": "gone", "key": ["z"], "row": null}\n{"table": "no')
    for number in range(500):
        db.execute("insert into notes values (?, 1, null)", (f"passes-{number}",))
        db.execute("delete from notes where id = ?", (f"passes-{number - 1}",))
        db.execute("insert or replace into notes values ('stays', 1, ?)", (number,))
        made.write(db)
        longest = max(longest, path.stat().st_size)
        if number % 100 == 0:
            rows = {("stays", 1.0, float(number)), (f"passes-{number}", 1.0, None)}
            assert rows <= set(restored(tmp_path).values())
    assert longest < long + 1000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    made.forget()
    assert path.stat().st_size == 0


def test_rows_that_are_all_there_are_not_looked_through_at_each_write(
    tmp_path: Path, db: sqlite3.Connection, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made := Lately(tmp_path / "notes.db", SCHEMA, TABLES)).watch(db)
    syncs: list[Path] = []
    monkeypatch.setattr(writing, "sync_directory", syncs.append)
    for number in range(500):
        db.execute("insert into notes values (?, 1, null)", (f"a-{number}",))
        made.write(db)
    assert len(restored(tmp_path)) == 500
    assert 5 <= len(syncs) <= 15


def test_one_that_cannot_be_shortened_stays_and_is_read(
    tmp_path: Path,
    db: sqlite3.Connection,
    long: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (made := Lately(tmp_path / "notes.db", SCHEMA, TABLES)).watch(db)
    monkeypatch.setattr(os, "replace", full)
    for number in range(100):
        db.execute("insert or replace into notes values ('a', 1, ?)", (number,))
        made.write(db)
    assert len(lines(tmp_path)) == 100
    assert restored(tmp_path) == {"a": ("a", 1.0, 99.0)}
    assert 1 <= len(caplog.messages) < 3
    assert "stays as long as it is: [Errno 28] No space left on device" in caplog.messages[0]
    assert not (tmp_path / ".notes.db.lately").exists()


def test_it_is_looked_through_when_it_is_longer_than_that_and_not_before(
    tmp_path: Path, db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made := Lately(tmp_path / "notes.db", SCHEMA, TABLES)).watch(db)
    db.execute("insert into notes values ('a', 1, null)")
    made.write(db)
    monkeypatch.setattr(module, "LONG", 2 * (tmp_path / "notes.db.lately").stat().st_size)
    made.forget()
    for paid, kept in ((2, 1), (3, 2), (4, 1)):
        db.execute("update notes set paid = ?, ended = null where id = 'a'", (paid,))
        made.write(db)
        assert len(lines(tmp_path)) == kept


def test_the_draft_of_one_that_was_stopped_in_between_tells_nothing(
    tmp_path: Path, db: sqlite3.Connection, long: int
) -> None:
    (made := Lately(tmp_path / "notes.db", SCHEMA, TABLES)).watch(db)
    draft = tmp_path / ".notes.db.lately.abcdefgh"
    draft.write_bytes(b'\n{"table": "notes", "key": ["z"], "row": {"id": "z", "paid": 1}}')
    for number in range(100):
        db.execute("insert or replace into notes values ('a', 1, ?)", (number,))
        made.write(db)
    assert restored(tmp_path) == {"a": ("a", 1.0, 99.0)}


def test_after_a_copy_it_may_be_as_long_as_at_first(
    tmp_path: Path, db: sqlite3.Connection, long: int
) -> None:
    (made := Lately(tmp_path / "notes.db", SCHEMA, TABLES)).watch(db)
    for number in range(200):
        db.execute("insert into notes values (?, 1, null)", (f"a-{number}",))
        made.write(db)
    assert (tmp_path / "notes.db.lately").stat().st_size > 2 * long
    made.forget()
    for number in range(200):
        db.execute("insert or replace into notes values ('b', 1, ?)", (number,))
        made.write(db)
        assert (tmp_path / "notes.db.lately").stat().st_size <= long
