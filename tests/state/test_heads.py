"""Two heads on one directory: epochs, and a journal that only the acting one writes."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from ledger_cases import spec

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.state import heads
from slurm_elastic.state.heads import Epochs, Fence, SupersededError
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.store import disk
from slurm_elastic.state.store.shared_journal import is_there, journal_of
from slurm_elastic.state.store.trouble import JournalError


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The directory that both heads see."""
    made = tmp_path / "shared"
    made.mkdir()
    return made


class Head:
    """A host's own state directory; ``act`` has it take over."""

    def __init__(self, name: str, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.shared, self._patch = name, shared, monkeypatch
        self.state = shared.parent / name
        self.state.mkdir()
        heads.link(self.state, shared)

    def be(self) -> None:
        """Have this process run on that host."""
        uname = os.uname()
        here = os.uname_result((uname.sysname, self.name, *uname[2:]))
        self._patch.setattr(os, "uname", lambda: here)

    def act(self) -> None:
        self.be()
        Epochs(self.shared).take(self.name)

    def ledger(self) -> Ledger:
        self.be()
        return Ledger.enduring(self.state / "ledger.db")


@pytest.fixture
def pair(shared: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Head, Head]:
    return Head("a", shared, monkeypatch), Head("b", shared, monkeypatch)


def intents(ledger: Any) -> list[str]:
    return [row.generation for row in ledger.launches.open()]


def test_an_epoch_is_one_heads_until_another_takes_the_next(shared: Path) -> None:
    epochs = Epochs(shared)
    assert epochs.newest() is None
    assert [epochs.take(host).number for host in ("a", "a", "b", "a")] == [1, 1, 2, 3]
    assert [path.name for path in shared.iterdir()] == ["epoch-000003"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 20_000])
def test_an_epoch_that_cannot_be_read_is_nobodys_and_the_next_one_is_taken(
    shared: Path, content: bytes
) -> None:
    epochs = Epochs(shared)
    epochs.take("a")
    (shared / "epoch-999999").write_bytes(content)
    last = epochs.newest()
    assert last is not None
    assert (last.number, last.host) == (999999, "")
    fence = Fence.of(shared)
    assert fence.epoch == 0
    with pytest.raises(SupersededError, match="the file epoch-999999 does not name"):
        fence.require()
    taken = epochs.take("a")
    assert (taken.number, taken.host) == (1_000_000, "a")
    assert epochs.newest() == taken


def test_two_that_take_it_at_once_are_not_in_one_epoch(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Epochs(shared), Epochs(shared)
    seen = one.newest
    looks = []

    def slow() -> Any:
        found = seen()
        if not looks:
            looks.append(other.take("b"))
        return found

    monkeypatch.setattr(one, "newest", slow)
    assert (one.take("a").number, looks[0].number) == (2, 1)


def test_what_no_head_has_taken_nobody_may_write(shared: Path) -> None:
    with pytest.raises(SupersededError, match="no head acts"):
        Fence.of(shared).require()


def test_a_look_at_who_acts_opens_no_file(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads do it all the time, and on NFS one that opens the file may wait for ever."""
    epochs = Epochs(shared)
    taken = epochs.take("a")

    def opened(*_: object) -> Any:
        raise AssertionError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", opened)
        patched.setattr(os, "open", opened)
        fence = Fence(epochs=epochs, epoch=taken.number, host="a")
        fence.require()
        assert fence.newest == taken.number
    epochs.take("b")
    with pytest.raises(SupersededError, match=r"b \(epoch 2\) acts, not a"):
        fence.require()


def test_the_other_head_goes_on_with_what_was_written(pair: tuple[Head, Head]) -> None:
    a, b = pair
    a.act()
    mine = a.ledger()
    mine.launches.record_intent(spec(), "r1", 5.0)
    b.act()
    other = b.ledger()
    assert intents(other) == [spec().generation]
    other.launches.record_intent(spec(generation="g2"), "r2", 6.0)
    a.act()
    assert sorted(intents(a.ledger())) == sorted([spec().generation, "g2"])


def test_what_is_gone_on_the_other_head_is_gone(pair: tuple[Head, Head]) -> None:
    a, b = pair
    a.act()
    mine = a.ledger()
    mine.launches.record_intent(spec(), "r1", 5.0)
    mine.close()
    b.act()
    other = b.ledger()
    other.launches.record_failure(spec().generation, "no room", 7.0)
    other.close()
    a.act()
    assert intents(a.ledger()) == []


def test_a_head_that_stood_still_writes_nothing(pair: tuple[Head, Head]) -> None:
    a, b = pair
    a.act()
    paused = a.ledger()
    b.act()
    other = b.ledger()
    before = {path: path.read_bytes() for path in b.shared.rglob("*.jsonl")}
    a.be()
    with pytest.raises(JournalError, match=r"b \(epoch 2\) acts, not a"):
        paused.launches.record_intent(spec(generation="g9"), "r1", 5.0)
    assert {path: path.read_bytes() for path in b.shared.rglob("*.jsonl")} == before
    assert intents(other) == []


def test_a_command_on_the_head_that_stands_by_is_refused(pair: tuple[Head, Head]) -> None:
    a, b = pair
    a.act()
    a.ledger().close()
    b.be()
    with pytest.raises(JournalError, match=r"a \(epoch 1\) acts, not b"):
        Ledger(b.state / "ledger.db")


def test_the_head_that_stands_by_reads_what_the_other_has_written(
    pair: tuple[Head, Head],
) -> None:
    a, b = pair
    b.act()
    b.ledger().close()
    a.act()
    a.ledger().launches.record_intent(spec(), "r1", 5.0)
    b.be()
    assert intents(Ledger(b.state / "ledger.db", read_only=True)) == [spec().generation]


@pytest.mark.parametrize("fault", ["not mounted", "an empty mount point"])
@pytest.mark.parametrize("has_view", [True, False])
def test_a_reader_without_the_shared_directory_takes_no_old_view_for_all_rows(
    pair: tuple[Head, Head], shared: Path, fault: str, has_view: bool
) -> None:
    a, b = pair
    if has_view:
        b.act()
        b.ledger().close()
    a.act()
    a.ledger().launches.record_intent(spec(), "r1", 5.0)
    heads.note_seen(b.state, Epochs(shared).number())
    shared.rename(shared.with_name("elsewhere"))
    if fault == "an empty mount point":
        shared.mkdir()
    b.be()
    path = b.state / "ledger.db"
    assert is_there(path), "the other head may have begun it"
    with pytest.raises(JournalError, match="the directory of both heads is away"):
        Ledger(path, read_only=True)
    shutil.rmtree(shared, ignore_errors=True)
    shared.with_name("elsewhere").rename(shared)
    assert intents(Ledger(path, read_only=True)) == [spec().generation]


def test_an_empty_directory_is_an_older_copy_for_readers_of_a_head_that_has_seen_epochs(
    pair: tuple[Head, Head], shared: Path
) -> None:
    """The directories exist again, as a backup without its content would have them."""
    a, _ = pair
    a.act()
    a.ledger().close()
    heads.note_seen(a.state, 1)
    (shared / "epoch-000001").unlink()
    with pytest.raises(JournalError, match="ends with epoch 0, and this head has seen epoch 1"):
        Ledger(a.state / "ledger.db", read_only=True)


def test_two_heads_that_have_never_acted_have_no_memory(pair: tuple[Head, Head]) -> None:
    assert not is_there(pair[0].state / "ledger.db")


def test_what_a_stale_head_appends_late_is_in_no_memory(pair: tuple[Head, Head]) -> None:
    a, b = pair
    a.act()
    mine = a.ledger()
    mine.launches.record_intent(spec(), "r1", 5.0)
    old = journal_of(a.state / "ledger.db")
    segment = old.path(old.segments()[-1])
    b.act()
    b.ledger().close()
    with segment.open("ab") as late:
        late.write(segment.read_bytes().splitlines(keepends=True)[-1].replace(b"g1", b"g7"))
    assert intents(b.ledger()) == [spec().generation]


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_a_head_that_stands_still_while_it_begins_a_segment_replaces_none(
    pair: tuple[Head, Head], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It stands still in a step on the shared directory, while the other head takes over."""
    a, b = pair
    a.act()
    old = a.ledger()
    # Such short segments are replaced at once.
    monkeypatch.setattr(disk, "SEGMENT_BYTES", 10)
    monkeypatch.setattr(disk, "BYTES_PER_FIRST_ROW", 0)
    for number in range(3):
        old.launches.record_intent(spec(f"g-old{number}"), "r", 1.0)
        old.launches.record_failure(f"g-old{number}", "no", 2.0)
    real, acting = getattr(os, step), []

    def late(*args: Any, **kwargs: Any) -> Any:
        is_of_segment = step == "fsync" or "ledger.jsonl" in str(args[0])
        if not acting and is_of_segment:
            acting.append(None)
            monkeypatch.setattr(disk, "SEGMENT_BYTES", 1 << 24)
            b.act()
            acting[0] = b.ledger()
            acting[0].launches.record_intent(spec("g-of-b"), "r", 3.0)
            a.be()
        return real(*args, **kwargs)

    monkeypatch.setattr(os, step, late)
    old.store.shorten()
    assert acting, "nobody took over"
    b.be()
    acting[0].launches.record_intent(spec("g-of-b2"), "r", 4.0)
    acting[0].close()
    (b.state / "ledger.db").unlink()
    assert intents(b.ledger()) == ["g-of-b", "g-of-b2"]


def test_a_memory_of_ones_own_is_not_put_away(shared: Path, tmp_path: Path) -> None:
    state = tmp_path / "own"
    state.mkdir()
    Ledger.enduring(state / "ledger.db").close()
    with pytest.raises(ConfigError, match="mv -T"):
        heads.link(state, shared)
    assert not (state / "journal").is_symlink()


def test_a_shared_directory_that_has_moved_keeps_its_content_as_each_message_says(
    shared: Path, tmp_path: Path, pair: tuple[Head, Head]
) -> None:
    """The site has copied it to another server; a person follows what the service prints."""
    state = pair[0].state
    (shared / "known_hosts").write_text("the key of a machine")
    moved = tmp_path / "moved"
    shutil.copytree(shared, moved)
    for name in (*heads.SHARED, *heads.SHARED_FILES):
        with pytest.raises(ConfigError, match=f"{name} leads to {shared}/{name}, ") as refused:
            heads.link(state, moved)
        assert "mv" not in str(refused.value)
        subprocess.run(str(refused.value).split("`")[1], shell=True, check=True)
    heads.link(state, moved)
    shutil.rmtree(shared)
    assert not (moved / "known_hosts").is_symlink()
    assert (state / "known_hosts").read_text() == "the key of a machine"


def test_links_of_a_second_head_need_their_setting(pair: tuple[Head, Head]) -> None:
    with pytest.raises(ConfigError, match=r"ha\.directory: not set"):
        heads.require_unshared(pair[0].state)


def test_all_links_are_named_when_a_head_is_to_go_on_alone(pair: tuple[Head, Head]) -> None:
    """Else the service fails later, when the shared directory is unmounted."""
    pair[0].act()
    state, own = pair[0].state, pair[0].state / "journal"
    shared = own.resolve()
    own.unlink()
    shutil.copytree(shared, own)
    with pytest.raises(ConfigError, match=r"requests, notices, catalogue, .*known_hosts"):
        heads.require_unshared(state)
    for path in filter(Path.is_symlink, list(state.iterdir())):
        path.unlink()
    heads.require_unshared(state)


def test_a_link_of_the_sites_own_is_none_to_a_shared_directory(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "catalogue"
    elsewhere.mkdir(parents=True)
    state = tmp_path / "state"
    state.mkdir()
    (state / "catalogue").symlink_to(elsewhere)
    heads.require_unshared(state)


# a disk of both heads that is full


def full_below(shared: Path, patched: pytest.MonkeyPatch) -> None:
    """No byte more goes into any file of that directory, and all others take what comes."""

    def guard(name: str) -> None:
        real = getattr(os, name)

        def refused(descriptor: int, *rest: Any) -> Any:
            if str(shared) in os.readlink(f"/proc/self/fd/{descriptor}"):
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(descriptor, *rest)

        patched.setattr(os, name, refused)

    for name in ("write", "posix_fallocate"):
        guard(name)


def test_a_full_directory_of_both_heads_is_noticed_by_a_look(
    pair: tuple[Head, Head], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = pair
    a.act()
    with contextlib.closing(a.ledger()) as ledger:
        assert not ledger.check().end_only
        ledger.store._home._journal_look = float("-inf")  # as after its time
        with monkeypatch.context() as patched:
            full_below(shared, patched)
            told = ledger.check()
        assert told.end_only
        assert f"the disk of {shared}/journal is full" in told.end_only
        assert f"make room on it (df {shared}/journal)" in told.remedy
        ledger.store._home._again = float("-inf")
        assert not ledger.check().end_only, "there is room again"


def test_a_write_that_fails_in_any_thread_begins_end_only(
    pair: tuple[Head, Head], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = pair
    a.act()
    with contextlib.closing(a.ledger()) as ledger:
        assert not ledger.check().end_only
        failed: list[Exception] = []

        def work() -> None:
            try:
                ledger.launches.record_intent(spec(), "r1", 5.0)
            except sqlite3.Error as error:
                failed.append(error)

        with monkeypatch.context() as patched:
            full_below(shared, patched)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            assert failed
            told = ledger.check()
        assert told.end_only
        assert f"the disk of {shared}/journal is full" in told.end_only


def test_a_write_that_fails_as_the_other_head_acts_is_no_trouble_of_the_disk(
    pair: tuple[Head, Head],
) -> None:
    a, b = pair
    a.act()
    with contextlib.closing(a.ledger()) as ledger:
        b.act()
        a.be()
        with pytest.raises(sqlite3.Error, match="acts"):
            ledger.launches.record_intent(spec(), "r1", 5.0)
        assert not ledger.end_only
        ledger.store._home.check()
        assert not ledger.end_only


def test_a_mark_of_the_last_epoch_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    assert heads.last_seen(tmp_path) == 0
    heads.note_seen(tmp_path, 7)
    assert heads.last_seen(tmp_path) == 7
    (tmp_path / heads.LAST_EPOCH).unlink()
    (tmp_path / heads.LAST_EPOCH).mkdir()  # a read fails, also root's
    with pytest.raises(OSError, match="directory"):
        heads.last_seen(tmp_path)
    heads.note_seen(tmp_path, 8)
