"""The ledger while its file cannot be used, and as the other service has it."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from held import held
from ledger_cases import T0, instance, spec

from slurm_elastic.base.errors import EndOnlyError
from slurm_elastic.model.causes import Quoted
from slurm_elastic.state.ledger import SOUND, Decision, Health, Ledger
from slurm_elastic.state.store import disk, endurance, view
from slurm_elastic.state.store.disk import Disk, Elsewhere
from slurm_elastic.state.store.journal import Journal

AGAIN = Elsewhere.RETRY_AFTER_S


class Clock:
    up = 100.0

    def time(self) -> float:
        return T0 + self.up

    def monotonic(self) -> float:
        return self.up


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(disk, "time", made)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def decision(number: int) -> Decision:
    return Decision(at=T0 + number, correlation="c", kind="k", subjects=("n1", "n2"),
                    cause=Quoted(text=str(number)), detail={"n": number})  # fmt: skip


# its owner


@pytest.fixture
def ledger(path: Path, clock: Clock) -> Iterator[Ledger]:
    with closing(Ledger.enduring(path, lambda: T0 + clock.up, clock.monotonic)) as made:
        yield made


def gives_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(endurance, "require_room", full)


def test_a_file_that_is_gone_again_as_it_comes_back_leaves_the_memory_in_use(
    ledger: Ledger, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.launches.record_intent(spec(), "r", T0)
    with monkeypatch.context() as patched:
        gives_out(patched)
        ledger.check()

    def removed(*_: Any) -> None:
        path.unlink()
        raise OSError(errno.EIO, "x")

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "put", removed)
        ledger.requeues.lift(7, 0, T0)
        clock.up += 20
        assert ledger.check().end_only
    assert held(path.parent) == []
    assert len(ledger.launches.open()) == 1
    clock.up += 20
    assert ledger.check() is SOUND
    assert len(ledger.launches.open()) == 1


def test_lists_before_a_full_disk_do_not_count_after_it(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that has the machine again is read in memory; its reset of the count is no fact."""
    ledger.launches.record_intent(spec(), "r", T0)
    ledger.machines.record_launch(spec().generation, [instance("i-1")], T0)
    for now in (T0 + 700, T0 + 760):
        ledger.machines.observe("aws", [], now)
    assert [m.missed_listings for m in ledger.machines.live()] == [2]
    with monkeypatch.context() as patched:
        gives_out(patched)
        ledger.check()
    ledger.machines.observe("aws", [instance("i-1")], T0 + 820)
    clock.up += 20
    assert ledger.check() is SOUND
    assert [m.missed_listings for m in ledger.machines.live()] == [0]
    ledger.machines.observe("aws", [], T0 + 900)
    assert [m.missed_listings for m in ledger.machines.live()] == [1]


def test_an_error_before_the_append_appends_nothing(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next try would append the same facts, and add to counters, a second time."""
    ledger.give_up(OSError(errno.EIO, "x"))
    ledger.requeues.lift(7, 0, T0)
    puts: list[object] = []

    def locked(*_: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(view, "begin_counts_anew", locked)
        patched.setattr(Disk, "put", lambda *given: puts.append(given))
        clock.up += endurance.RETRY_AFTER_S
        assert ledger.check().end_only
    assert puts == []
    clock.up += endurance.RETRY_AFTER_S
    assert ledger.check() is SOUND
    assert ledger.requeues.lifted() == ((7, 0),)


def test_a_file_that_is_found_damaged_as_it_comes_back_is_made_anew(
    ledger: Ledger, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.launches.record_intent(spec(), "r", T0)
    with monkeypatch.context() as patched:
        gives_out(patched)
        ledger.check()
    ledger.requeues.lift(7, 0, T0)

    def damaged(*_: Any) -> None:  # a page that opening it does not read
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "put", damaged)
        clock.up += 20
        assert "damaged" in ledger.check().end_only
    assert len(list(path.parent.glob("ledger.db.damaged-*"))) == 1
    clock.up += 20
    assert ledger.check() is SOUND
    assert len(ledger.launches.open()) == 1
    assert ledger.requeues.lifted() == ((7, 0),)


def test_a_file_that_is_merely_locked_as_it_comes_back_is_left_where_it_is(
    ledger: Ledger, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.give_up(OSError(errno.EIO, "x"))
    ledger.requeues.lift(7, 0, T0)
    file = path.stat().st_ino

    def locked(*_: Any) -> None:
        raise sqlite3.OperationalError("database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "put", locked)
        clock.up += endurance.RETRY_AFTER_S
        assert "database is locked" in ledger.check().end_only
    assert path.stat().st_ino == file
    assert list(path.parent.glob("*.damaged-*")) == []


def test_how_long_it_went_without_its_file_is_told(
    ledger: Ledger, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.give_up(OSError(errno.EIO, "x"))
    clock.up += endurance.RETRY_AFTER_S
    assert ledger.check() is SOUND
    assert f"{path} is used again after {endurance.RETRY_AFTER_S:.0f} s" in caplog.text


def test_an_error_that_is_none_of_its_file_does_not_end_its_use(ledger: Ledger) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        ledger.store.select("select * from nowhere")
    assert ledger.check() is SOUND


def test_a_journal_that_was_removed_is_begun_anew_at_the_next_look(
    ledger: Ledger, path: Path
) -> None:
    ledger.launches.record_intent(spec(), "r", T0)
    (segment,) = (path.parent / "journal").glob("*.jsonl")
    segment.unlink()
    assert ledger.check() is SOUND
    assert b"g1" in segment.read_bytes()


def test_a_journal_whose_directory_is_stale_leaves_the_rows_that_this_process_has(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open view has them, and a machine is bought by one of these intents just now."""
    ledger.launches.record_intent(spec(), "r", T0)

    def stale(self: Path, **more: Any) -> os.stat_result:
        if path.parent / "journal" in (self, *self.parents):
            raise OSError(errno.ESTALE, "Stale file handle", str(self))
        return os.stat(self, **more)

    monkeypatch.setattr(Path, "lstat", lambda self: stale(self, follow_symlinks=False))
    monkeypatch.setattr(Path, "stat", stale)
    ledger.give_up(OSError(errno.ESTALE, "Stale file handle"))
    assert [launch.generation for launch in ledger.launches.open()] == [spec().generation]


def test_what_is_of_the_moment_goes_over_into_memory_too(ledger: Ledger) -> None:
    ledger.health.beat("ckptman", T0, 8)
    ledger.give_up(OSError(errno.EIO, "x"))
    assert ledger.end_only
    assert ledger.health.heartbeat("ckptman") == (T0, 8)


def test_files_are_used_while_there_is_some_room_and_again_once_there_is_more(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [0]

    def fallocate(_: int, __: int, size: int) -> None:
        if size > left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    found = []
    for left[0] in (2 << 20, 64 << 10, 2 << 20, 8 << 20, 2 << 20):
        clock.up += endurance.RETRY_AFTER_S
        found.append(ledger.check() is SOUND)
    assert found == [True, False, False, True, True]


def test_a_full_disk_is_told_also_where_sqlite_calls_it_something_else(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    gives_out(monkeypatch)
    ledger.give_up(sqlite3.OperationalError("disk I/O error"))
    assert "is full" in ledger.end_only


@pytest.mark.parametrize(("days", "counts"), [(39, True), (41, False)])
def test_what_was_paid_in_the_last_forty_days_goes_over_into_memory(
    ledger: Ledger, clock: Clock, days: int, *, counts: bool
) -> None:
    ledger.launches.record_intent(spec(), "r", T0)
    ledger.machines.record_launch("g1", [instance()], T0)
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="idle"), T0)
    clock.up = days * 86400.0
    ledger.give_up(OSError(errno.EIO, "x"))
    assert bool(ledger.machines.live(ended_since=0.0)) is counts


def test_whether_anything_was_done_about_an_error_is_told(
    ledger: Ledger, path: Path, clock: Clock
) -> None:
    """Who met it tries once more then."""
    damaged = sqlite3.DatabaseError("malformed")
    damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    assert ledger.store.give_up(damaged), "the view was made anew"
    assert ledger.store.give_up(OSError(errno.EIO, "x")), "it goes on in memory"
    assert not ledger.store.give_up(OSError(errno.EIO, "x")), "there is nothing left to do"
    with closing(Ledger(path)) as other:
        assert not other.store.give_up(damaged), "a command has its error"


def test_rows_go_over_into_memory_without_waiting_long_for_others(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    real = view.copied

    def copied(source: sqlite3.Connection, *rest: Any) -> None:
        waits.append(source.execute("pragma busy_timeout").fetchone()[0] / 1000)
        real(source, *rest)

    monkeypatch.setattr(view, "copied", copied)
    ledger.give_up(OSError(errno.EIO, "x"))
    assert len(waits) == 1
    assert 0 < waits[0] <= 2


def test_nothing_is_open_once_it_is_closed(ledger: Ledger, path: Path) -> None:
    assert held(path.parent)
    ledger.close()
    assert held(path.parent) == []


def test_a_cloud_counts_as_read_once_this_process_has_read_it(ledger: Ledger, path: Path) -> None:
    """The last process may have had what it adopted in its memory alone."""
    ledger.machines.record_whole_list("aws", T0)
    assert ledger.machines.clouds_read() == ledger.state().read_whole == {"aws"}
    with closing(Ledger.enduring(path)) as later:
        assert later.machines.clouds_read() == later.state().read_whole == frozenset()
        later.machines.record_whole_list("onprem", T0)
        assert later.machines.clouds_read() == later.state().read_whole == {"onprem"}
        later.machines.record_whole_list("aws", T0 + 1)
        assert later.machines.clouds_read() == later.state().read_whole == {"aws", "onprem"}


def test_while_it_cannot_be_written_nothing_is_bought_and_all_else_goes_on(
    ledger: Ledger, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.refresh()
    assert ledger.check() is SOUND
    assert (SOUND.end_only, SOUND.since, ledger.store.trouble_since) == ("", 0.0, 0.0)
    ledger.launches.record_intent(spec(), "r", T0)
    ledger.decisions.record(decision(1))
    with monkeypatch.context() as patched:
        gives_out(patched)
        found = ledger.check()
        assert found == ledger.condition
        assert found.end_only.startswith(f"end-only: the disk of {path.parent} is full")
        assert (bool(found.remedy), found.since) == (True, T0 + 100)
        assert not ledger.state().writable
        with pytest.raises(EndOnlyError, match=r"is full .*; nothing is bought"):
            ledger.launches.record_intent(spec("g2"), "r", T0)
        ledger.machines.record_launch("g1", [instance()], T0 + 1)
        ledger.decisions.record(decision(2), decision(3))
    clock.up += endurance.RETRY_AFTER_S
    assert ledger.check() is SOUND
    ledger.launches.record_intent(spec("g2"), "r", T0)
    with closing(Ledger(path, read_only=True)) as file:
        assert [m.instance.id for m in file.machines.live()] == ["i-1"]
        assert [row.generation for row in file.launches.open()] == ["g2"]
        assert (
            file.decisions.about("n1")
            == file.decisions.about("n2")
            == tuple(map(decision, (1, 2, 3)))
        )


def test_an_error_of_its_file_is_one_sentence_and_the_first_counts(ledger: Ledger) -> None:
    ledger.give_up(sqlite3.OperationalError("disk I/O error"))
    ledger.give_up(OSError(errno.ENOSPC, "x"))
    assert "cannot be used (disk I/O error)" in ledger.end_only
    assert ledger.machines.live() == ()


def test_a_statement_about_the_moment_is_in_no_journal(ledger: Ledger, path: Path) -> None:
    journal = path.parent / "journal" / "ledger-000001.jsonl"
    before = journal.read_text()
    ledger.health.beat("daemon", T0, 7)
    ledger.health.report(Health(name="aws", checked=T0))
    assert journal.read_text() == before
    with ledger.together():
        ledger.requeues.lift(7, 0, T0)
        ledger.requeues.lift(8, 0, T0)
        assert journal.read_text() == before
    (line,) = journal.read_text().removeprefix(before).splitlines()
    assert line.count('"put":"lifted_requeues"') == 2, "all of it is one line"


def test_the_whole_journal_is_read_at_times_only(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[float] = []
    monkeypatch.setattr(Disk, "damaged", lambda _: read.append(clock.up))
    for seconds in (0.0, endurance.READ_SEGMENT_EVERY_S - 1, 1.0, 1.0):
        clock.up += seconds
        assert ledger.check() is SOUND
    assert read == [100.0 + endurance.READ_SEGMENT_EVERY_S]


def test_the_whole_view_is_read_at_times_only(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[float] = []
    monkeypatch.setattr(view, "require_sound", lambda _: read.append(clock.up))
    for seconds in (0.0, endurance.READ_VIEW_EVERY_S - 1, 1.0, 1.0):
        clock.up += seconds
        assert ledger.check() is SOUND
    assert read == [100.0, 100.0 + endurance.READ_VIEW_EVERY_S], (
        "at once, as an older copy may lie there"
    )


def test_files_that_failed_are_looked_at_again_after_a_while_only(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[float] = []

    def full(*_: object) -> None:
        looked.append(clock.up)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(endurance, "require_room", full)
    for seconds in (0.0, endurance.RETRY_AFTER_S - 1, 1.0, 1.0, endurance.RETRY_AFTER_S - 2, 1.0):
        clock.up += seconds
        ledger.check()
    assert looked == [100.0 + n * endurance.RETRY_AFTER_S for n in range(3)]


def test_a_sound_journal_is_found_sound(ledger: Ledger, path: Path, clock: Clock) -> None:
    ledger.launches.record_intent(spec(), "r", T0)
    clock.up += endurance.READ_SEGMENT_EVERY_S
    assert ledger.check() is SOUND
    assert len(list((path.parent / "journal").glob("*.jsonl"))) == 1, "none was begun anew"


def test_another_trouble_than_before_is_told_once(
    ledger: Ledger, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(number: int) -> None:
        def refused(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(endurance, "require_room", refused)

    refuses(errno.ENOSPC)
    ledger.check()
    refuses(errno.EROFS)
    for _ in range(3):
        clock.up += endurance.RETRY_AFTER_S
        ledger.check()
    assert caplog.text.count("is full") == 1
    assert caplog.text.count("cannot be written") == 1


def test_a_file_that_cannot_be_opened_is_found_at_the_next_look(ledger: Ledger, path: Path) -> None:
    assert ledger.check() is SOUND
    path.unlink()
    path.mkdir()
    assert ledger.check() is not SOUND
    path.rmdir()


# the other service


@pytest.fixture
def followed(path: Path, clock: Clock) -> Iterator[Ledger]:
    Ledger(path).close()
    with closing(Ledger.followed(path)) as made:
        yield made


def test_where_there_is_none_each_call_says_so_and_later_ones_find_it(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "state" / "ledger.db"
    with closing(Ledger.followed(path)) as followed:
        with pytest.raises(sqlite3.OperationalError, match="there is no ledger at the moment"):
            followed.machines.live()
        path.parent.mkdir()
        with closing(Ledger(path)) as ledger:
            ledger.health.beat("daemon", T0, 7)
            clock.up += 3
            with pytest.raises(sqlite3.OperationalError, match="could not be opened just now"):
                followed.health.heartbeat("daemon")
            clock.up += 4
            assert followed.health.heartbeat("daemon") == (T0, 7)


def test_another_file_in_its_place_is_opened_at_once(followed: Ledger, path: Path) -> None:
    assert followed.health.heartbeat("daemon") is None
    path.rename(path.with_name("aside.db"))
    (path.parent / "journal").rename(path.with_name("aside"))
    with pytest.raises(sqlite3.OperationalError, match="there is no ledger"):
        followed.health.heartbeat("daemon")
    with closing(Ledger(path)) as ledger:
        ledger.health.beat("daemon", T0, 7)
        assert followed.health.heartbeat("daemon") == (T0, 7)
        followed.health.beat("ckptman", T0, 8)
        assert ledger.health.heartbeat("ckptman") == (T0, 8)


def test_a_directory_that_is_stale_is_an_error_of_the_ledger(
    followed: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its callers expect sqlite3.Error alone, at the end of a service, too."""
    followed.health.beat("ckptman", T0, 8)

    def stale(_: Journal) -> list[int]:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Journal, "segments", stale)
    path.unlink()
    with pytest.raises(sqlite3.OperationalError, match="Stale file handle"):
        followed.decisions.record(decision(1))


def test_the_file_that_was_there_before_is_let_go(followed: Ledger, path: Path) -> None:
    path.rename(path.with_name("aside.db"))
    Ledger(path).close()
    assert followed.health.heartbeat("daemon") is None
    names = held(path.parent)
    assert path.name in names
    assert not [name for name in names if "aside.db" in name]


def test_the_file_that_was_removed_is_let_go(followed: Ledger, path: Path) -> None:
    assert followed.health.heartbeat("daemon") is None
    path.unlink()
    assert followed.health.heartbeat("daemon") is None, "made anew of its journal"
    names = held(path.parent)
    assert names
    assert not [name for name in names if name.endswith("(deleted)")]


def test_any_thread_may_find_it_once_it_is_there(path: Path, clock: Clock) -> None:
    with closing(Ledger.followed(path.parent / "state" / path.name)) as followed:
        path.parent.joinpath("state").mkdir()
        with closing(Ledger(path.parent / "state" / path.name)) as ledger:
            ledger.health.beat("daemon", T0, 7)
        clock.up += AGAIN
        with ThreadPoolExecutor(1) as other:
            assert other.submit(followed.health.heartbeat, "daemon").result() == (T0, 7)


def test_one_that_is_none_of_ours_is_left_alone_until_there_is_one(
    followed: Ledger, path: Path
) -> None:
    path.unlink()
    path.write_bytes(b"no database" * 500)
    (path.parent / "journal").rename(path.with_name("aside"))
    with pytest.raises(sqlite3.OperationalError, match="there is no ledger at the moment"):
        followed.machines.live()
    path.unlink()
    Ledger(path).close()
    assert followed.machines.live() == ()


def test_where_its_disk_may_only_be_read_it_is_looked_at_again_after_a_while(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(_: Journal) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    Ledger(path).close()
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "_open_lock", read_only)
        followed = Ledger.followed(path)
        clock.up += AGAIN
        with pytest.raises(sqlite3.OperationalError, match="Read-only"):
            followed.health.heartbeat("ckptman")
    clock.up += AGAIN
    followed.health.beat("ckptman", T0, 8)
    assert followed.health.heartbeat("ckptman") == (T0, 8)
    followed.close()
