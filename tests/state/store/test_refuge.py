"""A file that fails, the memory that stands in for it, and the way back; by one small table."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.state.store import files, refuge
from slurm_elastic.state.store.moving import Table
from slurm_elastic.state.store.refuge import Refuge, is_damaged, set_aside
from slurm_elastic.state.store.trouble import Kind

SCHEMA = files.Schema(
    "notes", "nobody", (("create table notes (id text primary key, paid real, ended real)",),)
)
TABLES = (Table(name="notes", keys=("id",), past="ended is not null", turns=("ended",),
                where="where (ended is null or ended >= :since)"),)  # fmt: skip
T0 = 1_800_000_000.0
# What people are told of it (docs, journal): how often it is looked at, and what room it takes.
AGAIN, LOOK, COPY = 10.0, 60.0, 600.0
LEAST, ENOUGH = 2**20, 4 * 2**20
STAMP = "20270115T080000Z"


class Clock:
    now = T0
    up = 50.0

    def forward(self, seconds: float) -> None:
        self.now += seconds
        self.up += seconds


class Disk:
    """How many bytes it has left."""

    left = 10**9

    def require(self, _: Path, size: int) -> None:
        if size > self.left:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(refuge, "require_room", made.require)
    monkeypatch.setattr(refuge, "SHORT", 10)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notes.db"


def opened(path: Path, clock: Clock, tables: tuple[Table, ...] = TABLES) -> Refuge:
    return Refuge(path, SCHEMA, tables, lambda: clock.now, lambda: clock.up, "away", "so what")


@pytest.fixture
def one(path: Path, clock: Clock, disk: Disk) -> Iterator[Refuge]:
    made = opened(path, clock)
    note(made, "a")
    yield made
    made.db.close()


def note(one: Refuge, name: str, ended: float | None = None) -> None:
    one.db.execute("insert or replace into notes values (?, 1, ?)", (name, ended))
    one.keep()


def names(db: sqlite3.Connection) -> list[str]:
    return [row[0] for row in db.execute("select id from notes order by id")]


def in_file(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return names(db)


def kind(one: Refuge) -> Kind | None:
    return None if one.trouble is None else one.trouble.kind


def spoil(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    path.write_bytes(b"\xa5" * path.stat().st_size)


def test_while_the_disk_is_full_memory_stands_in_and_what_changed_goes_back(
    one: Refuge, path: Path, clock: Clock, disk: Disk
) -> None:
    note(one, "b")
    one.check()
    assert (kind(one), one.since) == (None, 0.0)
    disk.left = LEAST - 1
    one.check()
    assert (kind(one), one.since, names(one.db)) == (Kind.FULL, T0, ["a", "b"])
    one.db.execute("delete from notes where id = 'a'")
    note(one, "c")
    assert in_file(path) == ["a", "b"]
    disk.left = ENOUGH
    clock.forward(AGAIN - 1)
    one.check()
    assert kind(one) is Kind.FULL, "it is looked at now and then only"
    clock.forward(1)
    one.check()
    assert kind(one) is None
    assert names(one.db) == in_file(path) == ["b", "c"]
    note(one, "d")
    assert in_file(path) == ["b", "c", "d"]


def test_it_goes_back_where_there_is_more_room_than_a_little(
    one: Refuge, clock: Clock, disk: Disk
) -> None:
    """Or it would go over and back with each row."""
    disk.left = LEAST - 1
    one.check()
    for left, back in ((ENOUGH - 1, False), (ENOUGH, True)):
        disk.left = left
        clock.forward(AGAIN)
        one.check()
        assert (kind(one) is None) is back


def test_a_look_that_finds_no_room_yet_is_not_repeated_at_once(
    one: Refuge, clock: Clock, disk: Disk
) -> None:
    disk.left = 0
    one.check()
    clock.forward(AGAIN)
    one.check()
    disk.left = ENOUGH
    clock.forward(AGAIN - 1)
    one.check()
    assert kind(one) is Kind.FULL
    clock.forward(1)
    one.check()
    assert kind(one) is None


def test_the_trouble_is_told_once_and_again_when_it_is_another(
    one: Refuge, path: Path, clock: Clock, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.left = 0
    one.check()
    (told,) = caplog.messages
    assert told == (
        f"away: the disk of {path.parent} is full ([Errno 28] No space left on device); so what; "
        f"do: make room on it (df {path.parent})"
    )
    caplog.clear()
    for _ in range(2):
        clock.forward(AGAIN)
        one.check()
    assert caplog.messages == []
    disk.left = 10**9
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
        other.execute("begin exclusive")
        clock.forward(AGAIN)
        one.check()
        clock.forward(AGAIN)
        one.check()
    (told,) = caplog.messages
    assert told.startswith(f"away: another process has locked {path}")
    assert one.trouble is not None
    assert one.trouble.kind is Kind.LOCKED
    clock.forward(AGAIN)
    one.check()
    assert caplog.messages[1:] == [f"{path} is used again after {5 * AGAIN:.0f} s"]


def test_another_trouble_that_keeps_it_from_being_opened_is_told(
    one: Refuge, path: Path, clock: Clock, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    locked = sqlite3.OperationalError("database is locked")
    locked.sqlite_errorcode = sqlite3.SQLITE_BUSY
    one.give_up(locked)
    disk.left = 0
    for _ in range(2):
        clock.forward(AGAIN)
        one.check()
        assert kind(one) is Kind.FULL
    first, second = caplog.messages
    assert first.startswith(f"away: another process has locked {path} (database is locked)")
    assert second.startswith(f"away: the disk of {path.parent} is full")


def test_the_first_failure_counts(one: Refuge, clock: Clock) -> None:
    one.give_up(sqlite3.OperationalError("disk I/O error"))
    first = one.trouble
    note(one, "b")
    clock.forward(5)
    one.give_up(sqlite3.OperationalError("database or disk is full"))
    assert (one.trouble, one.since, names(one.db)) == (first, T0, ["a", "b"])


def test_an_input_output_error_on_a_full_disk_is_a_full_disk(one: Refuge, disk: Disk) -> None:
    disk.left = LEAST - 1
    one.give_up(sqlite3.OperationalError("disk I/O error"))
    assert kind(one) is Kind.FULL


def test_with_room_left_it_is_one_that_nobody_knows(one: Refuge, disk: Disk) -> None:
    disk.left = LEAST
    one.give_up(sqlite3.OperationalError("disk I/O error"))
    assert kind(one) is Kind.UNUSABLE


def test_a_file_that_was_removed_is_made_again_with_the_next_look(
    one: Refuge, path: Path, clock: Clock
) -> None:
    path.unlink()
    one.check()
    assert (kind(one), names(one.db)) == (Kind.LOST, ["a"])
    one.check()
    assert kind(one) is None
    assert in_file(path) == ["a"]


def test_what_is_left_beside_a_file_that_was_removed_is_not_taken_for_its_own(
    one: Refuge, path: Path
) -> None:
    """Sqlite would put the pages of an old log into the new file."""
    path.unlink()
    one.check()
    log = path.with_name("notes.db-wal")
    log.write_bytes(b"old pages")
    one.check()
    assert kind(one) is None
    assert path.with_name(f"notes.db.damaged-{STAMP}-wal").read_bytes() == b"old pages"
    assert in_file(path) == ["a"]


def test_a_file_that_was_put_in_its_place_keeps_its_rows_and_gets_ours(
    one: Refuge, path: Path, clock: Clock
) -> None:
    other = path.with_name("other.db")
    with contextlib.closing(files.open_writer(other, SCHEMA)) as db:
        db.execute("insert into notes values ('x', 1, null), ('a', 9, null)")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    os.replace(other, path)
    one.check()
    assert kind(one) is Kind.LOST
    one.check()
    assert kind(one) is None
    assert in_file(path) == ["a", "x"]
    assert one.db.execute("select paid from notes where id = 'a'").fetchone()[0] == 9


def test_a_file_that_is_spoilt_is_noticed_at_the_next_reading_and_set_aside(
    one: Refuge, path: Path, clock: Clock
) -> None:
    spoil(path)
    spoilt = path.read_bytes()
    clock.forward(LOOK - 1)
    one.check()
    assert kind(one) is None
    clock.forward(1)
    one.check()
    assert kind(one) is Kind.CORRUPT
    one.check()
    assert kind(one) is None
    aside = path.with_name("notes.db.damaged-20270115T080100Z")
    assert aside.read_bytes() == spoilt
    note(one, "b")
    assert "b" in in_file(path)


def test_a_file_of_which_some_pages_are_spoilt_is_let_go_before_it_is_set_aside(
    one: Refuge, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(999):
        one.db.execute("insert into notes values (?, 1, null)", (f"n{number}",))
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    content = bytearray(path.read_bytes())
    content[3 * 4096 : 4 * 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    clock.forward(LOOK)
    one.check()
    assert kind(one) is Kind.CORRUPT
    held: list[str] = []

    def watched(path: Path, now: float) -> Path | None:
        links = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
        held.extend(os.readlink(link) for link in links if os.path.lexists(link))
        return set_aside(path, now)

    monkeypatch.setattr(refuge, "set_aside", watched)
    one.check()
    assert kind(one) is None
    assert str(path) not in held
    assert held, "it was looked"
    note(one, "z")
    assert in_file(path)[-1] == "z"


def test_what_was_over_at_the_last_copy_and_since_is_known_of_a_spoilt_file(
    one: Refuge, path: Path, clock: Clock
) -> None:
    note(one, "old", ended=T0 - 5)
    clock.forward(COPY)
    one.check()
    assert in_file(path.with_name("notes.db.kept")) == ["a", "old"]
    note(one, "new", ended=T0)
    note(one, "open")
    spoil(path)
    clock.forward(LOOK)
    one.check()
    one.check()
    assert in_file(path) == ["new", "old", "open"]


def test_without_a_copy_what_was_over_is_told_to_be_unknown(
    one: Refuge, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(path)
    clock.forward(LOOK)
    one.check()
    assert [line for line in caplog.messages if "at the last copy is not known: there is" in line]
    assert names(one.db) == ["a"], "of what was written down since"


def test_a_copy_is_made_now_and_then_for_its_owner_alone(
    one: Refuge, path: Path, clock: Clock
) -> None:
    kept = path.with_name("notes.db.kept")
    clock.forward(LOOK)
    one.check()
    first = kept.stat()
    assert stat.S_IMODE(first.st_mode) == 0o600
    for seconds, anew in ((COPY - LOOK, False), (LOOK, True)):
        clock.forward(seconds)
        one.check()
        assert (kept.stat().st_ino != first.st_ino) is anew
    assert not path.with_name(".notes.db.kept").exists()


def test_a_copy_that_finds_no_room_is_told_and_the_file_is_used_on(
    one: Refuge, path: Path, clock: Clock, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.left = ENOUGH
    clock.forward(LOOK)
    one.check()
    assert kind(one) is None
    (told,) = caplog.messages
    assert told.startswith(f"no copy of {path} can be kept: ")
    assert not path.with_name("notes.db.kept").exists()


def test_no_copy_is_made_of_what_is_never_past(path: Path, clock: Clock, disk: Disk) -> None:
    made = opened(path, clock, (Table(name="notes", keys=("id",)),))
    clock.forward(LOOK)
    made.check()
    made.db.close()
    assert not path.with_name("notes.db.kept").exists()


def test_one_table_with_a_past_is_enough_for_a_copy(path: Path, clock: Clock, disk: Disk) -> None:
    made = opened(path, clock, (Table(name="notes", keys=("id",)), *TABLES))
    clock.forward(LOOK)
    made.check()
    made.db.close()
    assert path.with_name("notes.db.kept").exists()


def test_damage_that_a_thread_meets_is_acted_on_by_the_next_look(one: Refuge, path: Path) -> None:
    with pytest.raises(sqlite3.DatabaseError), one.noticing():
        raise damage()
    assert kind(one) is None, "the look does it"
    one.check()
    assert kind(one) is Kind.CORRUPT
    with pytest.raises(sqlite3.DatabaseError), one.noticing():
        raise damage()
    one.check()
    assert (kind(one), names(one.db)) == (None, ["a"]), "nothing was wrong with the file"
    one.check()
    assert kind(one) is None, "what was noticed meanwhile is forgotten"


def test_a_file_that_cannot_be_read_just_now_is_used_on_and_why_is_in_the_log(
    one: Refuge, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def busy(*_: object) -> sqlite3.Connection:
        raise SlurmElasticError("the notes are busy")

    monkeypatch.setattr(files, "open_reader", busy)
    clock.forward(LOOK)
    one.check()
    assert kind(one) is None
    assert "the file is not read: the notes are busy" in caplog.messages


def test_what_is_no_damage_is_left_to_who_met_it(one: Refuge) -> None:
    with pytest.raises(sqlite3.OperationalError), one.noticing():
        raise sqlite3.OperationalError("database is locked")
    one.check()
    assert kind(one) is None


def damage() -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def test_a_file_that_cannot_be_used_at_the_start_is_away_from_then_on(
    path: Path, clock: Clock, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(b"no database at all" * 100)
    made = opened(path, clock)
    note(made, "b")
    assert (kind(made), made.since) == (Kind.CORRUPT, T0)
    made.check()
    assert kind(made) is None
    assert in_file(path) == ["b"]
    assert path.with_name(f"notes.db.damaged-{STAMP}").exists()
    assert f"the damaged notes was set aside as {path}.damaged-{STAMP}" in caplog.messages
    made.db.close()


def test_rows_that_a_locked_file_has_at_the_start_are_not_made_anew(
    path: Path, clock: Clock, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BUSY_TIMEOUT", 0.01)
    with contextlib.closing(files.open_writer(path, SCHEMA)) as db:
        db.execute("pragma user_version = 0")
        db.execute("drop table notes")
        db.execute("begin immediate")
        made = opened(path, clock)
        assert kind(made) is Kind.LOCKED
        note(made, "b")
        db.execute("rollback")
    clock.forward(AGAIN)
    made.check()
    assert kind(made) is None
    assert in_file(path) == ["b"]
    made.db.close()


def test_where_only_the_copy_is_left_at_the_start_its_rows_are_not_taken_for_none(
    path: Path, clock: Clock, disk: Disk
) -> None:
    made = opened(path, clock)
    note(made, "old", ended=T0 - 5)
    clock.forward(LOOK)
    made.check()
    made.db.close()
    path.unlink()
    again = opened(path, clock)
    assert (kind(again), names(again.db)) == (Kind.LOST, ["old"])
    again.check()
    assert kind(again) is None
    assert in_file(path) == ["old"]
    again.db.close()


def test_what_was_forgotten_since_the_last_copy_does_not_come_back_with_a_file_that_was_removed(
    one: Refuge, path: Path, clock: Clock
) -> None:
    note(one, "old", ended=T0 - 5)
    clock.forward(LOOK)
    one.check()
    one.db.execute("delete from notes where id = 'old'")
    path.unlink()
    one.check()
    assert (kind(one), names(one.db)) == (Kind.LOST, ["a"])


def test_a_file_that_is_used_again_is_used_as_before(
    one: Refuge, path: Path, clock: Clock, disk: Disk
) -> None:
    disk.left = 0
    one.check()
    memory = one.db
    disk.left = 10**9
    clock.forward(AGAIN)
    one.check()
    assert kind(one) is None
    assert one.db.execute("pragma busy_timeout").fetchone()[0] == 10_000
    note(one, "new")
    assert b'"new"' in path.with_name("notes.db.lately").read_bytes()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        memory.execute("select 1")


def test_one_that_fails_while_it_is_brought_up_to_date_is_let_go_and_tried_again(
    one: Refuge, path: Path, clock: Clock, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    disk.left = 0
    one.check()
    note(one, "b")
    disk.left = 10**9
    clock.forward(AGAIN)
    with monkeypatch.context() as patched:
        patched.setattr(refuge, "merge", full)
        one.check()
    assert (kind(one), names(one.db)) == (Kind.FULL, ["a", "b"])
    assert str(path) not in open_files()
    clock.forward(AGAIN)
    one.check()
    assert kind(one) is None
    assert in_file(path) == ["a", "b"]


def open_files() -> list[str]:
    links = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if os.path.lexists(link)]


def test_between_two_readings_it_is_not_read(
    one: Refuge, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[float] = []
    whole = files.open_reader

    def reader(path: Path, schema: files.Schema) -> sqlite3.Connection:
        read.append(clock.now - T0)
        return whole(path, schema)

    monkeypatch.setattr(files, "open_reader", reader)
    for _ in range(13):
        one.check()
        clock.forward(LOOK / 6)
    assert read == [LOOK, 2 * LOOK]


def test_a_copy_that_was_cut_off_is_no_hindrance_to_the_next(
    one: Refuge, path: Path, clock: Clock
) -> None:
    path.with_name(".notes.db.kept").write_bytes(b"half")
    clock.forward(LOOK)
    one.check()
    assert in_file(path.with_name("notes.db.kept")) == ["a"]
    assert path.with_name("notes.db.lately").stat().st_size == 0, "the copy has it"


ORDERS = (Table(name="notes", keys=("id",), past="ended is not null", at_once=True),)


def test_of_rows_that_are_copied_at_once_the_copy_is_never_without_one(
    path: Path, clock: Clock, disk: Disk
) -> None:
    kept = path.with_name("notes.db.kept")
    made = opened(path, clock, ORDERS)
    made.check()
    first = kept.stat().st_ino
    made.check()
    assert kept.stat().st_ino == first, "there is nothing new"
    note(made, "b")
    made.check()
    assert in_file(kept) == ["b"]
    again = opened(path, clock, ORDERS)
    second = kept.stat().st_ino
    again.check()
    assert kept.stat().st_ino != second, "the last process may have died before it made one"
    made.db.close()
    again.db.close()


# the file itself


def test_a_page_that_makes_no_sense_is_damage(path: Path) -> None:
    with contextlib.closing(files.open_writer(path, SCHEMA)) as db:
        db.executemany("insert into notes values (?, 1, null)", [(f"n{i}",) for i in range(999)])
        assert not is_damaged(db)
        db.execute("pragma wal_checkpoint(truncate)")
    content = bytearray(path.read_bytes())
    content[2 * 4096 : 3 * 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert is_damaged(db)


def test_an_error_of_the_moment_is_no_damage(path: Path) -> None:
    with contextlib.closing(files.open_writer(path, SCHEMA)) as db:
        db.set_progress_handler(lambda: 1, 1)  # interrupts it
        assert not is_damaged(db)


def test_what_is_set_aside_keeps_its_content_and_what_was_set_aside_before(path: Path) -> None:
    assert set_aside(path, T0) is None
    made = []
    for number, beside in enumerate((("", "-wal", "-shm"), ("",), ("-wal",), ("", "-wal"))):
        for suffix in beside:
            path.with_name(path.name + suffix).write_text(f"{number}{suffix}")
        made.append(set_aside(path, T0))
    assert made == [path.with_name(f"notes.db.damaged-{STAMP}{n}") for n in ("", "-2", "-3", "-4")]
    there = {p.name.partition(".damaged-")[2]: p.read_text() for p in path.parent.iterdir()}
    assert there == {
        STAMP: "0", f"{STAMP}-wal": "0-wal", f"{STAMP}-shm": "0-shm", f"{STAMP}-2": "1",
        f"{STAMP}-3-wal": "2-wal", f"{STAMP}-4": "3", f"{STAMP}-4-wal": "3-wal",
    }  # fmt: skip
