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
from ledger_cases import T0, instance, spec

from slurm_elastic.base.errors import EndOnlyError
from slurm_elastic.state.ledger import SOUND, Decision, Ledger, enduring
from slurm_elastic.state.ledger.enduring import AGAIN, Enduring, Followed
from slurm_elastic.state.store import refuge
from slurm_elastic.state.store.files import Schema


class Clock:
    up = 100.0

    def monotonic(self) -> float:
        return self.up


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(enduring, "time", made)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def decision(number: int) -> Decision:
    return Decision(at=T0 + number, correlation="c", kind="k", subjects=("n1", "n2"),
                    reason=str(number), detail={"n": number})  # fmt: skip


# its owner


@pytest.fixture
def ledger(path: Path, clock: Clock) -> Iterator[Enduring]:
    with closing(Enduring(path, lambda: T0 + clock.up, clock.monotonic)) as made:
        yield made


def gives_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(refuge, "require_room", full)


def test_a_file_that_is_gone_again_as_it_comes_back_leaves_the_memory_in_use(
    ledger: Enduring, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.intend(spec(), "r", T0)
    with monkeypatch.context() as patched:
        gives_out(patched)
        ledger.check()
    merge = refuge.merge

    def removed(*args: Any) -> None:
        merge(*args)
        path.unlink()

    with monkeypatch.context() as patched:
        patched.setattr(refuge, "merge", removed)
        clock.up += 20
        assert ledger.check().end_only
    assert len(ledger.open_launches()) == 1
    clock.up += 20
    assert ledger.check() is SOUND
    assert len(ledger.open_launches()) == 1


def test_a_cloud_counts_as_read_once_this_process_has_read_it(ledger: Enduring, path: Path) -> None:
    """The last process may have had what it adopted in its memory alone."""
    ledger.read_whole("aws", T0)
    assert ledger.clouds_read() == ledger.state().read_whole == {"aws"}
    with closing(Enduring(path)) as later:
        assert later.clouds_read() == later.state().read_whole == frozenset()
        later.read_whole("onprem", T0)
        assert later.clouds_read() == later.state().read_whole == {"onprem"}
        later.read_whole("aws", T0 + 1)
        assert later.clouds_read() == later.state().read_whole == {"aws", "onprem"}


def test_while_it_cannot_be_written_nothing_is_bought_and_all_else_goes_on(
    ledger: Enduring, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.refresh()
    assert ledger.check() is SOUND
    assert (SOUND.end_only, SOUND.since) == ("", 0.0)
    ledger.intend(spec(), "r", T0)
    ledger.record(decision(1))
    with monkeypatch.context() as patched:
        gives_out(patched)
        found = ledger.check()
        assert found == ledger.condition
        assert found.end_only.startswith(f"end-only: the disk of {path.parent} is full")
        assert (bool(found.remedy), found.since) == (True, T0 + 100)
        assert not ledger.state().writable
        with pytest.raises(EndOnlyError, match=r"is full .*; nothing is bought"):
            ledger.intend(spec("g2"), "r", T0)
        ledger.launched("g1", [instance()], T0 + 1)
        ledger.record(decision(2), decision(3))
    clock.up += refuge.AGAIN
    assert ledger.check() is SOUND
    ledger.intend(spec("g2"), "r", T0)
    with closing(Ledger(path, read_only=True)) as file:
        assert [m.instance.id for m in file.machines()] == ["i-1"]
        assert [row.generation for row in file.open_launches()] == ["g2"]
        assert file.decisions("n1") == file.decisions("n2") == tuple(map(decision, (1, 2, 3)))


def test_an_error_of_its_file_is_one_sentence_and_the_first_counts(ledger: Enduring) -> None:
    ledger.give_up(sqlite3.OperationalError("disk I/O error"))
    ledger.give_up(OSError(errno.ENOSPC, "x"))
    assert "cannot be used (disk I/O error)" in ledger.end_only
    assert ledger.machines() == ()


def test_what_is_committed_is_written_down_a_second_time_once_all_of_it_is_there(
    ledger: Enduring, path: Path
) -> None:
    lately = path.with_name("ledger.db.lately")
    with ledger.together():
        ledger.intend(spec(), "r", T0)
        assert not lately.exists()
    assert len(lately.read_text().split()) > 0


def test_what_one_statement_changes_is_written_down_a_second_time_too(
    ledger: Enduring, path: Path
) -> None:
    lately = path.with_name("ledger.db.lately")
    ledger.beat("daemon", T0, 7)
    assert not lately.exists(), "it is told anew in a moment"
    ledger.lift_requeue(7, 0, T0)
    assert '"table": "lifted_requeues"' in lately.read_text()


# the other service


@pytest.fixture
def followed(path: Path, clock: Clock) -> Iterator[Followed]:
    with closing(Followed(path)) as made:
        yield made


def test_where_there_is_none_each_call_says_so_and_later_ones_find_it(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "state" / "ledger.db"
    with closing(Followed(path)) as followed:
        with pytest.raises(sqlite3.OperationalError, match="there is no ledger at the moment"):
            followed.machines()
        path.parent.mkdir()
        with closing(Ledger(path)) as ledger:
            ledger.beat("daemon", T0, 7)
            clock.up += AGAIN - 1
            with pytest.raises(sqlite3.OperationalError, match="could not be opened just now"):
                followed.heartbeat("daemon")
            clock.up += 1
            assert followed.heartbeat("daemon") == (T0, 7)


def test_another_file_in_its_place_is_opened_at_once(followed: Followed, path: Path) -> None:
    assert followed.heartbeat("daemon") is None
    path.rename(path.with_name("aside.db"))
    with pytest.raises(sqlite3.OperationalError, match="there is no ledger"):
        followed.heartbeat("daemon")
    with closing(Ledger(path)) as ledger:
        ledger.beat("daemon", T0, 7)
        assert followed.heartbeat("daemon") == (T0, 7)
        followed.beat("ckptman", T0, 8)
        assert ledger.heartbeat("ckptman") == (T0, 8)


def test_the_file_that_was_there_before_is_let_go(followed: Followed, path: Path) -> None:
    path.rename(path.with_name("aside.db"))
    Ledger(path).close()
    assert followed.heartbeat("daemon") is None
    links = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    names = {os.readlink(one) for one in links if os.path.lexists(one)}
    assert {Path(n).name for n in names if n.startswith(f"{path.parent}/")} >= {path.name}
    assert not [name for name in names if "aside.db" in name]


def test_locks_of_others_are_waited_for_as_usual(followed: Followed) -> None:
    assert followed._select("pragma busy_timeout")[0][0] == 10_000


def test_any_thread_may_find_it_once_it_is_there(path: Path, clock: Clock) -> None:
    with closing(Followed(path.parent / "state" / path.name)) as followed:
        path.parent.joinpath("state").mkdir()
        with closing(Ledger(path.parent / "state" / path.name)) as ledger:
            ledger.beat("daemon", T0, 7)
        clock.up += AGAIN
        with ThreadPoolExecutor(1) as other:
            assert other.submit(followed.heartbeat, "daemon").result() == (T0, 7)


def test_one_that_cannot_be_opened_is_tried_now_and_then(
    followed: Followed, path: Path, clock: Clock
) -> None:
    path.unlink()
    path.write_bytes(b"no database" * 500)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        followed.machines()
    path.unlink()
    Ledger(path).close()
    clock.up += AGAIN - 1
    with pytest.raises(sqlite3.OperationalError, match="could not be opened just now"):
        followed.machines()
    clock.up += 1
    assert followed.machines() == ()


def test_one_that_was_opened_for_reading_alone_is_opened_anew_after_a_while(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    whole = enduring.open_writer

    def read_only(path: Path, schema: Schema, timeout: float) -> sqlite3.Connection:
        opened.append(clock.up)
        made = whole(path, schema, timeout=timeout)
        made.execute("pragma query_only = on")
        return made

    with monkeypatch.context() as patched:
        patched.setattr(enduring, "open_writer", read_only)
        followed = Followed(path)
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                followed.beat("ckptman", T0, 8)
            clock.up += AGAIN - 1
            assert followed.heartbeat("ckptman") is None, "it may be read"
            clock.up += 1
    assert opened == [100.0, 100.0 + AGAIN]
    followed.beat("ckptman", T0, 8)
    assert followed.heartbeat("ckptman") == (T0, 8)
    followed.close()
