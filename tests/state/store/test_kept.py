"""What was acknowledged is kept: of a writer that is killed or fails between two steps, of others
who write meanwhile, of copies that are put into the place of files, and of what is taken over.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from held import held
from ledger_cases import T0, instance, spec

from slurm_elastic.base.errors import ConfigError, EndOnlyError, SlurmElasticError
from slurm_elastic.features.money.usage_counters import settle
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.exclusion import COOL_DOWN, Exclusion
from slurm_elastic.model.memory import Decision
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep, Suspension
from slurm_elastic.state.ckptstate.schema import SCHEMA
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.ledger.schema import LEDGER
from slurm_elastic.state.store import backup, disk, view
from slurm_elastic.state.store.journal import Begin, Fact, Journal, JournalLine, line_of
from slurm_elastic.state.store.shared_journal import journal_of
from slurm_elastic.state.store.trouble import MAY_COUNT_TEXT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new segment is due each time."""
    monkeypatch.setattr(disk, "SEGMENT_BYTES", 0)
    monkeypatch.setattr(disk, "BYTES_PER_FIRST_ROW", 0)


def told(*reasons: str) -> list[Decision]:
    return [
        Decision(at=T0, correlation="c", kind="k", subjects=("pub1",), cause=Quoted(text=reason))
        for reason in reasons
    ]


def reasons(ledger: Ledger) -> list[str]:
    return [str(one.reason) for one in ledger.decisions.last(100)]


def without_view(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)


def made_anew(path: Path) -> Ledger:
    without_view(path)
    return Ledger(path)


def in_child(work: Callable[[], None]) -> None:
    """It ends as if it were killed."""
    child = os.fork()
    if not child:
        work()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


# a new segment


def test_a_segment_that_was_begun_by_one_that_was_killed_is_gone_on_with(
    path: Path, short: None
) -> None:
    def killed() -> None:
        ledger = Ledger(path)
        ledger.launches.record_intent(spec("g1"), "r", T0)
        ledger.store._home._note = lambda _: os._exit(9)  # type: ignore[union-attr, method-assign]
        ledger.compact(T0)

    in_child(killed)
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g2", nodes=("pub3",)), "r2", T0 + 1)
        ledger.machines.record_launch("g2", [instance("i-9", "pub3", "g2")], T0 + 2)
    with closing(made_anew(path)) as ledger:
        assert [m.instance.id for m in ledger.machines.live()] == ["i-9"]
        assert {one.generation for one in ledger.launches.open()} == {"g1"}
    assert backup.verify((path, LEDGER)).sound


def test_a_segment_is_begun_though_an_old_one_cannot_go(
    path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.unlink

    def unlink(file: Path, missing_ok: bool = False) -> None:
        if file.suffix == ".jsonl":
            raise PermissionError(errno.EPERM, "Operation not permitted", str(file))
        real(file, missing_ok)

    with closing(Ledger(path)) as ledger:
        for number, nodes in enumerate(("pub3", "pub4", "pub5")):
            ledger.launches.record_intent(spec(f"g{number}", nodes=(nodes,)), "r", T0)
            with monkeypatch.context() as patched:
                patched.setattr(Path, "unlink", unlink)
                ledger.compact(T0)
        ledger.machines.record_launch("g2", [instance("i-3", "pub5", "g2")], T0)
    with closing(made_anew(path)) as ledger:
        assert [m.instance.id for m in ledger.machines.live()] == ["i-3"]


def test_a_view_that_is_made_anew_beside_a_new_segment_costs_nothing(
    path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that a segment begins with are of the view that is there by then."""
    ours, other = Ledger(path), Ledger(path)
    ours.launches.record_intent(spec("g0"), "r", T0)
    turns = []
    real = Journal.locked

    def locked(journal: Journal, patience: float) -> Any:
        if not turns:
            turns.append(journal)
            without_view(path)
            other.launches.record_intent(spec("g1", nodes=("pub3",)), "r", T0)
        return real(journal, patience)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "locked", locked)
        ours.store.shorten()
    ours.close()
    other.close()
    with closing(made_anew(path)) as ledger:
        assert {one.generation for one in ledger.launches.open()} == {"g0", "g1"}


def test_who_reads_a_segment_that_just_went_reads_those_that_are_there(
    path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g1"), "r", T0)
        without_view(path)
        real = Journal.segments
        turns = iter(range(9))

        def segments(journal: Journal) -> list[int]:
            found = real(journal)
            if journal is not ledger.store._home.journal and next(turns) == 2:  # type: ignore[union-attr]
                for number in range(3):
                    ledger.decisions.record(*told(str(number)))
                    ledger.compact(T0)
                without_view(path)
            return found

        monkeypatch.setattr(Journal, "segments", segments)
        with closing(Ledger(path, read_only=True)) as reader:
            assert [one.generation for one in reader.launches.open()] == ["g1"]
            assert reasons(reader) == ["0", "1", "2"]


# rows that are known by their line


def test_each_decision_keeps_its_own_number_in_an_import(path: Path, tmp_path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        for number in range(5):
            ledger.decisions.record(*told(f"d{number}", f"e{number}"))
        before = reasons(ledger)
    export = tmp_path / "export"
    backup.export([(path, LEDGER)], export)
    new = tmp_path / "new" / "ledger.db"
    new.parent.mkdir()
    backup.put_back(export, [(new, LEDGER)], older=False)
    with closing(Ledger(new)) as ledger:
        assert reasons(ledger) == before


def test_decisions_of_one_transaction_keep_their_order(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        with ledger.together():
            for reason in "abc":
                ledger.decisions.record(*told(reason))
        assert reasons(ledger) == list("abc")
        assert [str(one.reason) for one in ledger.decisions.about("pub1")] == list("abc")
    with closing(made_anew(path)) as ledger:
        assert reasons(ledger) == list("abc")


def test_a_journal_that_was_removed_while_nothing_ran_is_begun_with_higher_numbers(
    path: Path,
) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.decisions.record(*told("a", "b"))
    shutil.rmtree(path.parent / "journal")
    with closing(Ledger(path)) as ledger:
        for reason in "cdef":
            ledger.decisions.record(*told(reason))
        assert reasons(ledger) == list("abcdef")


# what was refused


@pytest.mark.parametrize("written", [False, True], ids=["half a line", "a whole line"])
def test_what_was_refused_and_cannot_be_taken_off_is_no_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    real = os.write

    def broken(*_: object) -> Any:
        raise OSError(errno.EIO, "EIO")

    def half(descriptor: int, content: bytes) -> int:
        if len(content) < 100:
            raise OSError(errno.EIO, "EIO")
        return real(descriptor, content[:-90])

    with closing(Ledger(path)) as ledger, closing(Ledger(path)) as other:
        ledger.decisions.record(*told("a"))
        with monkeypatch.context() as patched:
            patched.setattr(os, "ftruncate", broken)
            patched.setattr(*(os, "fsync", broken) if written else (os, "write", half))
            with pytest.raises(sqlite3.Error, match="EIO"):
                ledger.decisions.record(*told("refused"))
            with closing(Ledger(path, read_only=True)) as reader:
                assert reasons(reader) == ["a"]
            health = backup.verify((path, LEDGER))
            assert (health.sound, len(health.damages)) == (True, 1)
        other.decisions.record(*told("b"))
        ledger.decisions.record(*told("c"))
        assert reasons(other) == ["a", "b", "c"]
    with closing(made_anew(path)) as ledger:
        assert reasons(ledger) == ["a", "b", "c"]
    assert backup.verify((path, LEDGER)).damages == ()


# without the files, and back


class Failing:
    """A ledger that goes on in memory, and whose clock stands."""

    def __init__(self, path: Path) -> None:
        self.clock = 0.0
        self.ledger = Ledger.enduring(path, monotonic=lambda: self.clock)

    def fail(self, number: int = errno.EIO) -> None:
        self.ledger.give_up(OSError(number, os.strerror(number)))
        assert self.ledger.end_only

    def back(self) -> None:
        self.clock += 11
        assert self.ledger.check().end_only == ""


def blind(path: Path, monkeypatch: pytest.MonkeyPatch) -> Failing:
    """One that could read nothing as it began."""

    def broken(*_: object, **__: object) -> Any:
        raise OSError(errno.EIO, "EIO")

    with monkeypatch.context() as patched:
        patched.setattr(view, "connect", broken)
        patched.setattr(Journal, "segments", broken)
        site = Failing(path)
    assert site.ledger.end_only
    return site


def test_decisions_go_on_in_memory_after_those_of_another_process(path: Path) -> None:
    site = Failing(path)
    with closing(Ledger(path)) as other:
        other.decisions.record(*told("theirs 1"))
        other.decisions.record(*told("theirs 2"))
    site.fail()
    for number in range(3):
        site.ledger.decisions.record(*told(f"ours {number}"))
    site.back()
    found = ["theirs 1", "theirs 2", "ours 0", "ours 1", "ours 2"]
    assert reasons(site.ledger) == found
    site.ledger.close()


def test_what_others_wrote_meanwhile_stands(path: Path) -> None:
    site = Failing(path)
    site.ledger.launches.record_intent(spec("g1"), "r", T0)
    site.ledger.machines.record_launch("g1", [instance("i-1")], T0)
    site.fail(errno.EMFILE)
    site.ledger.machines.record_registration("aws", ["i-1"], T0 + 5)
    with closing(Ledger(path)) as other:
        other.machines.record_end("aws", ["i-1"], Quoted(text="an operator"), T0 + 7)
    site.back()
    (row,) = site.ledger.machines.live(ended_since=0.0)
    assert (row.registered_at, row.ended_at, str(row.cause_text)) == (T0 + 5, T0 + 7, "an operator")
    site.ledger.close()


def test_what_is_written_in_memory_from_the_start_on_stands(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files could be read then: whatever was there is not another process' news."""
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g1"), "r", T0)
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "locked", lambda *_: (_ for _ in ()).throw(OSError(11, "locked")))
        site = Failing(path)
        assert site.ledger.end_only
    site.ledger.launches.record_failure("g1", "no room", T0 + 1)
    site.back()
    assert site.ledger.launches.open() == ()
    site.ledger.close()


def test_all_files_that_were_removed_meanwhile_are_made_of_memory_once(path: Path) -> None:
    site = Failing(path)
    site.ledger.decisions.record(*told("before"))
    site.fail()
    site.ledger.decisions.record(*told("meanwhile"))
    shutil.rmtree(path.parent / "journal")
    without_view(path)
    site.back()
    for number in range(4):
        site.ledger.decisions.record(*told(f"after {number}"))
    assert reasons(site.ledger) == ["meanwhile", *(f"after {n}" for n in range(4))]
    site.ledger.close()


@pytest.mark.parametrize("removed", ["view", "journal"])
def test_of_the_file_that_was_not_removed_meanwhile_all_stands(path: Path, removed: str) -> None:
    site = Failing(path)
    site.ledger.decisions.record(*told("before"))
    site.fail()
    site.ledger.requeues.lift(7, 0, T0)
    with closing(Ledger(path)) as other:
        other.decisions.record(*told("theirs"))
    if removed == "view":
        without_view(path)
    else:
        shutil.rmtree(path.parent / "journal")
    site.back()
    assert reasons(site.ledger) == ["before", "theirs"]
    assert site.ledger.requeues.lifted() == ((7, 0),)
    site.ledger.close()


def test_a_journal_that_is_begun_of_memory_says_no_number_again(path: Path) -> None:
    site = Failing(path)
    site.ledger.requeues.lift(1, 0, T0)
    with closing(Ledger(path)) as other:
        for job in (2, 3):
            other.requeues.lift(job, 0, T0)
    last = backup.verify((path, LEDGER)).last
    site.fail()
    shutil.rmtree(path.parent / "journal")
    without_view(path)
    site.back()
    assert backup.verify((path, LEDGER)).last == last
    site.ledger.close()


def test_what_a_new_journal_was_begun_with_is_counted_once_though_its_view_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        raise sqlite3.OperationalError("disk I/O error")

    site = Failing(path)
    site.fail()
    site.ledger.usage.count({"calls": 5})
    shutil.rmtree(path.parent / "journal")
    without_view(path)
    with monkeypatch.context() as patched:
        patched.setattr(view, "made_anew", broken)
        site.clock += 11
        assert "disk I/O error" in site.ledger.check().end_only
    site.ledger.usage.count({"calls": 1})
    site.back()
    assert site.ledger.usage.counters() == {"calls": 6}
    site.ledger.close()


def test_nothing_is_bought_where_the_files_fail_before_the_intent_is_written(path: Path) -> None:
    site = Failing(path)
    real = site.ledger.books.payers_by_node

    def wanted_by(nodes: Any) -> Any:
        site.fail()
        return real(nodes)

    site.ledger.books.payers_by_node = wanted_by  # type: ignore[method-assign]
    with pytest.raises(EndOnlyError):
        site.ledger.launches.record_intent(spec("g1"), "r", T0)
    site.ledger.close()


def test_a_journal_that_went_while_nothing_ran_is_made_of_the_view(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g1"), "r", T0)
    newest = max((path.parent / "journal").glob("*.jsonl"))
    newest.write_bytes(newest.read_bytes()[:-5])
    site = Failing(path)
    assert not site.ledger.end_only
    assert [one.generation for one in site.ledger.launches.open()] == ["g1"]
    site.ledger.close()
    with closing(made_anew(path)) as ledger:
        assert [one.generation for one in ledger.launches.open()] == ["g1"]


def test_a_damaged_journal_is_begun_anew_with_what_another_process_wrote(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Failing(path)
    site.ledger.launches.record_intent(spec("g1"), "r", T0)
    with closing(Ledger(path)) as other:
        for reason in "abc":
            other.decisions.record(*told(reason))
    newest = max((path.parent / "journal").glob("*.jsonl"))
    raw = bytearray(newest.read_bytes())
    raw[150] ^= 1
    newest.write_bytes(raw)
    site.clock += 601
    assert site.ledger.check().end_only == ""
    assert f"{newest} is damaged from byte {raw.index(10) + 1} on and starts over" in caplog.text
    for reason in "def":
        site.ledger.decisions.record(*told(reason))
    assert reasons(site.ledger) == list("abcdef")
    site.ledger.close()


def killed_after_a_line(path: Path) -> None:
    """A process that ends when its intent is in the journal and not in the view yet."""
    other = Ledger(path)
    append = Journal.append

    def appended(*arguments: Any) -> Any:
        append(*arguments)
        os._exit(9)

    Journal.append = appended  # type: ignore[method-assign]
    other.launches.record_intent(spec("g2", nodes=("pub3",)), "r", T0)


def test_a_damaged_journal_is_begun_anew_with_what_a_killed_process_wrote(path: Path) -> None:
    site = Failing(path)
    site.ledger.launches.record_intent(spec("g1"), "r", T0)
    newest = max((path.parent / "journal").glob("*.jsonl"))
    raw = bytearray(newest.read_bytes())
    raw[150] ^= 1
    newest.write_bytes(raw)
    in_child(lambda: killed_after_a_line(path))
    site.clock += 601
    assert site.ledger.check().end_only == ""
    assert {one.generation for one in site.ledger.launches.open()} == {"g1", "g2"}
    site.ledger.close()
    with closing(made_anew(path)) as ledger:
        assert {one.generation for one in ledger.launches.open()} == {"g1", "g2"}


def test_what_a_killed_process_appended_goes_over_into_memory(path: Path) -> None:
    site = Failing(path)
    site.ledger.launches.record_intent(spec("g1"), "r", T0)
    in_child(lambda: killed_after_a_line(path))
    site.fail()
    assert {one.generation for one in site.ledger.launches.open()} == {"g1", "g2"}
    site.ledger.close()


@pytest.mark.parametrize("boot", ["", "another"], ids=["this boot", "another boot"])
def test_one_that_cannot_be_opened_is_read_from_the_view_of_this_boot_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, boot: str
) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.requeues.lift(7, 0, T0)
        ledger.health.beat("ckptman", T0, 8)
    if boot:
        monkeypatch.setattr(view, "boot", lambda: boot)

    def locked(*_: object) -> Any:
        raise OSError(errno.EWOULDBLOCK, "locked")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "locked", locked)
        site = Failing(path)
    assert site.ledger.end_only
    assert site.ledger.requeues.lifted() == ((7, 0),)
    assert site.ledger.health.heartbeat("ckptman") == (None if boot else (T0, 8))
    site.ledger.close()


def test_that_nothing_could_be_read_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Ledger(path).close()
    blind(path, monkeypatch).ledger.close()
    assert f"{path} cannot be read now: [Errno 5] EIO" in caplog.text


def test_an_older_copy_of_the_view_is_not_believed(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g1"), "r", T0)
    copy = path.read_bytes()
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g2", nodes=("pub3",)), "r", T0)
    path.write_bytes(copy)  # the same file, as ``cp`` leaves it
    with closing(Ledger(path)) as ledger:
        assert {one.generation for one in ledger.launches.open()} == {"g1", "g2"}


def test_an_older_copy_beside_the_wal_of_one_that_was_killed_is_not_believed(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g0"), "r", T0)
    copy = path.read_bytes()
    with closing(Ledger(path)) as ledger:
        for number in range(300):
            ledger.decisions.record(*told(f"{number:0900}"))

    def killed() -> None:
        ledger = Ledger(path)
        ledger.launches.record_intent(spec("g1", nodes=("pub3",)), "r", T0)
        os._exit(9)

    in_child(killed)
    assert path.with_name("ledger.db-wal").stat().st_size
    path.write_bytes(copy)
    with closing(Ledger.enduring(path)) as ledger:
        assert ledger.check().end_only == ""
        assert {one.generation for one in ledger.launches.open()} == {"g0", "g1"}
        assert len(ledger.decisions.last(1000)) == 300


def test_a_view_that_another_process_has_made_anew_is_not_set_aside(path: Path) -> None:
    site = Failing(path)
    error = sqlite3.DatabaseError("malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    site.ledger.decisions.record(*told("a"))
    without_view(path)
    with closing(Ledger(path)) as other:
        other.decisions.record(*told("b"))
        new = path.stat().st_ino
        site.ledger.give_up(error)
        assert (site.ledger.end_only, reasons(site.ledger)) == ("", ["a", "b"])
        assert path.stat().st_ino == new
    assert list(path.parent.glob("*.damaged-*")) == []
    site.ledger.close()


def test_who_opens_it_after_its_wal_went_and_who_had_it_open_have_the_same(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.decisions.record(*told("a"))
        ledger.store.shorten()
        path.with_name("ledger.db-wal").unlink()
        with closing(Ledger(path)) as other:
            for reason in "bcdefg":
                (ledger if reason in "bdf" else other).decisions.record(*told(reason))
            assert reasons(ledger) == reasons(other) == list("abcdefg")


@pytest.mark.parametrize("lost", [("-wal",), ("-wal", "-shm")])
def test_what_sqlite_has_beside_it_may_go_under_running_services(
    path: Path, lost: tuple[str, ...]
) -> None:
    site = Failing(path)
    with closing(Ledger(path)) as other:
        for number in range(30):
            site.ledger.decisions.record(*told(f"{number}"))
            other.decisions.record(*told(f"{number}"))
            if number == 10:
                for end in lost:
                    path.with_name(path.name + end).unlink()
            site.clock += 15
            site.ledger.check()
        assert site.ledger.end_only == ""
        expected = sorted(2 * [str(number) for number in range(30)])
        assert sorted(reasons(site.ledger)) == sorted(reasons(other)) == expected
    site.ledger.close()


def test_lists_that_lacked_a_machine_long_ago_do_not_count(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g1"), "r", T0)
        ledger.machines.record_launch("g1", [instance("i-1")], T0)
        for now in (T0 + 700, T0 + 760):
            ledger.machines.observe("aws", [], now)
        ledger.machines.record_registration("aws", ["i-1"], T0 + 800)
        assert [m.missed_listings for m in ledger.machines.live()] == [2]
    with closing(made_anew(path)) as ledger:
        assert [m.missed_listings for m in ledger.machines.live()] == [0]


def test_a_view_that_goes_inside_a_transaction_lets_nobody_else_in(path: Path) -> None:
    """The line that is cut off where the transaction fails is our own."""
    with closing(Ledger(path)) as ledger, closing(Ledger(path)) as other:
        heard: list[str] = []

        def write() -> None:
            other.launches.record_intent(spec("g2", nodes=("pub3",)), "r", T0)
            heard.append("g2")

        thread = threading.Thread(target=write)

        def refused() -> None:
            with ledger.together():
                ledger.decisions.record(*told("a"))
                without_view(path)
                thread.start()
                ledger.decisions.record(*told("b"))
                assert heard == []
                raise sqlite3.OperationalError("refused")

        with pytest.raises(sqlite3.Error, match="refused"):
            refused()
        thread.join()
    with closing(made_anew(path)) as ledger:
        assert [one.generation for one in ledger.launches.open()] == ["g2"]


def test_decisions_are_numbered_by_the_transaction_whose_view_goes_meanwhile(path: Path) -> None:
    Ledger(path).close()
    with closing(Ledger.followed(path)) as ledger:
        with ledger.together():
            ledger.decisions.record(*told("first"))
            path.unlink()
            ledger.decisions.record(*told("second"))
        with closing(made_anew(path)):
            pass
        ledger.decisions.record(*told("third"))
        assert reasons(ledger) == ["first", "second", "third"]
    with closing(Ledger(path)) as again:
        assert reasons(again) == ["first", "second", "third"]


def test_what_says_how_far_the_view_is_may_be_lost(path: Path, short: None) -> None:
    with closing(Ledger(path)) as ledger, closing(Ledger(path)) as other:
        ledger.decisions.record(*told("a"))
        ledger.compact(T0)
        other.decisions.record(*told("b"))
        (path.parent / "journal" / "ledger.applied").write_bytes(b"")
        ledger.decisions.record(*told("c"))
        other.decisions.record(*told("d"))
        assert reasons(ledger) == list("abcd")


def test_a_line_whose_note_fails_is_there_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Ledger(path)) as ledger:

        def broken(*_: object) -> None:
            raise OSError(errno.EIO, "EIO")

        with monkeypatch.context() as patched:
            patched.setattr(Journal, "note", broken)
            ledger.decisions.record(*told("a"))
        ledger.decisions.record(*told("b"))
        assert reasons(ledger) == ["a", "b"]


def test_a_beginning_of_others_rows_is_nobodys_news(path: Path, short: None) -> None:
    site = Failing(path)
    site.ledger.launches.record_intent(spec("g1"), "r", T0)
    site.fail(errno.EMFILE)
    site.ledger.launches.record_failure("g1", "no room", T0 + 1)
    with closing(Ledger(path)) as other:
        other.decisions.record(*told("theirs"))
        other.compact(T0)
    site.back()
    assert site.ledger.launches.open() == ()
    site.ledger.close()


@pytest.mark.parametrize("is_blind", [False, True])
def test_what_two_processes_counted_is_summed(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_blind: bool
) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.usage.count({"calls": 2, "mine": 1})
    if is_blind:
        site = blind(path, monkeypatch)
    else:
        site = Failing(path)
        site.fail()
    for _ in range(2):
        site.ledger.usage.count({"calls": 1, "mine": 1})
    with closing(Ledger(path)) as other:
        other.usage.count({"calls": 10})
    site.back()
    assert site.ledger.usage.counters() == {"calls": 14, "mine": 3}
    site.ledger.close()


def test_what_was_counted_up_to_a_time_is_not_counted_again_by_one_that_could_read_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Any = None
    with closing(Ledger(path)) as ledger:
        settle(config, ledger, T0)
        since = ledger.usage.settled()
    site = blind(path, monkeypatch)
    settle(config, site.ledger, T0 + 500)
    assert site.ledger.usage.settled() is None
    site.back()
    assert site.ledger.usage.settled() == since
    site.ledger.close()


def test_a_part_that_could_not_be_read_keeps_its_number(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = instance("i-1")
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g1"), "r", T0)
        ledger.machines.record_launch("g1", [one], T0)
        ledger.stops.record_stopping("aws", ["i-1"], Quoted(text="idle"), T0 + 100)
        ledger.stops.record_stopped("aws", {"i-1": 0.1}, T0 + 110)
    site = blind(path, monkeypatch)
    site.ledger.machines.adopt(one, "p", T0 + 200)
    site.ledger.stops.record_stopping("aws", ["i-1"], Quoted(text="idle"), T0 + 300)
    site.ledger.stops.record_stopped("aws", {"i-1": 0.1}, T0 + 310)
    site.back()
    parts = site.ledger.machines.live(ended_since=0.0, stopped=True)
    assert {m.instance.id: m.ended_at for m in parts} == {
        "i-1@1": T0 + 110, f"i-1@{int(T0) + 310}": T0 + 310, "i-1": None
    }  # fmt: skip
    site.ledger.close()


def test_of_a_row_that_two_have_changed_each_ones_columns_count(path: Path) -> None:
    site = Failing(path)
    site.ledger.launches.record_intent(spec("g1"), "r", T0)
    site.ledger.machines.record_launch("g1", [instance("i-1")], T0)
    site.ledger.stops.record_stopping("aws", ["i-1"], Quoted(text="idle"), T0 + 1)
    site.fail(errno.EMFILE)
    site.ledger.stops.record_stop_failure("aws", ["i-1"], Quoted(text="cannot be stopped"))
    with closing(Ledger(path)) as other:
        other.machines.observe("aws", [instance("i-1", address="10.0.0.7")], T0 + 5)
    site.back()
    (row,) = site.ledger.machines.live()
    assert (row.instance.address, row.last_seen) == ("10.0.0.7", T0 + 5)
    assert (row.is_stopping, str(row.cause_text)) == (False, "cannot be stopped")
    site.ledger.close()


def test_others_news_count_though_their_lines_went_with_old_segments(
    path: Path, short: None
) -> None:
    site = Failing(path)
    site.ledger.launches.record_intent(spec("g1"), "r", T0)
    site.ledger.machines.record_launch("g1", [instance("i-1")], T0)
    site.fail(errno.EMFILE)
    site.ledger.machines.record_registration("aws", ["i-1"], T0 + 5)
    with closing(Ledger(path)) as other:
        other.machines.record_end("aws", ["i-1"], Quoted(text="an operator"), T0 + 7)
        for number in range(3):
            other.decisions.record(*told(str(number)))
            other.compact(T0)
    site.back()
    (row,) = site.ledger.machines.live(ended_since=0.0)
    assert (row.registered_at, row.ended_at) == (T0 + 5, T0 + 7)
    site.ledger.close()


# the file of checkpoints


def test_a_step_that_was_taken_while_nothing_could_be_read_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoints.db"
    run = JobRun(
        job=7, label="7", attempt=0, user="u", uid=1, gid=1, nodes=("n1",), partition="p",
        started=1.0, options={}, directory="",
    )  # fmt: skip
    move = Migration(
        run=run,
        method="m",
        threatened=("n1",),
        reason=Quoted(text="r"),
        step=MigrationStep.SAVING,
        began=1.0,
        changed=1.0,
    )
    with closing(CheckpointState(path)) as state:
        state.put(move)
    clock = [0.0]

    def broken(*_: object, **__: object) -> Any:
        raise OSError(errno.EIO, "EIO")

    with monkeypatch.context() as patched:
        patched.setattr(view, "connect", broken)
        patched.setattr(Journal, "segments", broken)
        state = CheckpointState.enduring(path, monotonic=lambda: clock[0])
        assert state.migrations() == ()
        state.put(msgspec.structs.replace(move, step=MigrationStep.REQUEUED, changed=200.0))
    clock[0] += 11
    state.check()
    assert [one.step for one in state.migrations()] == [MigrationStep.REQUEUED]
    state.close()


def test_who_shares_a_sync_hears_of_any_error(tmp_path: Path) -> None:
    """Also of one that is not sqlite's: a later release has made the view."""
    path = tmp_path / "checkpoints.db"
    state = CheckpointState(path)
    heard: list[BaseException] = []

    def write() -> None:
        try:
            state.add_suspension(Suspension(job=7, attempt=0, since=1.0))
        except ConfigError as error:
            heard.append(error)

    with state.lock:
        thread = threading.Thread(target=write)
        thread.start()
        while not state._tickets:
            time.sleep(0.01)
        with closing(sqlite3.connect(tmp_path / "later")) as db:
            db.execute("pragma user_version = 99")
        os.replace(tmp_path / "later", path)
        with pytest.raises(ConfigError, match="has schema 99"):
            state.add_suspension(Suspension(job=8, attempt=0, since=1.0))
    thread.join()
    assert len(heard) == 1
    state.close()


# what is put back


def export_of(tmp_path: Path, *lines: JournalLine) -> Path:
    export = tmp_path / "export"
    export.write_bytes(b"".join(map(line_of, lines)))
    return export


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([JournalLine(n=9, begin=Begin(memory="ledger", schema=99, rows=0))], "has schema 99"),
        (
            [
                JournalLine(n=9, begin=Begin(memory="ledger", schema=1, rows=1)),
                JournalLine(n=9, facts=(Fact(put="machines", rows=[{"id": "i-1"}]),)),
            ],
            "cannot be taken",
        ),
    ],
    ids=["of a later release", "no row of ours"],
)
def test_what_no_start_could_take_is_not_put_back(
    path: Path, tmp_path: Path, lines: list[JournalLine], why: str
) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g1"), "r", T0)
    with pytest.raises(SlurmElasticError, match=why):
        backup.put_back(export_of(tmp_path, *lines), [(path, LEDGER)], older=True)
    with closing(Ledger(path)) as ledger:
        assert [one.generation for one in ledger.launches.open()] == ["g1"]


def test_another_heads_journal_is_not_put_over_ones_own_for_its_higher_numbers(
    path: Path, tmp_path: Path
) -> None:
    with closing(Ledger(path)) as ledger:
        for reason in "abcdef":
            ledger.decisions.record(*told(reason))
    export = tmp_path / "export"
    backup.export([(path, LEDGER)], export)
    here = tmp_path / "here" / "ledger.db"
    here.parent.mkdir()
    with closing(Ledger(here)) as ledger:
        ledger.launches.record_intent(spec("g1"), "r", T0)
    with pytest.raises(SlurmElasticError, match="of another journal"):
        backup.put_back(export, [(here, LEDGER)], older=False)
    backup.put_back(export, [(here, LEDGER)], older=True)
    with closing(Ledger(here)) as ledger:
        assert (ledger.launches.open(), reasons(ledger)) == ((), list("abcdef"))


def test_what_was_put_back_goes_on_as_a_journal_of_its_own(path: Path, tmp_path: Path) -> None:
    """The export of Tuesday lacks what was written since that of Monday was put back."""
    monday, tuesday = tmp_path / "monday", tmp_path / "tuesday"
    with closing(Ledger(path)) as ledger:
        ledger.decisions.record(*told("a"))
        backup.export([(path, LEDGER)], monday)
        ledger.decisions.record(*told("b"))
        ledger.decisions.record(*told("c"))
        backup.export([(path, LEDGER)], tuesday)
    backup.put_back(monday, [(path, LEDGER)], older=True)
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("new"), "r", T0)
    with pytest.raises(SlurmElasticError, match="of another journal"):
        backup.put_back(tuesday, [(path, LEDGER)], older=False)


def test_a_standby_takes_one_export_after_the_other_until_it_has_facts_of_its_own(
    path: Path, tmp_path: Path, short: None
) -> None:
    here, export = tmp_path / "here" / "ledger.db", tmp_path / "export"
    here.parent.mkdir()
    with closing(Ledger(path)) as ledger:
        for reason in "abc":
            ledger.decisions.record(*told(reason))
            backup.export([(path, LEDGER)], export)
            backup.put_back(export, [(here, LEDGER)], older=False)
            ledger.compact(T0)
        with closing(Ledger(here)) as standby:
            assert reasons(standby) == ["a", "b", "c"]
            standby.decisions.record(*told("its own"))
        for reason in "def":
            ledger.decisions.record(*told(reason))
    backup.export([(path, LEDGER)], export)
    with pytest.raises(SlurmElasticError, match="of another journal"):
        backup.put_back(export, [(here, LEDGER)], older=False)


def test_an_export_of_a_sound_journal_is_its_newest_segment(path: Path, tmp_path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g1"), "r", T0)
        ledger.decisions.record(*told("a"))
    backup.export([(path, LEDGER)], tmp_path / "export")
    (segment,) = (path.parent / "journal").glob("*.jsonl")
    assert (tmp_path / "export").read_bytes() == segment.read_bytes()


@pytest.mark.parametrize("line", [0, 1, 2])
@pytest.mark.parametrize("begun", [1, 2], ids=["the only segment", "one after another"])
def test_an_export_of_a_damaged_journal_has_what_can_be_read(
    path: Path, tmp_path: Path, short: None, line: int, begun: int
) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g1"), "r", T0)
        for _ in range(begun - 1):
            ledger.compact(T0)
        for number in range(3):
            ledger.decisions.record(*told(str(number)))
    newest = max((path.parent / "journal").glob("*.jsonl"))
    lines = newest.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b"e", b"x")
    newest.write_bytes(b"".join(lines))
    export, here = tmp_path / "export", tmp_path / "here" / "ledger.db"
    here.parent.mkdir()
    backup.export([(path, LEDGER)], export)
    backup.put_back(export, [(here, LEDGER)], older=False)
    with closing(Ledger(here)) as there, closing(made_anew(path)) as ledger:
        assert reasons(there) == reasons(ledger)
        assert len(reasons(there)) >= 2
        assert there.launches.open() == ledger.launches.open()


def test_an_export_of_a_damaged_journal_has_nothing_of_what_was_copied_before_the_damage(
    path: Path, tmp_path: Path
) -> None:
    """What can be read of all is much less than that."""
    with closing(Ledger(path)) as ledger:
        for _ in range(50):
            ledger.requeues.lift(7, 0, T0)
            ledger.requeues.forget(7)
        ledger.requeues.lift(8, 0, T0)
    (segment,) = (path.parent / "journal").glob("*.jsonl")
    with segment.open("ab") as file:
        file.write(b"damaged\n")
    export, here = tmp_path / "export", tmp_path / "here" / "ledger.db"
    here.parent.mkdir()
    assert backup.export([(path, LEDGER)], export) == len(export.read_bytes().splitlines())
    backup.put_back(export, [(here, LEDGER)], older=False)
    with closing(Ledger(here)) as there:
        assert there.requeues.lifted() == ((8, 0),)


@pytest.mark.parametrize("lacking", [1, 3])
def test_an_export_that_lacks_rows_of_its_beginning_is_not_put_back(
    path: Path, tmp_path: Path, lacking: int
) -> None:
    export = export_of(
        tmp_path, JournalLine(n=9, begin=Begin(memory="ledger", schema=1, rows=lacking))
    )
    with pytest.raises(SlurmElasticError, match=f"lacks {lacking} rows of the ledger"):
        backup.put_back(export, [(path, LEDGER)], older=False)


def test_both_memories_are_put_back_on_a_head_that_never_ran(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with closing(Ledger(tmp_path / "old" / "ledger.db")) as ledger:
        ledger.launches.record_intent(spec("g1"), "r", T0)
    with closing(CheckpointState(tmp_path / "old" / "checkpoints.db")) as state:
        state.add_suspension(Suspension(job=7, attempt=0, since=1.0))
    both = [("ledger.db", LEDGER), ("checkpoints.db", SCHEMA)]
    export = tmp_path / "export"
    backup.export([(tmp_path / "old" / name, schema) for name, schema in both], export)
    backup.put_back(
        export, [(tmp_path / "new" / name, schema) for name, schema in both], older=False
    )
    with closing(Ledger(tmp_path / "new" / "ledger.db")) as ledger:
        assert len(ledger.launches.open()) == 1
    with closing(CheckpointState(tmp_path / "new" / "checkpoints.db")) as state:
        assert set(state.suspensions()) == {7}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_view_that_can_only_be_read_is_not_taken_for_one_that_can_be_written(
    open_path: Path,
) -> None:
    """As while the disk is read-only: a connection of then would refuse all writes for ever, and
    with it those that the process opens later.
    """
    path = open_path / "ledger.db"
    with closing(Ledger(path)) as ledger:
        ledger.decisions.record(*told("before"))
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).chmod(0o644)
        os.seteuid(65534)
        try:
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                view.open_writer(path)
        finally:
            os.seteuid(0)
        with closing(view.open_writer(path)):
            ledger.decisions.record(*told("after"))
            assert reasons(ledger) == ["before", "after"]


# the journal and its view apart


@pytest.mark.parametrize("enduring", [False, True])
def test_a_journal_put_back_beside_a_newer_view_is_begun_anew_of_that(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, enduring: bool
) -> None:
    opened = Ledger.enduring if enduring else Ledger
    with closing(Ledger(path)) as ledger:
        ledger.decisions.record(*told("a"))
    shutil.copytree(path.parent / "journal", tmp_path / "kept")
    with closing(Ledger(path)) as ledger:
        ledger.requeues.lift(7, 0, T0)
        ledger.decisions.record(*told("b"))
    shutil.rmtree(path.parent / "journal")
    shutil.copytree(tmp_path / "kept", path.parent / "journal")
    with closing(opened(path)) as ledger:
        ledger.decisions.record(*told("c"))
        assert not ledger.end_only
        assert reasons(ledger) == ["a", "b", "c"]
    assert "[Errno 2] it ends before its view" in caplog.text
    with closing(made_anew(path)) as ledger:
        assert reasons(ledger) == ["a", "b", "c"]
        assert ledger.requeues.lifted() == ((7, 0),)


def test_an_end_that_is_gone_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Ledger(path)) as ledger:
        for job in range(5):
            ledger.requeues.lift(job, 0, T0)
    assert backup.verify((path, LEDGER)).sound
    segment = path.parent / "journal" / "ledger-000001.jsonl"
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:-2]))
    health = backup.verify((path, LEDGER))
    assert (health.sound, health.missing) == (False, 2)
    monkeypatch.setattr(view, "boot", lambda: "another")
    with closing(Ledger(path)) as ledger:
        assert len(ledger.requeues.lifted()) == 3
    assert "ends with line 3 but had 5: the records after it are lost" in caplog.text


@pytest.mark.parametrize(
    "rest", [b"", b"x" * 200 + b"\n", b"x" * 200], ids=["none", "line", "half"]
)
def test_the_newest_segment_is_gone_on_with_though_nothing_of_it_can_be_read(
    path: Path, short: None, monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.requeues.lift(1, 0, T0)
        ledger.store.shorten()
    newest = path.parent / "journal" / "ledger-000002.jsonl"
    newest.write_bytes(rest)
    with closing(made_anew(path)) as ledger:
        ledger.requeues.lift(2, 0, T0)
        ledger.requeues.lift(3, 0, T0)
        assert ledger.store._home.position.segment == 2  # type: ignore[union-attr]
    assert newest.stat().st_size > len(rest)
    with closing(made_anew(path)) as ledger:
        assert ledger.requeues.lifted() == ((1, 0), (2, 0), (3, 0))
        ledger.store.shorten()
    with closing(made_anew(path)) as ledger:
        assert ledger.requeues.lifted() == ((1, 0), (2, 0), (3, 0))


# a new segment that fails


def drafts(path: Path) -> list[str]:
    return [one.name for one in path.parent.rglob("*") if ".draft" in one.name]


def test_what_a_killed_writer_of_a_segment_left_goes_with_a_later_one(
    path: Path, short: None
) -> None:
    def killed() -> None:
        with closing(Ledger(path)) as ledger:
            ledger.requeues.lift(1, 0, T0)
            os.fsync = lambda _: os._exit(9)  # type: ignore[assignment]
            ledger.store.shorten()

    in_child(killed)
    with closing(Ledger(path)) as ledger:
        ledger.store.shorten()
        (left,) = drafts(path)
        long_ago = time.time() - 2 * 86400
        os.utime(path.parent / "journal" / left, (long_ago, long_ago))
        ledger.store.shorten()
    assert drafts(path) == []


def test_a_segment_for_which_there_is_no_room_ends_nothing(
    path: Path, short: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with closing(Ledger.enduring(path)) as ledger:
        ledger.requeues.lift(1, 0, T0)
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "segment_of", full)
            ledger.compact(T0)
        assert "cannot begin a segment" in caplog.text
        ledger.requeues.lift(2, 0, T0)
        assert not ledger.end_only
    with closing(made_anew(path)) as ledger:
        assert ledger.requeues.lifted() == ((1, 0), (2, 0))


def test_nothing_is_written_to_a_segment_whose_name_is_not_on_the_disk(
    path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "EIO")
        real(descriptor)

    with closing(Ledger(path)) as ledger:
        ledger.requeues.lift(1, 0, T0)
        ledger.store.shorten()
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fsync)
            ledger.store.shorten()
            with pytest.raises(sqlite3.Error, match="EIO"):
                ledger.requeues.lift(2, 0, T0)
        names = sorted(one.name for one in (path.parent / "journal").glob("*.jsonl"))
        assert names == [f"ledger-00000{number}.jsonl" for number in (1, 2, 3)]
        ledger.requeues.lift(3, 0, T0)
    with closing(made_anew(path)) as ledger:
        assert ledger.requeues.lifted() == ((1, 0), (3, 0))


def test_files_that_are_given_up_while_a_segment_is_written_are_let_go(
    path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Failing(path)
    site.ledger.requeues.lift(1, 0, T0)
    real = view.rows_of

    def rows_of(*args: Any) -> Any:
        yield from real(*args)
        if not site.ledger.end_only:
            thread = threading.Thread(target=site.fail)
            thread.start()
            thread.join()

    with monkeypatch.context() as patched:
        patched.setattr(view, "rows_of", rows_of)
        site.ledger.store.shorten()
    assert held(path.parent) == []
    assert drafts(path) == []
    site.back()
    assert site.ledger.requeues.lifted() == ((1, 0),)
    site.ledger.close()


def test_a_value_that_sqlite_has_no_room_for_is_refused_and_no_line(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.db"
    with closing(CheckpointState.enduring(path)) as state:
        with pytest.raises(OverflowError):
            state.add_suspension(Suspension(job=2**63, attempt=0, since=1.0))
        state.add_suspension(Suspension(job=1, attempt=0, since=1.0))
    with closing(CheckpointState(path)) as state:
        assert set(state.suspensions()) == {1}


# what waits in memory


def test_what_is_said_of_a_row_many_times_waits_once(path: Path) -> None:
    site = Failing(path)
    site.ledger.usage.count({"calls": 1})
    size = (path.parent / "journal" / "ledger-000001.jsonl").stat().st_size
    site.fail()
    for number in range(500):
        site.ledger.usage.count({"calls": 1})
        site.ledger.requeues.lift(7, number, T0)
        site.ledger.requeues.lift(8, number, T0)
        site.ledger.requeues.forget(8)
    for number in range(3):
        site.ledger.decisions.record(*told(str(number)))
    site.back()
    segment = path.parent / "journal" / "ledger-000001.jsonl"
    assert segment.stat().st_size < size + 3000
    assert site.ledger.usage.counters() == {"calls": 501}
    assert site.ledger.requeues.lifted() == ((7, 0),)
    assert reasons(site.ledger) == ["0", "1", "2"]
    site.ledger.close()
    with closing(made_anew(path)) as ledger:
        assert ledger.usage.counters() == {"calls": 501}
        assert ledger.requeues.lifted() == ((7, 0),)
        assert reasons(ledger) == ["0", "1", "2"]


def cannot_write_any_more(patched: pytest.MonkeyPatch) -> None:
    """From after a write on, before it is synced."""
    real = os.open

    def broken(*_: object) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    def opened(file: Any, flags: int, *rest: Any, **named: Any) -> Any:
        is_segment = str(file).endswith(".jsonl")
        return broken() if is_segment and flags & os.O_WRONLY else real(file, flags, *rest, **named)

    patched.setattr(os, "fsync", broken)
    patched.setattr(os, "ftruncate", broken)
    patched.setattr(os, "open", opened)


@pytest.mark.parametrize("taken", [False, True], ids=["alone", "taken by another process"])
def test_a_line_that_failed_and_could_not_be_cut_off_does_not_count(
    path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    site = Failing(path)
    site.ledger.usage.count({"calls": 1})
    with monkeypatch.context() as patched:
        cannot_write_any_more(patched)
        with pytest.raises(sqlite3.Error) as refused:
            site.ledger.requeues.lift(2, 0, T0)
        site.ledger.give_up(refused.value)
        assert site.ledger.end_only
        assert site.ledger.requeues.lifted() == ()
    if taken:
        with closing(Ledger(path)) as other:
            other.requeues.lift(3, 0, T0)
    site.back()
    assert site.ledger.requeues.lifted() == (((2, 0), (3, 0)) if taken else ())
    site.ledger.usage.count({"calls": 1})
    site.ledger.close()
    with closing(made_anew(path)) as ledger:
        assert ledger.requeues.lifted() == (((2, 0), (3, 0)) if taken else ())
        assert ledger.usage.counters() == {"calls": 2}
    assert backup.verify((path, LEDGER)).sound


def test_a_refusal_says_that_a_line_which_could_not_be_cut_off_may_count(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command ends after it, and the next writer applies the line."""
    with closing(Ledger(path)) as command, monkeypatch.context() as patched:
        cannot_write_any_more(patched)
        with pytest.raises(sqlite3.Error, match=MAY_COUNT_TEXT):
            command.requeues.lift(2, 0, T0)
    with closing(Ledger(path)) as next_writer:
        assert next_writer.requeues.lifted() == ((2, 0),)


def test_one_that_goes_on_after_a_line_that_failed_cuts_it_off_first(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.requeues.lift(1, 0, T0)
        with monkeypatch.context() as patched:
            cannot_write_any_more(patched)
            with pytest.raises(sqlite3.Error, match="Read-only"):
                ledger.requeues.lift(2, 0, T0)
        assert ledger.requeues.lifted() == ((1, 0),)
        ledger.requeues.lift(3, 0, T0)
    with closing(made_anew(path)) as ledger:
        assert ledger.requeues.lifted() == ((1, 0), (3, 0))


def test_files_that_are_used_again_are_waited_for_as_before(path: Path) -> None:
    def patience() -> int:
        return int(site.ledger.store.select("pragma busy_timeout")[0][0])

    site = Failing(path)
    before = patience()
    site.fail()
    site.back()
    assert patience() == before == int(view.BUSY_TIMEOUT * 1000)
    site.ledger.close()


def test_what_a_person_cleared_meanwhile_stays_so(path: Path) -> None:
    def cool_down(scope: str, until: float) -> Exclusion:
        return Exclusion(
            kind=COOL_DOWN, scope=scope, until=until, cause=Quoted(text="full"), count=1
        )

    site = Failing(path)
    site.ledger.exclusions.add(cool_down("aws/a", 10.0), cool_down("aws/b", 10.0))
    site.fail()
    assert site.ledger.exclusions.end_far(5.0, 1.0) == 2
    site.ledger.exclusions.add(cool_down("aws/c", 10.0))
    with closing(Ledger(path)) as other:
        assert other.exclusions.readmit(COOL_DOWN, "aws/a")
    site.back()
    assert [one.scope for one in site.ledger.exclusions.all()] == ["aws/b", "aws/c"]
    site.ledger.close()


# whose turn it is: see ``conftest.py``, too


def test_a_damaged_view_is_set_aside_in_turn(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = Failing(path)
    site.ledger.decisions.record(*told("a"))
    error = sqlite3.DatabaseError("malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    site.ledger.give_up(error)
    assert reasons(site.ledger) == ["a"]
    (aside,) = path.parent.glob("*.damaged-*")
    expected = (
        f"{path} is damaged (malformed)",
        f"the damaged ledger was set aside as {aside}",
        f"{path} is used again",
    )
    assert [one for one in expected if one not in caplog.text] == []
    assert held(path.parent).count("ledger.applied") == 1, "that of the damaged one is let go"
    site.ledger.close()


def test_the_owners_threads_wait_while_a_segment_takes_the_place_of_the_last(
    path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = []
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g1"), "r", T0)
        real = disk.Disk._note

        def note(one: disk.Disk, position: Any) -> None:
            alone.append(ledger.store.lock._is_owned())  # type: ignore[attr-defined]
            real(one, position)

        monkeypatch.setattr(disk.Disk, "_note", note)
        ledger.store.shorten()
    assert alone == [True]


def test_an_export_waits_for_who_writes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g1"), "r", T0)
    monkeypatch.setattr(backup, "BUSY_TIMEOUT", 0.0)
    refused = pytest.raises(OSError, match="another process has its lock")
    with closing(journal_of(path)) as journal, journal.locked(1.0), refused:
        backup.export([(path, LEDGER)], tmp_path / "export")
