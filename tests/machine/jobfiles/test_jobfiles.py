"""The two ends of a copy, joined by pipes; the node's end as root would leave it, as this user."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import pwd
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.features.files import copy_orders
from slurm_elastic.machine.ckptroot import steps as ckptroot_steps
from slurm_elastic.machine.jobfiles import (
    book,
    bundle,
    copier,
    head,
    identity,
    marks,
    node,
    owed,
    places,
    steps,
    uses,
    wire,
)
from slurm_elastic.machine.jobfiles.locks import Locks
from slurm_elastic.machine.jobfiles.marks import marks_of, shared_directories
from slurm_elastic.machine.jobfiles.tree import Tree
from slurm_elastic.machine.jobfiles.wire import Channel, CopyError

JOB = 7


class Pair:
    """A head and a machine, each a directory; ``do`` copies."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.head, self.node, self.state = place / "head", place / "node", place / "state"
        for path in (self.head, self.node, self.state):
            path.mkdir()
        self.exclude: list[str] = []
        self.limit = 1 << 20
        self.base = 0
        self.begins: list[int] = []
        self.monkeypatch = monkeypatch
        self.orders = itertools.count(1)
        self.live: list[int] = []
        self.seen_outputs, self.late, self.restored = 0, False, False
        self.output_of: dict[int, Path] = {}
        (place / "locks").mkdir()
        self.locks = Locks(os.open(place / "locks", os.O_RDONLY))

    @property
    def output(self) -> Path:
        return self.head / "out.txt"

    def order(self, do: str, job: int) -> dict[str, Any]:
        return {
            "do": do, "job": job, "uid": 1, "gid": 1, "groups": [], "directory": str(self.head),
            "exclude": self.exclude, "size_limit": self.limit,
            "outputs": [{
                "path": str(self.output_of.get(job, self.output)), "base": self.base,
                "late": self.late, "restored": self.restored,
            }],
        }  # fmt: skip

    def identity(self, what: str, job: int) -> identity.Identity:
        """Each order is newer than the one before it. The jobs of ``live`` still count."""
        live = [(number, 0) for number in (*self.live, job)]
        return identity.Identity(what, job, 1, 1, [], 0, next(self.orders), live, 0)

    def there(self, path: str) -> str:
        """The directory on the machine."""
        return path.replace(str(self.head), str(self.node))

    def do(self, what: str, job: int = JOB) -> dict[str, Any]:
        ours, theirs = socket.socketpair()

        def serve() -> None:
            with suppress(CopyError, OSError), channel_of(theirs) as channel, told(channel):
                header = channel.receive()
                outputs = [str(self.node / Path(path).name) for path in header["outputs"]]
                marks = {self.there(path): mark for path, mark in header["marks"].items()}
                header = {**header, "outputs": outputs, "do": what, "job": job, "marks": marks}
                header |= {"seen_outputs": self.seen_outputs, "is_known": True}
                header["shared"] = shared_directories(marks_of(header))
                if what == "outputs":
                    self.begins = send_outputs(header, channel)
                    return
                with book.Book(
                    str(self.state), str(self.node), channel, self.identity(what, job)
                ) as record:
                    serving = node._take_in if what == "out" else node._give_back
                    serving(header, record, channel)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with channel_of(ours) as channel:
                return head.run(self.order(what, job), channel, self.locks)
        finally:
            thread.join(30)
            assert not thread.is_alive()


@contextmanager
def told(channel: Channel) -> Iterator[None]:
    """As the program does, tell the head why the machine's end fails."""
    try:
        yield
    except CopyError as error:
        with suppress(CopyError, OSError):
            channel.send(error=str(error), final=error.final, busy=error.busy)
        raise


def send_outputs(header: dict[str, Any], channel: Channel) -> list[int]:
    """As node.run does for a running job. Return the offsets."""
    begins: list[int] = []
    send = channel.send

    def record(**message: Any) -> None:
        begins.extend([message["begin"]] if message.get("t") == "o" else [])
        send(**message)

    channel.send = record  # type: ignore[method-assign]
    channel.send(shared=[])
    node._send_outputs(header, channel)
    channel.send(t="end")
    channel.receive()
    channel.send(notes=[])
    return begins


@contextmanager
def channel_of(link: socket.socket) -> Iterator[Channel]:
    with link, link.makefile("rb") as source, link.makefile("wb") as sink:
        yield Channel(source, sink)


@pytest.fixture(autouse=True)
def no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the ends are threads, in which no signal ends a wait."""
    monkeypatch.setattr("signal.alarm", lambda _: 0)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(tmp_path, monkeypatch)


def names(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


def test_files_go_and_what_changed_comes_back(pair: Pair) -> None:
    (pair.head / "a").write_text("a")
    (pair.head / "a").chmod(0o750)
    (pair.head / "deep").mkdir()
    (pair.head / "deep" / "b").write_text("b")
    (pair.head / "link").symlink_to("/nowhere")
    result = pair.do("out")
    assert (result["files"], result["bytes"]) == (2, 2)
    assert names(pair.node) == ["a", "deep", "deep/b", "link"]
    assert (pair.node / "a").stat().st_mode & 0o777 == 0o750
    assert os.readlink(pair.node / "link") == "/nowhere"
    (pair.node / "deep" / "b").write_text("changed")
    (pair.node / "new").mkdir()
    (pair.node / "new" / "c").write_text("c")
    (pair.node / "link2").symlink_to("a")
    (pair.node / "out.txt").write_text("said\n")
    result = pair.do("back")
    assert (result["files"], result["notes"]) == (2, [])
    assert (pair.head / "deep" / "b").read_text() == "changed"
    assert (pair.head / "new" / "c").read_text() == "c"
    assert os.readlink(pair.head / "link2") == "a"
    assert pair.output.read_text() == "said\n"
    assert names(pair.node) == [], "the last job takes the files away"


def test_a_broken_copy_back_is_repeated_without_harm(pair: Pair) -> None:
    (pair.head / "a").write_text("a")
    pair.do("out")
    (pair.node / "a").write_text("longer")
    (pair.node / "b").write_text("b")
    with pair.monkeypatch.context() as patch:
        patch.setattr(head, "_take_link", _full)
        (pair.node / "z").symlink_to("a")
        with pytest.raises(OSError, match="No space"):
            pair.do("back")
    assert (pair.head / "a").read_text() == "longer"
    assert names(pair.node) == ["a", "b", "z"], "nothing is taken away before all is there"
    result = pair.do("back")
    assert result["notes"] == []
    assert names(pair.head) == ["a", "b", "z"], "what came already is no conflict"


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_both_sides_changed(pair: Pair) -> None:
    for name in ("both", "same", "gone"):
        (pair.head / name).write_text("old")
    pair.do("out")
    (pair.node / "both").write_text("of the job")
    (pair.node / "made").write_text("of the job")
    (pair.node / "gone").write_text("changed")
    (pair.head / "both").write_text("of the head, later")
    (pair.head / "made").write_text("of the head, too")
    (pair.head / "gone").unlink()
    result = pair.do("back")
    assert (pair.head / "both").read_text() == "of the head, later"
    assert (pair.head / "both.job-7").read_text() == "of the job"
    assert (pair.head / "made.job-7").read_text() == "of the job"
    assert (pair.head / "gone").read_text() == "changed"
    assert result["notes"] == [
        "both: it was changed on the head, too: the job's is both.job-7",
        "made: it was changed on the head, too: the job's is made.job-7",
    ]


def test_two_jobs_share_a_directory(pair: Pair) -> None:
    pair.live = [7, 8]
    (pair.head / "a").write_text("a")
    pair.do("out", 7)
    (pair.node / "a").write_text("changed by 7")
    note = "another job has changed it on the machine: the machine's file stays"
    assert pair.do("out", 8)["notes"] == [f"a: {note}"]
    assert (pair.node / "a").read_text() == "changed by 7"
    pair.do("back", 7)
    pair.live = [8]
    assert (pair.head / "a").read_text() == "changed by 7"
    assert names(pair.node) == ["a"], "the other job still uses it"
    (pair.node / "a").write_text("changed by 8")
    assert pair.do("back", 8)["notes"] == []
    assert (pair.head / "a").read_text() == "changed by 8"
    assert names(pair.node) == []


def test_jobs_that_write_one_output_keep_it_until_the_last_of_them_ends(pair: Pair) -> None:
    """As with --open-mode=append, or an array without %a in the name."""
    pair.live = [7, 8]
    pair.do("out", 7)
    pair.do("out", 8)
    with (pair.node / "out.txt").open("a") as output:
        output.write("7: done\n")
        output.flush()
        pair.do("back", 7)
        output.write("8: the result of eight hours\n")
    pair.live = [8]
    pair.do("back", 8)
    assert pair.output.read_text() == "7: done\n8: the result of eight hours\n"
    assert names(pair.node) == []


def test_tasks_that_follow_each_other_bring_each_line_once(pair: Pair) -> None:
    """The machine keeps the file of an array while one of its tasks runs."""
    bases = {1: pair.do("out", 1)["bases"]}
    add_line(pair, 1)
    pair.do("outputs", 1)
    for job in range(2, 6):
        pair.live = [job - 1, job]
        result = pair.do("out", job)
        assert result["joined"] == [str(pair.output)]
        bases[job] = bases[job - 1]
        add_line(pair, job)
        for task in (job, job - 1):
            pair.base = bases[task][str(pair.output)]
            pair.do("outputs" if task == job else "back", task)
    pair.live = [5]
    pair.do("back", 5)
    assert pair.output.read_text().split() == ["1", "2", "3", "4", "5"]
    assert pair.do("out", 6)["joined"] == [], "the last of them has removed it"


def add_line(pair: Pair, number: int) -> None:
    with (pair.node / "out.txt").open("a") as output:
        output.write(f"{number}\n")


def test_an_output_elsewhere_stays_for_the_job_of_another_directory(pair: Pair) -> None:
    """The files of that directory are not read: they may be tens of thousands."""
    pair.do("out", 7)
    (pair.node / "out.txt").write_text("of both")
    runs = {"8.0": {"at": 99, "outputs": [str(pair.node / "out.txt")]}}
    other = json.dumps({"directory": "/other", "runs": runs})
    (pair.state / "other.json").write_text(f"{other}\nno JSON")
    pair.do("back", 7)
    assert names(pair.node) == ["out.txt"]


def test_the_output_of_one_job_is_no_file_of_another(pair: Pair) -> None:
    """The head has a part of it by the copies of running jobs."""
    pair.live = [7, 8]
    pair.output_of = {job: pair.head / f"slurm-{job}.out" for job in (7, 8)}
    pair.do("out", 7)
    with (pair.node / "slurm-7.out").open("a") as output:
        output.write("begin\n")
        output.flush()
        pair.do("outputs", 7)
        assert pair.do("out", 8)["files"] == 0
        output.write("end\n")
    (pair.node / "slurm-8.out").write_text("begin\n")
    pair.do("outputs", 8)
    assert pair.do("back", 7)["files"] == 0
    pair.live = [8]
    (pair.node / "slurm-8.out").write_text("begin\nend\n")
    pair.do("back", 8)
    assert names(pair.head) == ["slurm-7.out", "slurm-8.out"]
    assert [path.read_text() for path in pair.head.iterdir()] == ["begin\nend\n"] * 2
    assert names(pair.node) == []


def test_a_place_that_is_away_on_the_head_is_tried_again(pair: Pair) -> None:
    """As with autofs, or while a server restarts."""
    away = pair.head.with_name("away")
    logs = pair.head.with_name("logs")
    pair.output_of = {JOB: logs / "out.txt"}
    logs.mkdir()
    pair.head.rename(away)
    with (
        open(os.devnull, "r+b") as nothing,
        pytest.raises(CopyError, match="No such file") as error,
    ):
        head.run(pair.order("out", JOB), Channel(nothing, nothing), pair.locks)
    assert not error.value.final
    away.rename(pair.head)
    pair.do("out")
    (pair.node / "out.txt").write_text("the only output")
    logs.rmdir()
    with pytest.raises(CopyError, match=r"out\.txt: No such file") as error:
        pair.do("back")
    assert not error.value.final
    logs.mkdir()
    pair.do("back")
    assert (logs / "out.txt").read_text() == "the only output"


def test_a_copy_back_that_waits_for_a_copy_out_says_so(pair: Pair) -> None:
    pair.do("out")
    pair.monkeypatch.setitem(book.LOCK_WAIT_S, "back", 0.0)
    lock = next(pair.state.glob("*.lock"))
    with lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CopyError, match="another copy has used it") as error:
            pair.do("back")
    assert (error.value.busy, error.value.final) == (True, False)


def test_an_output_that_has_gone_is_named(pair: Pair) -> None:
    pair.do("out")
    assert pair.do("back")["notes"] == [], "a node on which the job writes no output"
    pair.do("out")
    pair.seen_outputs = 1
    assert pair.do("back")["notes"] == [
        f"{pair.node / 'out.txt'}: this output has gone from the machine"
    ]


def test_a_directory_that_both_ends_share_keeps_its_files(pair: Pair) -> None:
    pair.node = pair.head
    (pair.head / "input").write_text("input")
    pair.output.write_text("of the run before\n")
    sizes = [(path.name, path.stat().st_ino) for path in pair.head.iterdir()]
    pair.limit = 0
    result = pair.do("out")
    assert (result["files"], result["bases"]) == (0, {}), "its output is on the head already"
    assert result["notes"] == [
        f"{pair.head}: the machine has the same directory: nothing in it is copied"
    ]
    (pair.head / "made").write_text("by the job")
    pair.do("back")
    assert names(pair.head) == ["input", "made", "out.txt"]
    assert sizes == [(name, (pair.head / name).stat().st_ino) for name, _ in sizes]
    assert pair.output.read_text() == "of the run before\n"


def test_a_shared_directory_in_which_the_head_may_not_write_is_recognized(pair: Pair) -> None:
    """As of a job that only reads its directory."""
    pair.node = pair.head
    (pair.head / "input").write_text("input")
    pair.monkeypatch.setattr(marks, "_FLAGS", os.O_RDONLY | os.O_DIRECTORY)  # nothing is made
    pair.do("out")
    pair.do("back")
    assert names(pair.head) == ["input"]


def test_a_shared_directory_that_changes_and_has_no_mark_keeps_its_files(pair: Pair) -> None:
    """Its user may not write there, or the quota is full, and somebody else does meanwhile."""
    pair.node = pair.head
    (pair.head / "input").write_text("input")
    (pair.head / "result").write_text("years of work")
    pair.output.write_text("said\n")
    pair.do("out")
    before = pair.head.stat()
    unmarked = ["", before.st_ino, before.st_ctime_ns - 1]
    pair.monkeypatch.setattr(marks, "_mark", lambda _: unmarked)
    pair.do("back")
    assert names(pair.head) == ["input", "out.txt", "result"]
    with pytest.raises(CopyError, match="unknown whether the machine has the same") as error:
        pair.do("out")
    assert not error.value.final


def test_a_directory_without_a_record_of_the_run_is_left_alone(pair: Pair) -> None:
    (pair.node / "of-the-image").write_text("not the job's")
    pair.do("back")
    assert (names(pair.head), names(pair.node)) == ([], ["of-the-image"])


def test_who_cannot_look_takes_no_place_for_another(pair: Pair) -> None:
    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with marks.marked([str(pair.head)]) as made, pair.monkeypatch.context() as patch:
        assert shared_directories(made) == {str(pair.head)}
        patch.setattr(os, "lstat", stale)
        with pytest.raises(CopyError, match="Stale file handle"):
            shared_directories(made)
    assert names(pair.head) == []


def test_files_that_the_machine_had_before_are_left(pair: Pair) -> None:
    """As those of its image, below a directory of the same path."""
    (pair.head / "a").write_text("of the head")
    (pair.node / "a").write_text("of the image")
    (pair.node / "own").mkdir()
    (pair.node / "own" / "b").write_text("of the image")
    (pair.node / "link").symlink_to("own")
    pair.do("out")
    (pair.node / "made").write_text("by the job")
    pair.do("back")
    assert names(pair.head) == ["a", "made", "own"]
    assert names(pair.node) == ["link", "own", "own/b"]


def test_a_job_reads_its_users_file_and_no_file_of_a_job_that_was_given_up(
    pair: Pair,
) -> None:
    (pair.head / "params").write_text("steps=1")
    pair.do("out", 7)
    (pair.node / "params").write_text("steps=10")
    # Its copy back never succeeds: slurm-elasticd gives it up, and names only job 8.
    (pair.head / "params").write_text("steps=1000000")
    result = pair.do("out", 8)
    assert (pair.node / "params").read_text() == "steps=1000000"
    assert result["notes"] == [
        "params: a job that was given up has changed it here: the head's file replaces it"
    ]
    pair.do("back", 8)
    assert names(pair.node) == [], "nobody else uses the directory"


def test_an_order_does_not_end_the_run_of_a_later_order(pair: Pair) -> None:
    """Orders of two jobs may arrive in the other order."""
    (pair.head / "a").write_text("a")
    earlier = next(pair.orders)
    pair.do("out", 7)
    (pair.node / "a").write_text("changed by 7")
    pair.orders = itertools.count(earlier)
    pair.do("out", 8)
    assert (pair.node / "a").read_text() == "changed by 7"


def test_a_copy_that_fails_makes_its_files_nobodys(pair: Pair) -> None:
    (pair.head / "deep").mkdir()
    (pair.head / "deep" / "a").write_text("a")

    def gone(*_: object) -> int:
        raise CopyError("the connection has ended")

    with pair.monkeypatch.context() as patch:
        patch.setattr(head, "_send_file", gone)
        with pytest.raises(CopyError):
            pair.do("out")
    assert names(pair.node) == ["deep"]
    pair.do("out")
    pair.do("back")
    assert names(pair.node) == []


def test_a_changed_mode_comes_back(pair: Pair) -> None:
    for name in ("made-executable", "also-changed", "changed-there"):
        (pair.head / name).write_text("x")
        (pair.head / name).chmod(0o640)
    pair.do("out")
    for path in pair.node.iterdir():
        path.chmod(0o750)
    (pair.node / "also-changed").write_text("by the job")
    (pair.head / "changed-there").write_text("by its user")
    assert pair.do("back")["files"] == 1
    modes = {path.name: path.stat().st_mode & 0o777 for path in pair.head.iterdir()}
    assert modes == {"made-executable": 0o750, "also-changed": 0o750, "changed-there": 0o640}


def test_drafts_of_killed_copies_go(pair: Pair) -> None:
    (pair.head / "deep").mkdir()
    (pair.head / "deep" / "a").write_text("a")
    dead = [place / ".slurm-elastic-1-1.tmp" for place in (pair.head, pair.head / "deep")]
    for path in dead:
        path.write_text("half a file")
    live = pair.head / "deep" / ".slurm-elastic-2-1.tmp"
    with live.open("w") as draft:
        fcntl.flock(draft, fcntl.LOCK_EX)
        pair.do("out")
        assert not any(path.exists() for path in dead)
        dead[1].write_text("half a file of the first try")
        (pair.node / "deep" / "b").write_text("b")
        pair.do("back")
        assert not dead[1].exists()
        assert live.exists(), "a copy writes it"
    assert names(pair.head) == ["deep", "deep/.slurm-elastic-2-1.tmp", "deep/a", "deep/b"]


def test_marks_of_copies_that_were_killed_long_ago_go(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = pair.head / f".slurm-elastic-{'0' * 32}"
    marked.touch()
    pair.do("out")
    assert marked.exists(), "a copy may still need it"
    monkeypatch.setattr(marks, "_OLD_NS", -1)
    os.utime(marked)
    pair.do("out")
    assert names(pair.head) == []


def test_special_and_excluded_files_stay(pair: Pair) -> None:
    os.mkfifo(pair.head / "pipe")
    (pair.head / ".ssh").mkdir()
    (pair.head / ".ssh" / "id").write_text("secret")
    (pair.head / "x.o").write_text("o")
    (pair.head / "raw").mkdir()
    (pair.head / "raw" / "big").write_text("big")
    pair.exclude = [".ssh", "*.o", "raw/*"]
    result = pair.do("out")
    assert names(pair.node) == ["raw"]
    assert result["notes"] == ["pipe: a special file, which is not copied"]
    (pair.node / ".ssh").mkdir()
    (pair.node / ".ssh" / "authorized_keys").write_text("evil")
    pair.do("back")
    assert names(pair.head) == [".ssh", ".ssh/id", "pipe", "raw", "raw/big", "x.o"]


def test_a_directory_beyond_the_limit_is_refused(pair: Pair) -> None:
    (pair.head / "a").write_bytes(b"x" * (2 << 20))
    with pytest.raises(CopyError, match=r"more than 1 MiB, the copy.size_limit") as error:
        pair.do("out")
    assert error.value.final
    assert names(pair.node) == []


def test_outputs_continue_and_keep_what_was_there(pair: Pair) -> None:
    pair.output.write_text("run 0\n")
    bases = pair.do("out")["bases"]
    assert bases == {str(pair.output): 6}
    assert names(pair.node) == [], "an output is not sent"
    pair.base = 6
    (pair.node / "out.txt").write_text("run 1\n")
    assert pair.do("back")["bases"] == bases
    assert pair.output.read_text() == "run 0\nrun 1\n"
    pair.do("out")
    (pair.node / "out.txt").write_text("run 1\nmore\n")
    pair.do("back")
    assert pair.output.read_text() == "run 0\nrun 1\nmore\n", "written again, not twice"
    pair.do("out")
    (pair.node / "out.txt").write_text("of another job\n")
    pair.do("back")
    assert pair.output.read_text() == "run 0\nrun 1\nmore\nof another job\n"


def test_a_growing_output_costs_its_growth(pair: Pair) -> None:
    pair.output.write_text("run 0\n")
    pair.do("out")
    pair.base = 6
    log, text = pair.node / "out.txt", ""
    for number in range(3):
        begin, text = len(text), f"{text}{number} " + "x" * 100_000 + "\n"
        log.write_text(text)
        assert pair.do("outputs")["bases"] == {str(pair.output): 6}
        assert pair.begins == [begin]
        assert pair.output.read_text() == "run 0\n" + text
    pair.do("outputs")
    assert (pair.begins, pair.output.read_text()) == ([len(text)], "run 0\n" + text)


def test_an_output_with_another_beginning_is_sent_whole(pair: Pair) -> None:
    pair.do("out")
    log = pair.node / "out.txt"
    log.write_text("one\ntwo\n")
    pair.do("outputs")
    log.write_text("one\ntwi\nthree\n")
    pair.do("outputs")
    assert pair.begins == [0]
    log.write_text("on")
    pair.do("outputs")
    assert pair.begins == [0], "shorter than what the head has"


def test_the_last_copy_is_whole(pair: Pair) -> None:
    pair.do("out")
    (log := pair.node / "out.txt").write_bytes(b"a" * 4_000_000)
    pair.do("outputs")
    log.write_bytes(b"a" * 3_000_000 + b"b" + b"a" * 1_000_000)
    pair.do("outputs")
    assert pair.begins == [4_000_000], "a sample does not see a change in the middle"
    pair.do("back")
    whole = b"a" * 3_000_000 + b"b" + b"a" * 1_000_000
    assert pair.output.read_bytes() == b"a" * 4_000_001 + whole, "nothing on the head is lost"


def test_a_file_that_grew_on_the_head_meanwhile_is_left(pair: Pair) -> None:
    pair.output.write_text("one\nother\n")
    assert write_output(pair, 0, 4, b"two\n", is_last=False) == 0
    assert pair.output.read_text() == "one\nother\n"


def write_output(pair: Pair, base: int, begin: int, text: bytes, *, is_last: bool) -> int:
    order = pair.order("back" if is_last else "outputs", JOB)
    output = {"path": str(pair.output), "base": base}
    return head._write_output(
        order, output, begin, iter([text]), locks=pair.locks, wait=lambda: None
    )


def test_jobs_that_share_an_output_do_not_fill_the_disk(pair: Pair) -> None:
    """With each copy of one the other's beginning was no longer its own, and all came again."""
    ours, theirs, base = b"a1\n", b"b1\n", 0
    write_output(pair, 0, 0, ours, is_last=False)
    for _ in range(5):
        base = write_output(pair, base, 0, theirs, is_last=False)
        ours, theirs = ours + b"a2\n", theirs + b"b2\n"
        assert write_output(pair, 0, 0, ours, is_last=False) == 0
    write_output(pair, base, 0, theirs, is_last=True)
    write_output(pair, 0, 0, ours, is_last=True)
    assert pair.output.read_bytes() == b"a1\n" + theirs + ours


def test_an_output_that_a_job_elsewhere_writes_comes_once_more_at_the_end(pair: Pair) -> None:
    """It came whole with each copy, and was thrown away: traffic that a cloud charges for."""
    pair.do("out")
    pair.output.write_text("step 1 of task 1\n")
    log = pair.node / "out.txt"
    log.write_text("step 1 of task 2\n")
    assert pair.do("outputs")["late"] == [str(pair.output)]
    pair.late = True
    result = pair.do("outputs")
    assert (pair.begins, result["bases"], result["late"]) == ([], {}, [])
    pair.late = False
    pair.do("back")
    assert pair.output.read_text() == "step 1 of task 1\nstep 1 of task 2\n"


def blocks_of(text: bytes) -> Iterator[bytes]:
    return (text[at : at + (1 << 20)] for at in range(0, len(text), 1 << 20))


@pytest.mark.parametrize("is_last", [False, True])
def test_no_output_is_written_over_the_output_of_another_job(pair: Pair, is_last: bool) -> None:
    """However long the part is that stands before it. The other job's machine has forgotten it."""
    ours, theirs = b"our line\n" * 300_000, b"their line\n"
    pair.output.write_bytes(ours[:2_000_000] + theirs)
    order = pair.order("back" if is_last else "outputs", JOB)
    base = head._write_output(
        order, order["outputs"][0], 0, blocks_of(ours), locks=pair.locks, wait=lambda: None
    )
    assert pair.output.read_bytes() == ours[:2_000_000] + theirs + ours * is_last
    assert base == (2_000_000 + len(theirs)) * is_last
    assert order.get("late") == (None if is_last else [str(pair.output)])


def test_an_output_whose_copy_broke_off_is_continued(pair: Pair) -> None:
    """If it began anew behind the part that had come, each try would fill more of the disk."""
    ours, theirs = b"our line\n" * 300_000, b"their line\n"
    pair.output.write_bytes(theirs)

    def broken() -> Iterator[bytes]:
        yield ours[: 1 << 20]
        raise CopyError("the connection has ended")

    order = pair.order("back", JOB)
    for blocks in (broken(), blocks_of(ours)):
        output = {**order["outputs"][0], "base": order.get("bases", {}).get(str(pair.output), 0)}
        with suppress(CopyError):
            head._write_output(order, output, 0, blocks, locks=pair.locks, wait=lambda: None)
    assert pair.output.read_bytes() == theirs + ours


def test_an_output_is_written_by_one_copy_at_a_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "_LOCK_WAIT_S", 0.0)
    pair.output.touch()
    with (
        pair.locks.held(pair.output.stat(), 0.0, lambda: None),
        pytest.raises(BlockingIOError, match="another copy writes it"),
    ):
        write_output(pair, 0, 0, b"x", is_last=True)
    write_output(pair, 0, 0, b"x", is_last=True)
    assert pair.output.read_bytes() == b"x"


def test_a_reader_of_an_output_holds_up_no_copy(pair: Pair) -> None:
    pair.do("out")
    (pair.node / "out.txt").write_text("said")
    (pair.node / "result").write_text("computed")
    pair.output.touch()
    with pair.output.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        pair.do("back")
    assert pair.output.read_text() == "said"
    assert (pair.head / "result").read_text() == "computed"


def test_an_output_that_cannot_be_written_now_costs_no_other_file(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "_LOCK_WAIT_S", 0.0)
    pair.do("out")
    (pair.node / "out.txt").write_text("said")
    (pair.node / "result").write_text("computed")
    pair.output.touch()
    with (
        pair.locks.held(pair.output.stat(), 0.0, lambda: None),
        pytest.raises(CopyError, match=r"out\.txt: another copy writes it") as error,
    ):
        pair.do("back")
    assert not error.value.final
    assert (pair.head / "result").read_text() == "computed"
    assert names(pair.node) == ["out.txt", "result"], "the machine keeps all for the next try"
    assert pair.do("back")["notes"] == []
    assert pair.output.read_text() == "said"
    assert names(pair.node) == []


def test_a_lock_that_was_released_is_free_for_all_who_wait(tmp_path: Path) -> None:
    locks, file = Locks(os.open(tmp_path, os.O_RDONLY)), tmp_path.stat()
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(5):
            with locks.held(file, 60.0, lambda: None) as held:
                assert held
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(most), max(most)) == (20, 1)
    assert names(tmp_path) == []


def test_a_restored_run_that_goes_on_otherwise_shows_its_output(pair: Pair) -> None:
    """The head has what the saved run wrote after its save. Without an end of the run, that looks
    like the output of another job.
    """
    pair.base = pair.do("out")["bases"][str(pair.output)]
    (pair.node / "out.txt").write_text("step 1\nstep 2 at 9:01\n")
    pair.do("outputs")
    (pair.node / "out.txt").write_text("step 1\nstep 2 at 9:40\n")
    pair.restored = True
    result = pair.do("outputs")
    assert result["late"] == []
    pair.base, pair.restored = result["bases"][str(pair.output)], False
    with (pair.node / "out.txt").open("a") as file:
        file.write("step 3\n")
    pair.do("outputs")
    pair.do("back")
    assert pair.output.read_text() == ("step 1\nstep 2 at 9:01\nstep 1\nstep 2 at 9:40\nstep 3\n")


def test_where_an_output_begins_is_kept_if_the_copy_fails_later(pair: Pair) -> None:
    """Each try would write it once more."""
    pair.do("out")
    pair.output.write_text("of another job\n")
    (pair.node / "out.txt").write_text("ours\n")
    (pair.node / "z").symlink_to("a")
    order = pair.order("back", JOB)
    with pair.monkeypatch.context() as patch:
        patch.setattr(head, "_take_link", _full)
        patch.setattr(pair, "order", lambda *_: order)
        with pytest.raises(OSError, match="No space"):
            pair.do("back")
    assert order["bases"] == {str(pair.output): 15}
    pair.base = 15
    pair.do("back")
    assert pair.output.read_text() == "of another job\nours\n"


def test_a_hundred_thousand_results_are_no_line_that_is_too_long(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_MAX_LINE", 1000)
    monkeypatch.setattr(head, "_STAMPS_AT_ONCE", 5)
    pair.do("out")
    for number in range(50):
        (pair.node / f"result-{number}").write_text("x")
    assert pair.do("back")["files"] == 50
    assert len(names(pair.head)) == 50
    assert names(pair.node) == []


def test_results_with_the_longest_paths_are_no_line_that_is_too_long() -> None:
    paths = {f"{number}".ljust(4096, "\udcff"): [1 << 60] * 2 for number in range(2000)}
    first = dict(list(paths.items())[: head._STAMPS_AT_ONCE])
    assert len(json.dumps({"written": first})) < wire._MAX_LINE


def test_each_try_has_the_same_other_name(pair: Pair) -> None:
    """A copy that fails is tried for ten minutes: its other names must not fill the disk."""
    (pair.head / "both").write_text("old")
    (pair.head / "link").symlink_to("old")
    pair.do("out")
    (pair.node / "both").write_text("of the job")
    (pair.node / "link").unlink()
    (pair.node / "link").symlink_to("job's")
    (pair.head / "both").write_text("of the head")
    (pair.head / "link").unlink()
    (pair.head / "link").symlink_to("head's")
    for _ in range(2):
        with pair.monkeypatch.context() as patch:
            patch.setattr(node, "_remove_outputs", _full)
            with suppress(CopyError):
                pair.do("back")
    pair.do("back")
    assert names(pair.head) == ["both", "both.job-7", "link", "link.job-7"]


@pytest.mark.parametrize("step", [1_000_000_000, 1000])
def test_a_file_system_that_keeps_coarse_times(pair: Pair, step: int) -> None:
    """What an earlier try has written is no change on the head."""
    pair.do("out")
    (pair.node / "a").write_text("of the job")
    status = (pair.node / "a").stat()
    (pair.head / "a").write_text("of the job")
    coarse = status.st_mtime_ns // step * step
    os.utime(pair.head / "a", ns=(coarse, coarse))
    assert pair.do("back")["notes"] == []
    assert names(pair.head) == ["a"]


def test_a_long_name_gets_another_name_that_fits(pair: Pair) -> None:
    long = "x" * 255
    pair.do("out")
    (pair.node / long).write_text("of the job")
    (pair.node / "z").write_text("z")
    (pair.head / long).write_text("of the head, later")
    pair.do("back")
    assert (pair.head / "z").read_text() == "z"
    assert (pair.head / ("x" * 249 + ".job-7")).read_text() == "of the job"


@pytest.mark.parametrize("when", ["it is removed now", "it was removed"])
def test_a_copy_whose_new_draft_another_copy_takes_for_dead_begins_another(
    when: str, pair: Pair
) -> None:
    """A copy that begins in the directory between the creation of a draft and its lock."""
    real, taken = fcntl.flock, list[str]()

    def flock(descriptor: int, operation: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not taken:
            taken.append(path)
            os.unlink(path)
            if when == "it is removed now":
                raise BlockingIOError
        real(descriptor, operation)

    tree = Tree(str(pair.head), [])
    pair.monkeypatch.setattr(fcntl, "flock", flock)
    message = {"s": 4, "m": 10**18, "mode": 0o600}
    tree.write("log", message, iter([b"text"]), sync=False)
    assert taken
    assert names(pair.head) == ["log"]
    assert (pair.head / "log").read_bytes() == b"text"


def test_a_copy_ends_if_other_copies_take_each_of_its_drafts(pair: Pair) -> None:
    def flock(_descriptor: int, _operation: int) -> None:
        raise BlockingIOError

    tree = Tree(str(pair.head), [])
    pair.monkeypatch.setattr(fcntl, "flock", flock)
    message = {"s": 4, "m": 10**18, "mode": 0o600}
    with pytest.raises(OSError, match="other copies remove each unfinished file"):
        tree.write("log", message, iter([b"text"]), sync=False)


def test_two_nodes_bring_one_name_at_the_same_moment(pair: Pair) -> None:
    """Neither file is lost: the second one gets another name."""
    ready = threading.Barrier(2)
    real = Tree._write_draft

    def write(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        ready.wait(20)

    pair.monkeypatch.setattr(Tree, "_write_draft", write)
    notes: list[str] = []

    def bring(text: bytes) -> None:
        ours, theirs = socket.socketpair()
        with channel_of(ours) as channel, channel_of(theirs) as other:
            message = {"s": len(text), "m": 10**18 + len(text), "mode": 0o600, "base": None}
            with (pair.state / f"{len(text)}").open("wb+") as file:
                file.write(text)
                file.seek(0)
                other.send_content(file.fileno())
            tree = Tree(str(pair.head), [], locks=pair.locks)
            head._take_file(tree, "log", message, {"job": JOB}, channel)
            notes.extend(tree.notes)

    # Drafts are named by the process; here both copies are threads of one.
    threads = [
        threading.Thread(target=bring, args=(text,)) for text in (b"of one", b"of the other")
    ]
    numbers = itertools.count()
    pair.monkeypatch.setattr(Tree, "_temporary", lambda *_: f".slurm-elastic-{next(numbers)}.tmp")
    pair.monkeypatch.setattr(Tree, "_enter", _enter_top)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {path.read_bytes() for path in pair.head.iterdir()} == {b"of one", b"of the other"}
    assert names(pair.head) == ["log", "log.job-7"]
    assert notes == ["log: it was changed on the head, too: the job's is log.job-7"]


def _enter_top(tree: Tree, path: str) -> str:
    return path


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", "a//b", ".", "a/.", "x\0y"])
def test_no_path_leads_out_of_the_tree(pair: Pair, path: str) -> None:
    tree = Tree(str(pair.head), [])
    with pytest.raises(CopyError):
        tree.write(path, {"mode": 0o600, "m": 0}, iter([b"x"]), sync=False)
    assert names(pair.head) == []


def test_no_link_is_followed(pair: Pair) -> None:
    outside = pair.state / "outside"
    outside.mkdir()
    (pair.head / "d").symlink_to(outside)
    (pair.head / "f").symlink_to(outside / "f")
    tree = Tree(str(pair.head), [])
    with pytest.raises(NotADirectoryError):
        tree.write("d/x", {"mode": 0o600, "m": 0}, iter([b"x"]), sync=False)
    tree.write("f", {"mode": 0o4755, "m": 0}, iter([b"x"]), sync=False)
    assert names(outside) == []
    assert (pair.head / "f").stat().st_mode & 0o7777 == 0o755, "no set-user-id"


def test_a_link_that_a_machine_planted_leads_no_output_elsewhere(pair: Pair) -> None:
    """With an earlier job's files, at the path of the output of the next one."""
    keys = pair.state / "keys"
    keys.write_text("of the user\n")
    pair.do("out")
    pair.output.symlink_to(keys)
    (pair.node / "out.txt").write_text("of root on the machine\n")
    for way in ("outputs", "back"):
        with suppress(CopyError):
            pair.do(way)
        assert keys.read_text() == "of the user\n"
    with pytest.raises(CopyError, match="is a link, or leads through one") as error:
        pair.do("out")
    assert error.value.final


@pytest.mark.parametrize("place", ["out.txt", "logs/out.txt"])
def test_no_link_comes_to_the_path_of_an_output(pair: Pair, place: str) -> None:
    path = place.partition("/")[0]
    tree, order = Tree(str(pair.head), [], locks=pair.locks), pair.order("back", JOB)
    order["outputs"] = [{"path": f"{pair.head}/{place}", "base": 0}]
    message = {"t": "l", "p": path, "to": str(pair.state), "base": None}
    ours, theirs = socket.socketpair()
    with theirs, channel_of(ours) as channel:
        head._take_entry(tree, message, order, channel, {}, [])
    assert names(pair.head) == []
    assert tree.notes == [f"{path}: a link at the job's output, or on the way to it, is not copied"]


def test_no_link_of_a_job_replaces_a_file_that_was_changed_on_the_head(pair: Pair) -> None:
    for name in ("changed", "same"):
        (pair.head / name).write_text("old")
    (pair.head / "link").symlink_to("old")
    pair.do("out")
    for name in ("changed", "same"):
        (pair.node / name).unlink()
        (pair.node / name).symlink_to("/scratch")
    (pair.node / "made").symlink_to("/scratch")
    (pair.node / "link").unlink()
    (pair.node / "link").write_text("a file now")
    (pair.head / "changed").write_text("of the head, later")
    (pair.head / "made").write_text("of the head, too")
    notes = pair.do("back")["notes"]
    assert (pair.head / "changed").read_text() == "of the head, later"
    assert (pair.head / "made").read_text() == "of the head, too"
    assert os.readlink(pair.head / "same") == "/scratch"
    assert (pair.head / "link").read_text() == "a file now"
    assert not (pair.head / "link").is_symlink()
    assert os.readlink(pair.head / "changed.job-7") == "/scratch"
    assert notes == [
        "changed: it was changed on the head, too: the job's is changed.job-7",
        "made: it was changed on the head, too: the job's is made.job-7",
    ]


def test_an_output_that_is_no_file_costs_nothing_else(pair: Pair) -> None:
    (pair.head / "a").write_text("a")
    os.mkfifo(pair.output)
    pair.do("out")
    (pair.node / "a").write_text("changed")
    (pair.node / "out.txt").write_text("said")
    with pytest.raises(CopyError, match=r"out\.txt: no file, but something else has this name"):
        pair.do("back")
    assert (pair.head / "a").read_text() == "changed"
    assert (pair.node / "out.txt").read_text() == "said"


def test_a_result_that_could_not_be_written_is_reported_as_lost_and_not_removed(
    pair: Pair,
) -> None:
    pair.do("out")
    (pair.node / "data").mkdir()
    (pair.node / "data" / "result").write_text("computed")
    (pair.node / "z").write_text("computed, too")
    (pair.head / "data").write_text("a file of the user")
    with pytest.raises(CopyError, match="all came back but data/result: Not a dir") as error:
        pair.do("back")
    assert error.value.final
    assert (pair.head / "z").read_text() == "computed, too"
    assert (pair.node / "data" / "result").read_text() == "computed"


def test_a_machine_cannot_send_what_is_excluded(pair: Pair) -> None:
    pair.exclude = [".ssh"]
    (pair.head / ".ssh").mkdir()
    pair.do("out")
    (pair.node / "evil").write_text("key")
    with pair.monkeypatch.context() as patch:
        patch.setattr(node, "_send_changes", _sends_a_key)
        with pytest.raises(CopyError, match=r"the machine sends \.ssh/keys, which is excluded"):
            pair.do("back")
    assert names(pair.head) == [".ssh"]


def _sends_a_key(
    tree: Tree, header: object, book: object, channel: Channel, *_: object
) -> list[object]:
    channel.send(t="f", p=".ssh/keys", s=3, m=0, mode=0o600, base=None)
    return []


def test_slow_work_with_own_files_is_no_silence(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an end reads or writes its own files, no alarm runs."""
    running = [0]
    monkeypatch.setattr("signal.alarm", running.append)
    path = pair.head / "a"
    path.write_bytes(b"x" * 3000)
    during: list[int] = []
    ours, theirs = socket.socketpair()
    with channel_of(ours) as channel, channel_of(theirs) as other, path.open("rb") as file:
        channel.send_content(file.fileno())
        other.send(t="x")
        channel.receive()
        during.append(running[-1])
        with other.content() as blocks:
            during.extend(running[-1] for _ in blocks)
    assert during == [0, 0]
    assert wire.SILENCE_S in running


def sparse(path: Path) -> None:
    """A file of 300 MiB with a hole before, between and behind its two parts."""
    with path.open("wb") as file:
        for place in (64 << 20, 128 << 20):
            file.seek(place)
            file.write(b"data" * 5000)
        file.truncate(300 << 20)


def is_sparse(path: Path) -> bool:
    status = path.stat()
    return status.st_size == 300 << 20 and status.st_blocks * 512 < 1 << 20


def test_holes_of_files_are_neither_sent_nor_written(pair: Pair) -> None:
    """A core dump or a disk image has little data and many holes."""
    pair.limit = 1 << 30
    sparse(pair.head / "image")
    pair.do("out")
    assert is_sparse(pair.node / "image")
    sparse(pair.node / "core")
    assert pair.do("back")["files"] == 1
    assert is_sparse(pair.head / "core")
    assert (pair.head / "core").read_bytes() == (pair.head / "image").read_bytes()


@pytest.mark.parametrize("takes_holes", [True, False])
def test_an_end_of_an_older_release_gets_no_holes(pair: Pair, takes_holes: bool) -> None:
    sparse(pair.head / "a")
    ours, theirs = socket.socketpair()
    with channel_of(ours) as channel, channel_of(theirs) as other, ThreadPoolExecutor(1) as pool:
        other.send(**{"holes": True} if takes_holes else {})
        channel.receive()
        with (pair.head / "a").open("rb") as file:
            sending = pool.submit(channel.send_content, file.fileno(), sparse=True)
            with other.sparse_content() as blocks:
                kinds = {type(block) for block in blocks}
            sending.result()
    assert kinds == ({bytes, int} if takes_holes else {bytes})


def test_no_machine_sends_a_hole_in_an_output(pair: Pair) -> None:
    """A hole that the head took for text would need memory."""
    (pair.state / "hole").write_bytes(struct.pack(">IQI", wire._HOLE, 1 << 40, 0))
    with (pair.state / "hole").open("rb") as source, open(os.devnull, "wb") as sink:
        channel = Channel(source, sink)
        with channel.content() as blocks, pytest.raises(CopyError, match="keep to the protocol"):
            next(blocks)


def test_a_long_look_at_a_directory_gives_signs_of_life(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (pair.head / str(number)).write_text("x")
    now = itertools.count(0.0, 3.0)
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    ours, theirs = socket.socketpair()
    with channel_of(ours) as channel, channel_of(theirs) as other:
        plan = head._plan(Tree(str(pair.head), []), pair.order("out", JOB), channel, frozenset())
        channel.send(t="end")
        ours.shutdown(socket.SHUT_WR)
        lines = list(other._source)
    assert len(plan) == 20
    assert lines.count(b'{"beat": true}\n') >= 5


def test_a_large_file_is_synced_in_parts(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fdatasync", lambda fd: synced.append(os.fstat(fd).st_size))
    monkeypatch.setattr("slurm_elastic.machine.jobfiles.tree._SYNC_EVERY_BYTES", 2000)
    blocks = iter([b"x" * 1000] * 5)
    Tree(str(pair.head), []).write("a", {"mode": 0o600, "m": 0}, blocks, sync=True)
    assert synced == [2000, 4000]
    assert (pair.head / "a").stat().st_size == 5000


@pytest.mark.parametrize("place", ["/", "/tmp", "/home/"])
def test_no_directory_of_the_system_is_copied(pair: Pair, place: str) -> None:
    order = pair.order("out", JOB) | {"directory": place}
    with (
        open(os.devnull, "r+b") as nothing,
        pytest.raises(CopyError, match="is no directory of a job's own"),
    ):
        head.run(order, Channel(nothing, nothing), pair.locks)


as_root = pytest.mark.skipif(os.getuid() != 0, reason="it gives directories to another user")


@pytest.fixture
def top() -> Iterator[Path]:
    """A name at the top, where nothing is yet."""
    base = Path("/slurm-elastic-test-places")
    try:
        yield base
    finally:
        subprocess.run(["rm", "-rf", str(base)], check=True)


@as_root
def test_root_makes_what_is_missing_for_the_user(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    places.make_place(f"{top}/project/mine", [0, 0, 7], 7, 8)
    assert [p.stat().st_uid for p in (top, top / "project")] == [0, 0]
    mine = top / "project" / "mine"
    assert (mine.stat().st_uid, mine.stat().st_gid) == (7, 8)
    places.make_place(f"{mine}/more", [0] * 4, 7, 8)
    assert (mine / "more").stat().st_uid == 7
    assert [p.stat().st_mode & 0o777 for p in (top, mine, mine / "more")] == [0o755, 0o700, 0o700]
    (mine / "trap").symlink_to("/etc")
    places.make_place(f"{mine}/trap/evil", [0] * 5, 7, 8)
    assert not Path("/etc/evil").exists()


@as_root
def test_a_directory_that_a_stranger_has_made_takes_no_files(top: Path) -> None:
    """Below /scratch, as its owner the stranger could exchange the job's program."""
    scratch = top / "scratch"
    scratch.mkdir(parents=True)
    scratch.chmod(0o1777)
    for name, owner in (("mine", 7), ("leader", 5), ("stranger", 9)):
        (scratch / name / "work").mkdir(parents=True)
        os.chown(scratch / name, owner, owner)
    (scratch / "link").symlink_to(scratch / "mine")
    os.chown(scratch / "link", 9, 9, follow_symlinks=False)
    depth = len(scratch.parts) - 1
    places.check_owners(f"{scratch}/mine/work/later", [0] * depth + [7, 7, 7], 7)
    places.check_owners(f"{scratch}/leader/work", [0] * depth + [5, 5], 7)
    for name in ("stranger", "link"):
        with pytest.raises(CopyError, match=rf"{name} belongs to uid 9 on the machine") as error:
            places.check_owners(f"{scratch}/{name}/work", [0] * depth + [7, 7], 7)
        assert error.value.final


@as_root
def test_a_directory_of_another_user_is_made_for_its_owner(top: Path) -> None:
    """As for a job with its output in a colleague's home: the colleague's next job needs it."""
    places.make_place(f"{top}/colleague/of-mine", [0, 9, 7], 7, 8)
    home = top / "colleague"
    assert (home.stat().st_uid, home.stat().st_mode & 0o777) == (9, 0o711)
    assert (home / "of-mine").stat().st_uid == 7
    places.make_place(str(home), [0, 9], 9, 9)
    assert home.stat().st_uid == 9


@as_root
@pytest.mark.parametrize("owner", [0, 7, 9])
def test_a_directory_of_a_group_of_the_users_is_open_to_the_group(
    top: Path, monkeypatch: pytest.MonkeyPatch, owner: int
) -> None:
    """As that of a project, which belongs to root or to its leader."""
    monkeypatch.chdir("/")
    places.make_place(f"{top}/p1/of-7", [0, owner, 7], 7, 8, shared=[-1, 50, -1], groups=[8, 50])
    project = (top / "p1").stat()
    assert (project.st_uid, project.st_gid, project.st_mode & 0o7777) == (owner, 50, 0o2771)
    assert (top / "p1" / "of-7").stat().st_uid == 7
    places.make_place(f"{top}/p1/of-6/more", [0, owner, 6, 6], 6, 8, groups=[8, 50])
    assert (top / "p1" / "of-6" / "more").stat().st_uid == 6, "another user of the group"


@as_root
def test_no_user_gets_a_directory_of_a_group_that_is_not_theirs(top: Path) -> None:
    """What the head's end sends comes from a process with the user's rights."""
    places.make_place(f"{top}/p1", [0, 0], 7, 8, shared=[-1, 42], groups=[8, 50])
    project = (top / "p1").stat()
    assert (project.st_uid, project.st_gid, project.st_mode & 0o7777) == (0, 0, 0o755)


@as_root
def test_a_directory_of_root_stays_roots(top: Path) -> None:
    places.make_place(f"{top}/shared", [0, 0], 7, 8)
    assert (top / "shared").stat().st_uid == 0
    places.make_place(f"{top}/shared", [7, 7], 7, 8)
    assert (top / "shared").stat().st_uid == 0, "what is there is never given away"


@as_root
@pytest.mark.parametrize("place", ["/run", "/etc", "/var/lib", "/opt", "/lib9", "/usr/local"])
def test_root_makes_nothing_below_the_systems_directories(place: str) -> None:
    made = Path(place) / "slurm-elastic-test.d" / "x"
    try:
        places.make_place(str(made), [7] * 5, 7, 8)
        assert not made.parent.exists()
    finally:
        subprocess.run(["rm", "-rf", str(made.parent)], check=True)
    assert not Path("/lib9").exists()


@pytest.mark.parametrize("path", ["/home/../etc/x", "/home//x", "/", "home/x", "/home/./x"])
def test_a_place_is_a_plain_path(path: str) -> None:
    with pytest.raises(CopyError, match="no plain path"):
        places.make_place(path, [7] * 5, 7, 8)


def test_the_head_names_no_place_that_it_lacks(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    order = pair.order("out", JOB) | {
        "outputs": [{"path": p, "base": 0} for p in ("/etc/systemd/x.service.d/a", "/b")],
        "uid": os.getuid() + 1,
    }
    monkeypatch.setattr(head, "_send_out", lambda *_, **__: {"notes": []})
    with open(os.devnull, "r+b") as nothing:
        channel = Channel(nothing, nothing)
        monkeypatch.setattr(channel, "send", lambda **message: sent.append(message))
        monkeypatch.setattr(channel, "receive", lambda: {"shared": [], "outputs": []})
        head.run(order, channel, pair.locks)
    (header,) = sent
    owners = [path.stat().st_uid for path in (pair.head, *pair.head.parents)][-2::-1]
    groups = [
        path.stat().st_gid if path.stat().st_mode & 0o020 else places.NOT_SHARED
        for path in (pair.head, *pair.head.parents)
    ][-2::-1]
    assert header["places"] == [[str(pair.head), owners, groups]]
    assert not {"uid", "gid", "groups", "job", "do"} & set(header)


@pytest.mark.parametrize(
    ("title", "jobs"),
    [
        ("[12.batch]", {12}),
        ("[12.4294967291]", {12}),
        ("[StepId=12.batch]", {12}),
        ("[StepId=12.0]", {12}),
        ("[12+1.0]", {13}),
        ("[12+0.batch]", {12}),
        ("[StepId=12+2.0]", {14}),
        ("[12.0+1]", {12, 13}),
        ("/usr/sbin/slurmd", set()),
    ],
)
def test_the_job_of_a_slurmstepd(title: str, jobs: set[int]) -> None:
    command = f"slurmstepd: {title}".encode()
    assert steps.jobs_of(command) == jobs
    # The saves know the same titles. They read the leader's number.
    assert (ckptroot_steps._TITLE.match(command) is not None) == bool(jobs)


def test_a_job_that_still_runs_is_copied_at_once_only_in_the_last_try(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "has_steps", lambda _: True)
    monkeypatch.setattr(node, "END_WAIT_S", 0)
    ours, theirs = socket.socketpair()
    with theirs, channel_of(ours) as channel:
        with pytest.raises(CopyError, match="processes of job 7 still run") as error:
            node._wait_for_end(pair.identity("back", JOB), channel)
        assert not error.value.final
        monkeypatch.setattr(node, "END_WAIT_S", 1)
        node._wait_for_end(pair.identity("back", JOB), channel)


def ssh_command(**changes: object) -> str:
    order = {"do": "out", "job": JOB, "uid": 7, "gid": 8, "groups": [8], "restarts": 2,
             "made_at": 10, "live": [(JOB, 2), (3, 0)], "end_wait": 9} | changes  # fmt: skip
    return f"jobfiles n1 {json.dumps(order)}"


def test_the_ssh_command_names_the_user() -> None:
    read = identity.read(ssh_command())
    assert read == ("out", JOB, 7, 8, [8], 2, 10, [(JOB, 2), (3, 0)], 9)
    assert [read.counts(run, 9) for run in ("7.2", "3.0", "7.1", "4.0")] == [
        True,
        True,
        False,
        False,
    ]
    assert read.counts("4.0", 10), "it was ordered later"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "names no user and job"),
        ("jobfiles n1", "names no user and job"),
        ("jobfiles n1 {}", "names no user and job"),
        ("jobfiles n1 []", "names no user and job"),
        (ssh_command().replace("jobfiles", "sh"), "names no user and job"),
        (ssh_command(uid="7"), "names no user and job"),
        (ssh_command(uid=True), "names no user and job"),
        (ssh_command(uid=0), "not for root"),
        (ssh_command(gid=0), "not for root"),
        (ssh_command(uid=-1), "not for root"),
        (ssh_command(groups=[8, 0]), "not for root"),
        (ssh_command(live=[[1]]), "names no user and job"),
        (ssh_command(live=[[1, "0"]]), "names no user and job"),
        (ssh_command(restarts=None), "names no user and job"),
        (ssh_command(end_wait=None), "names no user and job"),
    ],
)
def test_what_names_no_user_is_refused(command: str, reason: str) -> None:
    with pytest.raises(CopyError, match=reason):
        identity.read(command)


def test_a_forged_header_changes_no_user(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[tuple[object, ...]] = []
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(node, "become", lambda user: became.append(tuple(user)))
    monkeypatch.setattr(node, "_state_directory", lambda uid, gid: f"{pair.state}")
    monkeypatch.setattr(node, "_take_in", lambda header, *_: seen.append(header))
    for module in (owed, uses):
        monkeypatch.setattr(module, "PLACE", str(tmp_path / module.__name__))
    forged = {"do": "back", "job": 1, "uid": 0, "gid": 0, "groups": [0], "exclude": [],
              "outputs": [], "places": [], "marks": {}, "may_write": True,
              "directory": str(pair.node)}  # fmt: skip
    ours, theirs = socket.socketpair()
    with channel_of(ours) as channel, channel_of(theirs) as other:
        other.send(**forged)
        node.run(identity.read(ssh_command()), channel)
    assert [user[:5] for user in became] == [("out", JOB, 7, 8, [8])]
    assert seen[0]["do"] == "out"


def test_an_earlier_order_does_not_remove_the_file_of_a_job_whose_copy_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the machine is behind, and the other order does not know the job."""
    monkeypatch.setattr(owed, "PLACE", str(tmp_path))
    ahead = time.time_ns() + 10**12
    later = identity.Identity("out", 7, os.getuid(), os.getgid(), [], 0, ahead + 1, [(7, 0)], 0)
    for order in (later, later._replace(job=8, made_at=ahead, live=[(8, 0)])):
        owed.Owed(order)
    assert names(tmp_path) == ["7", "8"]


def test_the_bundle_is_the_program(tmp_path: Path) -> None:
    path = tmp_path / "jobfiles.pyz"
    path.write_bytes(bundle.build())
    assert bundle.build() == path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-I", str(path), "node", ssh_command(uid=0)], input=b"",
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout) == {
        "error": "files are copied for users, not for root", "final": True,
        "busy": False,
    }  # fmt: skip
    assert done.returncode == 1


@as_root
def test_no_process_of_the_user_can_reach_the_heads_end(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    ours, theirs = socket.socketpair()
    result, sink = os.pipe()
    account = pwd.getpwnam("nobody")
    order = {"do": "outputs", "job": JOB, "restarts": 0, "made_at": 1, "live": [], "end_wait": 0,
             "uid": account.pw_uid, "directory": "/tmp", "exclude": [], "outputs": []}  # fmt: skip
    with ours, theirs:
        process = copier.start_head(order, [theirs.fileno(), theirs.fileno(), sink])
        try:
            with ours.makefile("rb") as source:
                assert json.loads(source.readline())["directory"] == "/tmp"
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert f"Uid:\t{account.pw_uid}\t{account.pw_uid}\t{account.pw_uid}" in status
            place = f"/proc/{process.pid}/fd"
            reach = subprocess.run(["ls", place], user=account.pw_uid, group=account.pw_gid,
                                   extra_groups=[], capture_output=True, text=True, check=False)  # fmt: skip
            assert "Permission denied" in reach.stderr
            assert b"/tmp" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        finally:
            process.kill()
            process.wait()
            os.close(result)
            os.close(sink)


def test_only_the_service_that_starts_the_heads_end_doubts_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two doubts in a row would use up copy.back_within, and the files of the job be lost."""
    groups, clock = [1000, 2000], [0.0]
    monkeypatch.setattr(copier, "_memory", copier.GroupMemory())
    monkeypatch.setattr(copier, "groups_of", lambda account: list(groups))
    monkeypatch.setattr(copy_orders, "groups_of", lambda account: list(groups))
    monkeypatch.setattr(copier.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(subprocess, "Popen", lambda *command, **options: None)
    uid = pwd.getpwnam("nobody").pw_uid

    def starts() -> bool:
        with contextlib.suppress(copier.CopierRefusalError):
            copier.start_head({**copy_orders.order_of(uid), "groups_doubt": 300.0}, [0, 1, 2])
            return True
        return False

    assert starts()
    groups.remove(2000)
    assert not starts()
    clock[0] = 301.0
    assert starts()
    earlier = copy_orders.order_of(uid)
    groups.append(3000)
    with pytest.raises(copier.CopierRefusalError, match="fewer groups"):
        copier.start_head(earlier, [0, 1, 2])


@as_root
def test_no_module_of_the_user_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(command: list[str], **_: object) -> None:
        commands.append(command)

    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", start)
    copier.start_head({"uid": pwd.getpwnam("nobody").pw_uid}, [0, 1, 2])
    monkeypatch.undo()
    options = commands[0][1 : commands[0].index("-m")]
    place = subprocess.run(
        [sys.executable, "-m", "site", "--user-site"], env={"PYTHONUSERBASE": str(tmp_path)},
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    Path(place).mkdir(parents=True)
    (Path(place) / "usercustomize.py").write_text("print('loaded')\n")
    done = subprocess.run(
        [sys.executable, *options, "-c", "import sys; print(sys.flags.no_user_site)"],
        env={"PYTHONUSERBASE": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "1\n"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "copier.sock"
    server = copier.Copier(path, {os.getuid()})
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield path
    server.end()
    thread.join(10)
    assert not thread.is_alive()


def asked(path: Path, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(path))
        socket.send_fds(link, [json.dumps(order).encode() + b"\n"], descriptors)
        with link.makefile("rb") as answer:
            return dict(json.loads(answer.readline()))


@pytest.mark.parametrize(
    ("order", "count", "said"),
    [
        ({"uid": 0}, 3, "the files of uid 0 are not copied"),
        ({"uid": "1"}, 3, "the files of uid 1 are not copied"),
        ({"uid": 4_000_000_000}, 3, "no user with uid 4000000000"),
        ({"uid": 1}, 2, "three descriptors"),
        ([], 3, "no object"),
    ],
)
def test_the_copier_refuses(service: Path, order: Any, count: int, said: str) -> None:
    descriptors = [os.open(os.devnull, os.O_RDWR) for _ in range(count)]
    answer = asked(service, order, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    assert not answer["ok"]
    assert said in answer["message"]


def test_the_copier_serves_root_and_slurm_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    server = copier.Copier(path, {os.getuid() + 1})
    thread = threading.Thread(target=server.serve)
    thread.start()
    answer = None
    with contextlib.suppress(BrokenPipeError):  # it may be refused before the order is sent
        answer = asked(path, {"uid": 1}, [0, 1, 2])
    server.end()
    thread.join(10)
    assert answer in (None, {"ok": False, "message": "only root and SlurmUser may ask"})
