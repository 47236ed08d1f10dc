"""The journal keeps every fact that it acknowledged, and none half, whatever becomes of its
files.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import stat
import tempfile
import time
import zlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from held import held
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.state.store import disk, journal, view
from slurm_elastic.state.store.disk import Disk
from slurm_elastic.state.store.journal import (
    Applied,
    Damage,
    Fact,
    Journal,
    JournalLine,
    Position,
    is_whole,
    line_of,
    read_line,
)
from slurm_elastic.state.store.trouble import LostFileError
from slurm_elastic.state.store.view import Schema

NOTES = Schema(
    name="notes", maker="the test", version=1,
    statements=(
        "create table notes (name text primary key, value integer, at real) without rowid",
        "create table marks (id integer primary key, mark text)",
    ),
    numbered_tables=frozenset({"marks"}),
)  # fmt: skip
NAMES = st.sampled_from("abcdef")
VALUES = st.integers(0, 99)


def put(name: str, value: int) -> Fact:
    return Fact(put="notes", rows=[{"name": name, "value": value, "at": float(value)}])


class Disks(RuleBasedStateMachine):
    """Two processes of one memory, against a dict. ``sure`` is what was acknowledged, ``maybe``
    what a process died over: all of it is there, or nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="se-journal-"))
        self.path = self.place / "notes.db"
        self.sure: dict[str, int] = {}
        self.maybe: dict[str, int] | None = None
        self.marks = 0
        self.disks: list[Disk | None] = [Disk(self.path, NOTES), Disk(self.path, NOTES)]

    def teardown(self) -> None:
        for one in self.disks:
            if one is not None:
                one.close()
        shutil.rmtree(self.place)

    def disk(self, which: int) -> Disk:
        found = self.disks[which]
        if found is None:
            found = self.disks[which] = Disk(self.path, NOTES)
        return found

    def segment(self) -> Path:
        return max((self.place / "journal").glob("notes-*.jsonl"))

    @rule(which=st.integers(0, 1), changes=st.dictionaries(NAMES, VALUES, min_size=1))
    def put(self, which: int, changes: dict[str, int]) -> None:
        self.disk(which).put([[put(*one) for one in changes.items()]], lambda: 1.0)
        self.settle()
        self.sure |= changes

    @rule(which=st.integers(0, 1), name=NAMES, value=VALUES)
    def write(self, which: int, name: str, value: int) -> None:
        one = self.disk(which)
        facts: list[Fact] = []
        with one.write(facts, lambda: 1.0) as db:
            db.execute("delete from notes where name = ?", (name,))
            db.execute("insert into notes values (?, ?, ?)", (name, value, value))
            facts.append(put(name, value))
        self.settle()
        self.sure[name] = value

    @rule(which=st.integers(0, 1), name=NAMES)
    def drop(self, which: int, name: str) -> None:
        self.disk(which).put([[Fact(drop="notes", rows=[{"name": name}])]], lambda: 1.0)
        self.settle()
        self.sure.pop(name, None)

    @rule(which=st.integers(0, 1))
    def mark(self, which: int) -> None:
        self.disk(which).put([[Fact(put="marks", rows=[{"mark": "x"}] * 2)]], lambda: 1.0)
        self.settle()
        self.marks += 2

    @rule(which=st.integers(0, 1), name=NAMES, value=VALUES, part=st.floats(0, 1))
    def die_over_a_line(self, which: int, name: str, value: int, part: float) -> None:
        """Of the line so much is on the disk, which may be all."""
        self.disk(which).put([[put("a", self.sure.get("a", 0))]], lambda: 1.0)
        self.settle()
        self.sure.setdefault("a", 0)
        for one in self.disks:
            if one is not None:
                one.close()
        self.disks = [None, None]
        number = Journal(self.place / "journal", "notes").applied().position.number + 1
        line = line_of(JournalLine(n=number, facts=(put(name, value), put("z", value))))
        with self.segment().open("ab") as file:
            file.write(line[: round(len(line) * part)])
        self.maybe = self.sure | {name: value, "z": value}
        self.disk(0)
        if self.rows() == self.maybe:
            assert part > 0.9
            self.sure = self.maybe
        self.maybe = None

    @rule(which=st.integers(0, 1), name=NAMES, value=VALUES, short=st.integers(0, 60))
    def full_disk(self, which: int, name: str, value: int, short: int) -> None:
        one = self.disk(which)
        real = os.write

        def write(descriptor: int, content: bytes) -> int:
            if short and len(content) > short:
                real(descriptor, content[:short])
            raise OSError(errno.ENOSPC, "No space left on device")

        patched = pytest.MonkeyPatch()
        patched.setattr(journal.os, "write", write)
        try:
            with pytest.raises(sqlite3.Error):
                one.put([[put(name, value)]], lambda: 1.0)
        finally:
            patched.undo()

    @rule(which=st.integers(0, 1))
    def new_segment(self, which: int) -> None:
        patched = pytest.MonkeyPatch()
        short(patched)
        self.disk(which).shorten(_Nothing(), 1.0)
        patched.undo()

    @rule()
    def lose_the_view(self) -> None:
        for end in ("", "-wal", "-shm"):
            self.path.with_name(f"notes.db{end}").unlink(missing_ok=True)

    @rule()
    def lose_what_it_has(self) -> None:
        (self.place / "journal" / "notes.applied").write_bytes(b"{}")

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        one = self.disks[which]
        if one is not None:
            one.close()
        self.disks[which] = None

    def settle(self) -> None:
        self.maybe = None

    def rows(self, which: int = 0) -> dict[str, int]:
        one = self.disk(which)
        with one.write([], lambda: 1.0) as db:
            return dict(map(tuple, db.execute("select name, value from notes")))

    @invariant()
    def all_is_there(self) -> None:
        for which in (0, 1):
            assert self.rows(which) == self.sure
        (marks,) = self.disk(0).db.execute("select count(*) from marks").fetchone()
        assert marks == self.marks


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


Disks.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
test_every_fact_that_was_acknowledged_is_kept = Disks.TestCase


def short(patch: pytest.MonkeyPatch) -> None:
    """Each segment is long enough for the next one."""
    patch.setattr(disk, "SEGMENT_BYTES", 0)
    patch.setattr(disk, "BYTES_PER_FIRST_ROW", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notes.db"


def rows(path: Path) -> dict[str, int]:
    with closing(Disk(path, NOTES)) as one:
        return dict(map(tuple, one.db.execute("select name, value from notes")))


def test_a_line_is_read_by_a_person_and_its_checksum_by_us() -> None:
    line = JournalLine(n=7, at=5.0, facts=(put("a", 1),))
    raw = line_of(line)
    assert raw.endswith(
        b',"n":7,"at":5.0,"facts":[{"rows":[{"name":"a","value":1,"at":1.0}],"put":"notes"}]}\n'
    )
    assert read_line(raw) == line
    assert line.epoch == 0, "that of the only head"
    assert b'"epoch":1' in line_of(JournalLine(n=7, epoch=1))
    for place in range(len(raw)):
        assert read_line(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]) is None
        assert read_line(raw[:place]) is None


def test_what_the_view_has_is_read_though_less_is_said_of_it_than_before(tmp_path: Path) -> None:
    long = Applied(position=Position(10**6, 10**9, 10**9), view=(10**9, 10**9), boot="x" * 36)
    with closing(Journal(tmp_path / "journal", "notes")) as one, one.locked(1.0):
        for said in (long, Applied(boot="x")):
            one.note(said)
            assert one.applied() == said


def test_a_damaged_line_in_the_middle_is_named_and_costs_what_it_said_alone(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Disk(path, NOTES)) as one:
        for number, name in enumerate("abc"):
            one.put([[put(name, number)]], lambda: 1.0)
    segment = path.parent / "journal" / "notes-000001.jsonl"
    raw = segment.read_bytes()
    segment.write_bytes(raw.replace(b'"name":"b"', b'"name":"x"'))
    path.unlink()
    assert rows(path) == {"a": 0, "c": 2}
    assert f"the journal {segment} is damaged in bytes" in caplog.text


def test_rows_that_a_segment_begins_with_are_in_the_one_before_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(monkeypatch)
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1), put("b", 2)]], lambda: 1.0)
        one.put([[Fact(drop="notes", rows=[{"name": "b"}])]], lambda: 1.0)
        one.shorten(_Nothing(), 1.0)
        one.put([[put("c", 3)]], lambda: 1.0)
    second = path.parent / "journal" / "notes-000002.jsonl"
    second.write_bytes(second.read_bytes().replace(b'"name":"a"', b'"name":"x"'))
    path.unlink()
    assert rows(path) == {"a": 1, "c": 3}


def test_a_segment_that_lacks_rows_is_told_after_the_one_before_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(monkeypatch)
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1), put("b", 2)]], lambda: 1.0)
        one.shorten(_Nothing(), 1.0)
    second = path.parent / "journal" / "notes-000002.jsonl"
    second.write_bytes(second.read_bytes().splitlines(keepends=True)[0])
    path.unlink()
    assert rows(path) == {"a": 1, "b": 2}


def test_a_segment_says_how_many_rows_it_begins_with_whatever_comes_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(monkeypatch)
    real = view.rows_of
    with closing(Disk(path, NOTES)) as one, closing(Disk(path, NOTES)) as other:
        one.put([[put("a", 1)]], lambda: 1.0)

        def later(*args: Any) -> Any:
            other.put([[put("b", 2)]], lambda: 1.0)
            yield from real(*args)

        monkeypatch.setattr(view, "rows_of", later)
        one.shorten(_Nothing(), 1.0)
        lines = [read_line(raw) for raw, _, _ in one.journal.read(2)]
    begin, told, since = (line for line in lines if line is not None)
    assert begin.begin is not None
    assert (begin.begin.rows, [f.rows for f in told.facts]) == (1, [put("a", 1).rows])
    assert (since.n, list(since.facts)) == (begin.n + 1, [put("b", 2)])


def test_a_line_that_could_not_be_synced_is_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
        with monkeypatch.context() as patched:
            patched.setattr(journal.os, "fsync", raises)
            with pytest.raises(sqlite3.Error, match="Input/output"):
                one.put([[put("b", 2)]], lambda: 1.0)
        segment = one.journal.path(1).read_bytes()
    assert segment.endswith(b"\n")
    assert b'"b"' not in segment
    path.unlink()
    assert rows(path) == {"a": 1}


def raises(_: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_view_that_another_process_has_written_to_stays_open(path: Path) -> None:
    with closing(Disk(path, NOTES)) as one, closing(Disk(path, NOTES)) as other:
        before = one.db
        other.put([[put("a", 1)]], lambda: 1.0)
        with one.turn():
            assert one.db is before
            assert one.position == other.position


@pytest.mark.parametrize(("end", "is_told"), [(b"\n", True), (b"", False)])
def test_of_what_others_leave_a_damaged_line_is_told_and_half_a_line_is_not(
    path: Path, caplog: pytest.LogCaptureFixture, end: bytes, *, is_told: bool
) -> None:
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
        begin, segment = one.position.offset, one.journal.path(1)
        with segment.open("ab") as file:
            file.write(b"x" * 20 + end)
        one.put([[put("b", 2)]], lambda: 1.0)
    told = f"the journal {segment} is damaged in bytes {begin} to {begin + 21}, "
    assert (told in caplog.text) is is_told
    assert ("damaged" in caplog.text) is is_told
    path.unlink()
    assert rows(path) == {"a": 1, "b": 2}


def test_what_the_view_refuses_at_the_end_of_a_transaction_is_no_line(path: Path) -> None:
    def refused(one: Disk) -> None:
        facts = [put("a", 1)]
        with one.write(facts, lambda: 1.0) as db:
            db.execute("insert into pets values ('nobody')")

    with closing(Disk(path, NOTES)) as one:
        one.db.execute("pragma foreign_keys = on")
        one.db.execute(
            "create table pets (owner references notes (name) deferrable initially deferred)"
        )
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
            refused(one)
        assert b'"a"' not in one.journal.path(1).read_bytes()


def test_how_long_it_took_to_make_a_view_anew_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Clock:
        up = 100.0

        def time(self) -> float:
            return self.up

        def monotonic(self) -> float:
            self.up += 2
            return self.up

    monkeypatch.setattr(disk, "time", Clock())
    with caplog.at_level("INFO"):
        Disk(path, NOTES).close()
        assert f"{path} is new" in caplog.text
        assert "rebuilt" not in caplog.text
        path.unlink()
        Disk(path, NOTES).close()
    assert f"{path} was rebuilt from its journal in 2.0 s" in caplog.text


def test_no_view_is_made_of_a_segment_whose_name_is_not_on_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its maker may have been killed just before it was."""

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raises(descriptor)

    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
    path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(sqlite3.Error, match="Input/output"):
            Disk(path, NOTES)
    assert not path.exists()
    assert rows(path) == {"a": 1}


def test_a_turn_inside_another_one_lets_nobody_in_at_its_end(path: Path) -> None:
    with closing(Disk(path, NOTES)) as one, closing(Disk(path, NOTES, timeout_s=0.0)) as other:
        with one.turn():
            one.put([[put("a", 1)]], lambda: 1.0)
            with pytest.raises(sqlite3.Error, match="lock"):
                other.put([[put("b", 2)]], lambda: 1.0)
        other.put([[put("c", 3)]], lambda: 1.0)
    assert rows(path) == {"a": 1, "c": 3}


def test_a_view_whose_wal_went_is_made_anew(path: Path) -> None:
    """Pages of it may be in the file, and others not."""
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
        one.db.execute("pragma wal_checkpoint(truncate)")
        path.with_name("notes.db-wal").unlink()
        before = journal.identity(path)
        with one.turn():
            assert journal.identity(path) != before
    assert rows(path) == {"a": 1}


def test_what_comes_while_a_segment_is_written_is_in_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(monkeypatch)
    real = view.rows_of

    with closing(Disk(path, NOTES)) as one, closing(Disk(path, NOTES)) as other:
        one.put([[put("a", 1)]], lambda: 1.0)

        def meanwhile(*args: Any) -> Any:
            yield from real(*args)
            other.put([[put("b", 2)]], lambda: 1.0)

        monkeypatch.setattr(view, "rows_of", meanwhile)
        one.shorten(_Nothing(), 1.0)
        other.put([[put("c", 3)]], lambda: 1.0)
        assert one.journal.segments() == [1, 2]
    path.unlink()
    (path.parent / "journal" / "notes-000001.jsonl").unlink()
    assert rows(path) == {"a": 1, "b": 2, "c": 3}


def test_a_lock_that_is_removed_before_it_is_ours_is_taken_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = fcntl.flock, []
    with closing(Journal(path.parent / "journal", "notes")) as one:

        def flock(descriptor: int, how: int) -> None:
            if not asked:
                one.turn.unlink()
            asked.append(how)
            assert len(asked) < 9
            real(descriptor, how)

        monkeypatch.setattr(fcntl, "flock", flock)
        with one.locked(1.0):
            assert journal.identity(one.turn) != journal.NOWHERE
            one.note(Applied(boot="x"))
        assert Journal(one.directory, "notes").applied() == Applied(boot="x")


def test_a_directory_that_another_process_makes_meanwhile_is_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.is_dir

    def is_dir(place: Path) -> bool:
        found = real(place)
        if place.name == "journal":
            os.makedirs(place, exist_ok=True)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_dir", is_dir)
        with closing(Disk(path, NOTES)) as one:
            one.put([[put("a", 1)]], lambda: 1.0)
    assert rows(path) == {"a": 1}


@pytest.mark.parametrize(
    ("left", "why"), [(None, "it was removed"), (10, "its end is gone")], ids=["gone", "short"]
)
def test_a_segment_that_lacks_what_was_written_is_a_lost_file(
    path: Path, left: int | None, why: str
) -> None:
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
        segment = one.journal.path(1)
        if left is None:
            segment.unlink()
        else:
            os.truncate(segment, left)
        with pytest.raises(LostFileError, match=why) as lost:
            one.journal.behind(one.position)
        assert (lost.value.errno, lost.value.filename) == (errno.ENOENT, str(segment))


def test_a_segment_that_was_let_go_for_later_ones_is_none_that_was_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(monkeypatch)
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
        before = one.position
        for _ in range(2):
            one.shorten(_Nothing(), 1.0)
        assert one.journal.segments() == [2, 3]
        assert one.journal.behind(before)
        assert not one.journal.behind(one.position)


def test_a_line_goes_to_the_segment_that_is_there_now(path: Path) -> None:
    """A copy may have been put into its place."""
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
        segment = one.journal.path(1)
        shutil.copy(segment, path.with_name("copy"))
        path.with_name("copy").replace(segment)
        one.put([[put("b", 2)]], lambda: 1.0)
    path.unlink()
    assert rows(path) == {"a": 1, "b": 2}


def test_damage_is_told_with_its_line_and_its_bytes(path: Path) -> None:
    with closing(Disk(path, NOTES)) as one:
        for number, name in enumerate("abc"):
            one.put([[put(name, number)]], lambda: 1.0)
        segment = one.journal.path(1)
        raw = segment.read_bytes()
        segment.write_bytes(raw.replace(b'"name":"b"', b'"name":"x"'))
        begin = sum(map(len, raw.splitlines(keepends=True)[:2]))
        end = begin + len(raw.splitlines(keepends=True)[2])
        damages: list[Damage] = []
        assert len(list(one.journal.read(1, 0, damages))) == 4
        assert damages == [Damage(path=segment, line=3, begin=begin, end=end, torn=False)]
        assert one.damaged() == damages[0]


def test_where_nothing_follows_nothing_is_cut_off_though_that_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raises(0)

    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
        before = one.journal.path(1).read_bytes()
        monkeypatch.setattr(os, "ftruncate", broken)
        with pytest.raises(OSError, match="Input/output"):
            one.journal.cut(1, one.position.offset)
        assert one.journal.path(1).read_bytes() == before


def test_a_lock_that_was_removed_is_let_go(path: Path) -> None:
    with closing(Disk(path, NOTES)) as one:
        (path.parent / "journal" / "notes.applied").unlink()
        one.put([[put("a", 1)]], lambda: 1.0)
        locks = [name for name in held(path.parent) if name.startswith("notes.applied")]
    assert locks == ["notes.applied"]


def test_of_a_later_segment_that_is_news_which_was_not_there_before_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(monkeypatch)
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)], [put("b", 2)]], lambda: 1.0)
        before = one.position
        one.shorten(_Nothing(), 1.0)
        one.put([[put("c", 3)]], lambda: 1.0)
        found = list(one.journal.lines(before))
        assert [line.n for line, _ in found if line is not None] == [before.number + 1]
        assert [place.number for _, place in found] == [2, 2, 3]
        assert {place.segment for _, place in found} == {2}
        assert found[-1][1] == one.position
        whole = [line.n for line, _ in one.journal.lines(Position(2)) if line is not None]
        assert whole == [2, 2, 3]


def test_a_view_that_is_no_database_is_set_aside(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
    path.write_bytes(b"no database" * 500)
    assert rows(path) == {"a": 1}
    (aside,) = path.parent.glob("*.damaged-*")
    assert f"the damaged notes was set aside as {aside}" in caplog.text


def test_a_view_whose_log_went_as_it_was_opened_is_made_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
    before, real = journal.identity(path), view.open_writer
    errors = [sqlite3.OperationalError("disk I/O error")]
    errors[0].sqlite_errorcode = sqlite3.SQLITE_IOERR_SHORT_READ

    def opened(*arguments: Any) -> sqlite3.Connection:
        if errors:
            raise errors.pop()
        return real(*arguments)

    monkeypatch.setattr(view, "open_writer", opened)
    assert rows(path) == {"a": 1}
    assert journal.identity(path) != before


def test_of_the_segments_only_the_one_in_use_is_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(monkeypatch)
    with closing(Disk(path, NOTES)) as one:
        for number in range(3):
            one.put([[put("a", number)]], lambda: 1.0)
            one.shorten(_Nothing(), 1.0)
        one.put([[put("a", 3)]], lambda: 1.0)
        open_now = [name for name in held(path.parent) if ".jsonl" in name]
    assert open_now == ["notes-000004.jsonl"]


@pytest.mark.parametrize(
    ("beside", "row", "begun"),
    [
        (1.001, 0.0, False),
        (1.0, 0.0, False),
        (0.999, 0.0, True),
        (0.0, 0.5, False),
        (0.0, 0.499, True),
    ],
)
def test_a_segment_is_long_by_its_bytes_beside_those_of_its_first_rows(
    path: Path, monkeypatch: pytest.MonkeyPatch, beside: float, row: float, *, begun: bool
) -> None:
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1), put("b", 2)]], lambda: 1.0)
        with monkeypatch.context() as patched:
            short(patched)
            one.shorten(_Nothing(), 1.0)
        one.put([[put("c", 3)]], lambda: 1.0)
        assert one.journal.segments() == [1, 2]
        monkeypatch.setattr(disk, "SEGMENT_BYTES", one.position.offset * beside)
        monkeypatch.setattr(disk, "BYTES_PER_FIRST_ROW", one.position.offset * row)
        one.shorten(_Nothing(), 1.0)
        assert one.journal.segments() == ([2, 3] if begun else [1, 2])


def test_a_segment_whose_beginning_is_damaged_is_long_by_its_bytes_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
        monkeypatch.setattr(disk, "SEGMENT_BYTES", one.position.offset - 1)
        with one.journal.path(1).open("r+b") as file:
            file.write(b"x")
        one.shorten(_Nothing(), 1.0)
        assert one.journal.segments() == [1, 2]


def test_a_view_of_another_boot_is_not_believed(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
        one.db.execute("update notes set value = 9")
    assert rows(path) == {"a": 9}, "nobody has looked"
    monkeypatch.setattr(view, "boot", lambda: "another")
    assert rows(path) == {"a": 1}
    assert "is lost" not in caplog.text


def test_another_view_in_its_place_is_not_believed(path: Path) -> None:
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("b", 2)]], lambda: 1.0)
    copy.replace(path)
    assert rows(path) == {"a": 1, "b": 2}


def test_who_has_the_turn_for_too_long_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    real = time.sleep
    monkeypatch.setattr(journal.time, "sleep", lambda s: (waited.append(s), real(min(s, 0.01))))
    with (
        closing(Disk(path, NOTES)) as one,
        one.journal.locked(0.0),
        pytest.raises(sqlite3.Error, match=r"lock.*notes\.applied"),
    ):
        Disk(path, NOTES, timeout_s=0.05)
    assert waited
    assert max(waited) <= 0.05, "no longer at a time than one is to wait at all"


def test_a_view_that_went_is_open_again_once_its_journal_is_begun_anew(path: Path) -> None:
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
        path.unlink()
        one.begin_anew(1.0)
        assert one.identity == journal.identity(path) != journal.NOWHERE
    assert rows(path) == {"a": 1}


def test_an_earlier_release_refuses_a_journal_that_a_later_one_has_gone_on_with(path: Path) -> None:
    """Else the columns and states that it does not know would be lost, and nobody would hear it."""
    with closing(Disk(path, NOTES)) as earlier:
        earlier.put([[put("a", 1)]], lambda: 1.0)
    with closing(Disk(path, replace(NOTES, version=2))) as later:
        later.put([[put("b", 2)]], lambda: 2.0)
        assert later.journal.segments() == [1, 2]
    with closing(Disk(path, replace(NOTES, version=2))) as later:
        assert later.journal.segments() == [1, 2]
    for file in path.parent.glob("notes.db*"):  # another head, or a directory that was restored
        file.unlink()
    with pytest.raises(ConfigError, match="has schema 2, this release knows schemas up to 1"):
        Disk(path, NOTES)


def test_tables_that_are_gone_are_left_out(path: Path) -> None:
    with closing(Disk(path, NOTES)) as one:
        one.put([[Fact(put="marks", rows=[{"mark": "x"}]), put("a", 1)]], lambda: 1.0)
    later = Schema(
        name="notes", maker="the test", version=2,
        statements=("create table notes (name text primary key, value integer, at real)",),
    )  # fmt: skip
    with closing(Disk(path, later)) as one:
        assert [row["name"] for row in one.db.execute("select * from notes")] == ["a"]


def test_columns_that_are_new_have_their_defaults_and_those_that_are_gone_are_left_out(
    path: Path,
) -> None:
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
    later = Schema(
        name="notes", maker="the test", version=2,
        statements=("create table notes (name text primary key, value, more text default 'x')",),
    )  # fmt: skip
    with closing(Disk(path, later)) as one:
        assert [tuple(row) for row in one.db.execute("select * from notes")] == [("a", 1, "x")]


def test_a_later_release_translates_the_rows_of_an_earlier_one(path: Path) -> None:
    with closing(Disk(path, NOTES)) as one:
        one.put([[put("a", 1)]], lambda: 1.0)
    later = Schema(
        name="notes", maker="the test", version=2,
        statements=("create table notes (name text primary key, cents integer)",),
        row_translators={"notes": in_cents},
    )  # fmt: skip
    with closing(Disk(path, later)) as one:
        one.put([[Fact(put="notes", rows=[{"name": "b", "cents": 7}])]], lambda: 2.0)
    path.unlink()  # the first rows of the journal are of the earlier release, the last are not
    with closing(Disk(path, later)) as one:
        rows_read = one.db.execute("select name, cents from notes order by name")
        assert [tuple(row) for row in rows_read] == [("a", 100), ("b", 7)]


def in_cents(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with cents; a row of the later release has them."""
    return row if "cents" in row else {"name": row["name"], "cents": row["value"] * 100}


def test_rows_that_are_known_by_their_line_have_the_same_ids_in_a_view_that_is_made_anew(
    path: Path,
) -> None:
    def marks() -> list[tuple[int, str]]:
        with closing(Disk(path, NOTES)) as one:
            return [tuple(row) for row in one.db.execute("select id, mark from marks order by id")]

    with closing(Disk(path, NOTES)) as one:
        two = Fact(put="marks", rows=[{"mark": "b"}, {"mark": "c"}])
        one.put([[Fact(put="marks", rows=[{"mark": "a"}])], [two]], lambda: 1.0)
    before = marks()
    assert [mark for _, mark in before] == ["a", "b", "c"]
    path.unlink()
    assert marks() == before


def test_a_line_with_thousands_of_brackets_is_no_line() -> None:
    rest = b',"n":1,"more":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    raw = b'{"crc":"%08x"%s\n' % (zlib.crc32(rest), rest)
    assert is_whole(raw)
    assert read_line(raw) is None
