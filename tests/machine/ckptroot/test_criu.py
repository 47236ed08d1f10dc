"""Method criu, with stand-ins for CRIU and for the job's process 1."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from needs import ROOT_PART

from slurm_elastic.machine.ckptroot import criu, dump
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.images import OpenFile
from slurm_elastic.machine.ckptroot.locks import Lock
from slurm_elastic.machine.ckptroot.payload import Payload
from slurm_elastic.machine.ckptroot.site import Refused, Site

CALLER = Caller(job=7, uid=2000, gid=2000, user="alice", groups=(2000,), environment={})
ENV = {b"PATH": b"/bin", b"TMPDIR": b"/old"}
PAYLOAD = Payload(("script",), ENV, "/", 0o22, 2000, 2000, (2000,))
MIB = 1 << 20
CLOCKS = {"monotonic": 7_000_000_000, "boottime": 9_000_000_000}


class Bed:
    """Without any process: ``done`` is what was asked of whom, ``answers`` those of process 1, and
    the clock goes on by what is waited for them.
    """

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.done: list[object] = []
        gone = lambda: self.done.append("places")  # noqa: E731
        self.places = SimpleNamespace(take=lambda payload: [], close=gone)
        self.answers: list[dict[str, Any] | None] = [{"keeper": 12}]
        self.waits: list[float] = []
        monkeypatch.setattr(criu.keeper, "start", self.begin)
        monkeypatch.setattr(criu.keeper, "send", lambda way, message: self.done.append(message))
        monkeypatch.setattr(criu.keeper, "receive", self.receive)
        monkeypatch.setattr(criu.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(criu, "_namespaces", lambda middle: (3, 4))
        monkeypatch.setattr(criu, "Baggage", lambda *given: self)
        monkeypatch.setattr(criu, "Scratch", lambda *given: self)
        monkeypatch.setattr(criu, "OwnPlaces", lambda *given: self.places)
        spaces = {"ipc": 5, "time": 6}
        namespace = lambda _, kind: contextlib.nullcontext(spaces[kind])  # noqa: E731
        monkeypatch.setattr(criu.Criu, "_namespace", namespace)
        monkeypatch.setattr(criu.sysv, "held", lambda namespace: self.held[namespace])
        monkeypatch.setattr(criu.sysv, "check_undone", lambda *how: self.undone.append(how))
        self.undone: list[Any] = []
        monkeypatch.setattr(criu.images, "has_sysv", lambda image: False)
        monkeypatch.setattr(criu.images, "stopped", lambda image: frozenset())
        monkeypatch.setattr(criu.onwards, "quietly", lambda tasks, stopped: frozenset())
        monkeypatch.setattr(criu.images, "links", lambda image: ("/tmp/link_remap.1",))
        monkeypatch.setattr(criu.images, "has_streams", lambda image: self.streams)
        monkeypatch.setattr(criu.images, "streams", lambda image: ["a stream"])
        monkeypatch.setattr(criu.sockets, "stays_here", lambda tasks: "")
        monkeypatch.setattr(criu.sockets, "are_its_own", lambda tasks: self.streams)
        monkeypatch.setattr(criu.sockets, "reused", lambda tasks: frozenset({"7"}))
        monkeypatch.setattr(criu.sockets, "wake", lambda *how: self.done.append(("wake", *how)))
        monkeypatch.setattr(criu.sockets, "check_streams", self.done.append)
        self.streams = False
        self.held: dict[int, criu.sysv.Held | None] = {5: None}
        self.renamed = False
        self.work = place
        site = Site(
            cluster="t", directory=place, key=b"", reader=(0, 0), criu=str(place / "criu"),
            slurmstepd="/none",
        )  # fmt: skip
        self.method: Any = criu.Criu(site, CALLER, PAYLOAD)

    def begin(self, payload: Payload) -> tuple[object, int]:
        self.payload = payload
        return SimpleNamespace(close=lambda: self.done.append("way")), 11

    def receive(self, way: object, timeout: float) -> dict[str, Any] | None:
        self.waits.append(timeout)
        self.now += 1.0 if timeout else 0.0
        return self.answers.pop(0) if self.answers else None

    # the baggage and the scratch directory

    def prepare(self) -> dict[bytes, bytes]:
        return {b"TMPDIR": b"/new"}

    def withdraw(self) -> None:
        self.done.append("withdraw")

    def unpack(self, image: Path) -> None:
        self.done.append(("unpack", image))

    def pack(self, image: Path, most: int, tasks: Sequence[int]) -> None:
        self.done.append(("pack", image, most, tasks))

    def leave(self) -> None:
        self.done.append("leave")

    def discard(self) -> None:
        self.done.append("discard")

    def found(self, tasks: Sequence[int]) -> dict[str, Any]:
        return {name: SimpleNamespace(st_blocks=8) for name in ("/tmp/a", "/tmp/b")}

    def has_renamed(self, gone: dict[str, Any], tasks: Sequence[int]) -> bool:
        return self.renamed

    def lend(self, links: Sequence[str]) -> None:
        self.done.append(("lend", *links))

    def take_back(self) -> None:
        self.done.append("take back")

    def holds(self, path: str) -> bool:
        return path.startswith("/tmp/")

    def path(self) -> Path:
        return self.work

    def close(self) -> None:
        self.done.append("close")


def manifest(closed: list[str] | None, **bound: list[int]) -> SimpleNamespace:
    """As much of a manifest as a restore reads."""
    return SimpleNamespace(pid=1001, clocks=CLOCKS, closed=closed, bound=bound)


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    return Bed(tmp_path, monkeypatch)


# process 1


def test_a_job_has_a_tmpdir_of_its_own_and_no_process_yet(bed: Bed) -> None:
    assert bed.payload.environment == {b"PATH": b"/bin", b"TMPDIR": b"/new"}
    assert (bed.method.pid, bed.method._keeper, bed.waits) == (0, 12, [30.0])
    assert bed.method.ended() is None


def test_a_start_takes_back_what_an_unused_image_left(bed: Bed) -> None:
    bed.answers = [{"pid": 1001}]
    bed.method.start()
    assert (bed.done, bed.method.pid) == (["withdraw", {"do": "start"}], 1001)
    assert bed.waits == [30.0, 30.0]


def test_its_clocks_are_told_by_those_of_the_node(bed: Bed) -> None:
    bed.answers = [{"pid": 1001}]
    bed.method.start()
    assert bed.method.clocks() is None, "it has none of its own"
    bed.method._own_clocks = {"monotonic": 5, "boottime": 5}
    bed.answers = [{"pid": 1001, "clocks": {"monotonic": 10**15, "boottime": 10**16}}]
    before = time.monotonic_ns()
    bed.method.start()
    found = bed.method.clocks()
    assert before + 10**15 - 5 <= found["monotonic"] <= time.monotonic_ns() + 10**15 - 5
    assert found["boottime"] > 10**16


def test_a_job_whose_clocks_cannot_go_on_is_not_saved(
    bed: Bed, saved: list[tuple[Any, ...]]
) -> None:
    bed.answers = [{"pid": 1001, "clockless": "Operation not permitted"}]
    bed.method.start()
    with pytest.raises(Refused, match=r"^its node gives it no clocks of its own: Operation not"):
        bed.method.need()
    assert saved == []


def test_an_answer_is_waited_for_as_long_as_there_is_time(bed: Bed) -> None:
    bed.answers, bed.waits = [None, {"ended": 256}, None, {"pid": 1}], []
    assert bed.method._wait(30.0) == {"pid": 1}
    assert bed.waits == [30.0, 29.0, 28.0, 27.0]
    assert bed.method.ended() == 256, "which came meanwhile"
    with pytest.raises(Refused, match=r"^no answer from the job's process 1 in 3 s$"):
        bed.method._wait(3.0)
    assert bed.waits[-3:] == [3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("answer", "why", "ended"),
    [({"failed": "unshare"}, "^unshare$", None), ({"gone": True}, "processes were killed", 9)],
)
def test_what_process_1_cannot_do_is_refused(
    bed: Bed, answer: dict[str, Any], why: str, ended: int | None
) -> None:
    bed.answers = [answer]
    with pytest.raises(Refused, match=why):
        bed.method._wait(30.0)
    assert bed.method.ended() == ended


@pytest.mark.parametrize(
    ("said", "status"),
    [([{"ended": 256}], 256), ([{"gone": True}], signal.SIGKILL), ([{"pid": 1}, {"ended": 0}], 0)],
)
def test_its_end_is_told_once_and_for_all(
    bed: Bed, said: list[dict[str, Any] | None], status: int
) -> None:
    bed.answers = [*said, {"ended": 4}]
    assert [bed.method.ended(), bed.method.ended()] == [status, status]
    assert set(bed.waits[1:]) == {0}, "nothing is waited for"


def test_a_stopped_job_ends_and_leaves_and_a_signal_goes_to_its_first_process(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.method._ended = 9
    monkeypatch.setattr(bed.method, "_tasks", lambda: [4711])
    monkeypatch.setattr(criu.robust, "keep", lambda tasks: bed.done.append(("kept", *tasks)))
    bed.answers, bed.waits = [{"killed": True}], []
    bed.method.stop()
    assert (bed.done, bed.waits) == ([("kept", 4711), {"do": "kill"}, "take back", "leave"], [60.0])
    assert bed.method.ended() is None, "it comes back, maybe"
    bed.done = []
    bed.method.signal(10)
    bed.method.go_on()
    assert bed.done == [{"do": "signal", "number": 10}, {"do": "continue", "but": []}, "take back"]


def test_in_the_end_nothing_of_it_stays(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    def gone(pid: int, how: int) -> None:
        closed.append(pid)
        raise ChildProcessError

    monkeypatch.setattr(criu.os, "waitpid", gone)
    monkeypatch.setattr(criu.os, "close", closed.append)
    bed.method.close()
    assert bed.done == ["way", "discard", "places", "close"]
    assert closed == [11, 3, 4]


# restoring


def test_a_restore_is_of_what_was_checked_and_shown(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown: list[Path] = []
    monkeypatch.setattr(criu.images, "check", lambda image, identity: (2000, 2005))
    monkeypatch.setattr(criu.images, "show", shown.append)
    monkeypatch.setattr(criu.images, "has_sysv", lambda image: True)
    monkeypatch.setattr(criu.capabilities, "restorer", lambda identity, *how: [identity.uid, how])
    bed.answers, bed.waits = [{"pid": 1001}], []
    bed.method.restore(tmp_path / "1", manifest(None))
    assert (shown, bed.method.pid, bed.waits) == ([tmp_path / "1"], 1001, [3600.0])
    order, after = bed.done
    assert isinstance(order, dict)
    assert order["sysv"] is True
    assert after == "take back", "the names that the image's files had for its sake"
    assert order["command"][:5] == [
        2000,
        ((2000, 2005), True, False),
        f"{tmp_path}/criu",
        "restore",
        "--unprivileged",
    ]
    assert (order["do"], order["images"], order["pid"]) == ("restore", f"{tmp_path}/1", 1001)
    assert order["clocks"] == CLOCKS
    (tmp_path / "restore.log").write_text(
        "Error (x): RLIMIT_NOFILE is low\n(00.1) Error (files-reg.c:9): Can't open\nError (y): after\n"
    )
    bed.answers = [{"failed": "criu restore: exit 1"}]
    with pytest.raises(Refused, match=r"^criu restore: exit 1: \(files-reg.c:9\): Can't open$"):
        bed.method.restore(tmp_path / "1", manifest(None))


def test_connections_of_its_own_are_in_no_ones_way(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bed.method, "_tasks", lambda: [4711])
    monkeypatch.setattr(criu.sockets, "connections", lambda tasks: ["127.0.0.1:80"])
    assert bed.method.partners() == ["127.0.0.1:80"]
    bed.streams = True
    assert bed.method.partners() == []


@ROOT_PART
def test_what_comes_back_is_bound_again_with_no_more_than_its_users_rights(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[object] = []
    monkeypatch.setattr(criu.images, "check", lambda image, identity: ())
    monkeypatch.setattr(criu.images, "show", lambda image: None)
    monkeypatch.setattr(bed.method, "_tasks", lambda: [4711])
    bind = lambda *what: done.append((os.geteuid(), *what))  # noqa: E731
    monkeypatch.setattr(criu.binding, "bind", bind)
    bed.answers = [{"pid": 1001}, {"pid": 1001}]
    bed.method.restore(tmp_path / "1", manifest(None))
    bed.method.restore(tmp_path / "2", manifest(None, **{"1001": [1]}))
    assert done == [(2000, [4711], {"1001": [1]}, os.sched_getaffinity(0))]


@pytest.mark.parametrize("closed", [[], ["10.1.2.3:80"]])
def test_connections_are_closed_in_a_restore_where_they_were_in_the_save(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed: list[str]
) -> None:
    monkeypatch.setattr(criu.images, "check", lambda image, identity: ())
    monkeypatch.setattr(criu.images, "show", lambda image: None)
    bed.answers = [{"pid": 1001}, {"pid": 1001}]
    bed.method.restore(tmp_path / "1", manifest(closed))
    bed.method.restore(tmp_path / "1", manifest(None))
    commands = [order["command"] for order in bed.done if isinstance(order, dict)]
    assert [command.count("--tcp-close") for command in commands] == [1, 0]


@pytest.mark.parametrize("taken", [True, False])
def test_what_comes_back_stands_still_until_it_has_its_locks(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, taken: bool
) -> None:
    wanted = {1001: [Lock(3, 1, 0, 0)]}
    monkeypatch.setattr(criu.images, "check", lambda image, identity: ())
    monkeypatch.setattr(criu.images, "show", lambda image: None)
    monkeypatch.setattr(criu.images, "locks", lambda image: wanted)
    monkeypatch.setattr(criu.images, "stopped", lambda image: frozenset({1002}))
    monkeypatch.setattr(bed.method, "_tasks", lambda: [4711])
    monkeypatch.setattr(criu.robust, "keep", lambda tasks: bed.done.append(("kept", *tasks)))
    asked: list[object] = []
    take = lambda *how: asked.append(how) or ("" if taken else "/shared/file")  # noqa: E731
    monkeypatch.setattr(criu.locks, "can_take", lambda: True)
    monkeypatch.setattr(criu.locks, "take", take)
    bed.answers = [{"pid": 1001}, {"killed": True}]
    with contextlib.nullcontext() if taken else pytest.raises(Refused, match=r"^/shared/file: its"):
        bed.method.restore(tmp_path / "1", manifest(None))
    order, *after = bed.done
    assert isinstance(order, dict)
    assert "--leave-stopped" in order["command"]
    assert asked == [([4711], wanted)]
    go_on = [{"do": "continue", "but": [1002]}, "take back"]
    assert after == (go_on if taken else [("kept", 4711), {"do": "kill"}])


def test_no_more_of_an_error_is_told_than_a_line_takes(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    log.write_text("all is well\nError (x): " + "y" * 400)
    assert dump.last_error(log) == "(x): " + "y" * 295
    log.write_text("Error (RLIMIT_NOFILE)\nan Error of another kind\n")
    assert dump.last_error(log) == "no error in its log"
    log.unlink()
    assert dump.last_error(log) == "no error in its log"


def test_files_that_it_alone_writes_are_told(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = (OpenFile("/a", 1, appends=True), OpenFile("/b", 1, appends=False))
    monkeypatch.setattr(criu.images, "writing", lambda image: files)
    assert bed.method.alone(tmp_path) == {"/b"}
    bed.method.lay_out(tmp_path)
    assert bed.done == [("unpack", tmp_path)]


# saving


@pytest.fixture
def saved(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The runs of CRIU; its checks say nothing."""
    ran: list[tuple[Any, ...]] = []
    bed.method._dumped = (0, False)

    def run(*words: Any) -> tuple[int, bool]:
        ran.append(words)
        found: tuple[int, bool] = bed.method._dumped
        return found

    monkeypatch.setattr(dump.dumping, "run", run)
    monkeypatch.setattr(bed.method, "_know_kernel", lambda: None)
    monkeypatch.setattr(dump.capabilities, "dumper", lambda *_, **__: ["setpriv"])
    monkeypatch.setattr(dump.capabilities, "own_dumper", lambda *_, **__: ["setpriv", "--reuid"])
    monkeypatch.setattr(criu.inventory, "gone_names", lambda tasks: {"/tmp/gone": (1, 2)})
    monkeypatch.setattr(bed.method, "_tasks", lambda: [21, 22])
    monkeypatch.setattr(bed.method, "_obstacle", lambda pid, owner, status: "")
    for name in ("stray", "terminal", "local_files"):
        monkeypatch.setattr(criu.inventory, name, lambda *_: "")
    monkeypatch.setattr(criu.inventory, "deleted", lambda tasks: 7 if tasks == [21, 22] else 0)
    monkeypatch.setattr(criu, "memory_of", lambda status: 100)
    monkeypatch.setattr(criu, "shared_of", lambda pid, status: pid)
    monkeypatch.setattr(criu.images, "check", lambda image, identity: bed.done.append("check"))
    monkeypatch.setattr(criu.interrupted, "go_back", lambda tasks: None)
    again = lambda image: bed.done.append("wait again")  # noqa: E731
    monkeypatch.setattr(criu.interrupted, "wait_again", again)
    monkeypatch.setattr(criu.images, "writing", lambda image: (OpenFile("/a", 5),))
    return ran


def test_it_takes_its_memory_and_its_files_on_this_node(
    bed: Bed, saved: list[tuple[Any, ...]]
) -> None:
    assert bed.method.need() == 2 * 8 * 512 + 121 + 122 + 7


def test_a_dump_is_of_its_own_process_numbers_and_leaves_them_stopped(
    bed: Bed, saved: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    bed.method.pid = 1001
    assert bed.method.dump(tmp_path / "1.new", 0.1, 5 * MIB) == {"/a": 5}
    ((command, handed, image, most, said),) = saved
    assert (handed, image, most) == ((3, 4, 6, 5), tmp_path / "1.new", 5 * MIB)
    assert said is None
    assert command[:6] == [
        "/usr/bin/nsenter", "--mount=/proc/self/fd/3", "--pid=/proc/self/fd/4",
        "--time=/proc/self/fd/6", "--ipc=/proc/self/fd/5", "--",
    ]  # fmt: skip
    assert command[6:11] == ["setpriv", f"{tmp_path}/criu", "dump", "-t", "1001"]
    assert "--leave-stopped" in command
    assert not {"--tcp-close", "--tcp-established", "--skip-in-flight"} & set(command)
    assert bed.done == [("lend", "/tmp/link_remap.1"), "check", "wait again"]


def test_system_v_ipc_is_saved_from_outside_of_it(
    bed: Bed, saved: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.held = {5: criu.sysv.Held(4096, semaphores=True)}
    asked: list[list[str]] = []
    monkeypatch.setattr(criu, "_run", lambda words, *_: asked.append(words) or 0)
    assert bed.method.need() == 2 * 8 * 512 + 121 + 122 + 7 + 4096
    bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    ((command, handed, *_),) = saved
    assert handed == (3, 4, 6)
    assert not [word for word in command if word.startswith("--ipc")]
    assert asked[0][-1] == ": >>/proc/sys/kernel/shm_next_id"
    assert bed.undone == [([21, 22], 12)] * 2, "before and after"
    bed.held = {5: criu.sysv.Held(4096, semaphores=False)}
    bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    assert len(bed.undone) == 2, "there is nothing to be undone"
    saved.pop()
    monkeypatch.setattr(criu, "_run", lambda *_: 2)
    with pytest.raises(Refused, match="which this kernel lets only root bring back"):
        bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    assert len(saved) == 1, "nothing was stopped for it"


def test_what_began_to_use_it_meanwhile_is_not_saved(
    bed: Bed, saved: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = iter([None, criu.sysv.Held(0, semaphores=False)])
    monkeypatch.setattr(criu.sysv, "held", lambda namespace: next(held))
    with pytest.raises(Refused, match="has begun to use System V IPC just now"):
        bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    assert bed.done[-2:] == [{"do": "continue", "but": []}, "take back"]


def test_links_are_made_as_the_jobs_user(
    bed: Bed, saved: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.renamed = True
    monkeypatch.setattr(dump.images, "handed", lambda image, uid: contextlib.nullcontext(9))
    bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    ((command, handed, _, _, said),) = saved
    assert handed == (3, 4, 6, 5, 9)
    assert isinstance(said, int)
    assert {"--reuid", "--link-remap", "--unprivileged", "/proc/self/fd/9"} <= set(command)
    assert (tmp_path / "dump.log").exists()


def test_connections_are_closed_in_a_save_that_is_asked_to(
    bed: Bed, saved: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    bed.method.dump(tmp_path / "1.new", 60.0, MIB, True)
    ((command, *_),) = saved
    assert {"--tcp-close", "--skip-in-flight"} <= set(command)


def test_connections_of_its_own_are_kept_and_wake_up_where_it_goes_on(
    bed: Bed, saved: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.streams = True
    bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    ((command, *_),) = saved
    assert "--tcp-established" in command
    assert bed.done[-1] == ["a stream"], "they were at rest"
    bed.method.go_on()
    assert bed.done[-3:] == [
        ("wake", [21, 22], frozenset({"7"})), {"do": "continue", "but": []}, "take back",
    ]  # fmt: skip
    bed.method.dump(tmp_path / "2.new", 60.0, MIB, True)
    assert "--tcp-established" not in saved[1][0], "they are to be closed"
    bed.done.clear()
    bed.method.go_on()
    assert bed.done == [{"do": "continue", "but": []}, "take back"]
    monkeypatch.setattr(criu.images, "check", lambda image, identity: ())
    monkeypatch.setattr(criu.images, "show", lambda image: None)
    bed.answers = [{"pid": 1001}, {"pid": 1001}]
    for closed, kept in ((None, True), (["127.0.0.1:80"], False)):
        bed.method.restore(tmp_path / "1", manifest(closed))
        order = bed.done[-2]
        assert isinstance(order, dict)
        assert ("--tcp-established" in order["command"]) is kept


def test_a_directory_that_fails_after_a_save_lets_them_go_on(
    bed: Bed, saved: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(bed.method, "_save", fails)
    with pytest.raises(OSError, match="Stale"):
        bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    assert bed.done == [{"do": "continue", "but": []}, "take back"]


def test_what_was_stopped_before_stays_so_and_what_would_notice_goes_on_apart(
    bed: Bed, saved: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def quietly(*given: object) -> frozenset[int]:
        asked.append(given)
        return frozenset({1007})

    monkeypatch.setattr(criu.images, "stopped", lambda image: frozenset({1002}))
    monkeypatch.setattr(criu.onwards, "quietly", quietly)
    bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    bed.method.go_on()
    assert asked == [([21, 22], {1002})]
    assert bed.done[-2:] == [{"do": "continue", "but": [1002, 1007]}, "take back"]
    monkeypatch.setattr(criu.onwards, "quietly", lambda *_: os.open("/none", 0))
    bed.method.go_on()
    assert bed.done[-2:] == [{"do": "continue", "but": [1002]}, "take back"]


def test_connections_that_cannot_be_woken_let_them_go_on(
    bed: Bed, saved: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise Refused("its connections cannot be opened")

    bed.streams = True
    bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    monkeypatch.setattr(criu.sockets, "wake", fails)
    with pytest.raises(Refused, match="cannot be opened"):
        bed.method.go_on()
    assert bed.done[-2:] == [{"do": "continue", "but": []}, "take back"]


@pytest.mark.parametrize("within", [0.0, -1.0])
def test_after_the_deadline_nothing_is_stopped(
    bed: Bed, saved: list[tuple[Any, ...]], tmp_path: Path, within: float
) -> None:
    with pytest.raises(Refused, match="the deadline has passed"):
        bed.method.dump(tmp_path, within, MIB)
    assert saved == []


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ((5, True), "^no room: the image would have more than 5 MiB$"),
        ((5, False), r"^criu dump: exit 5: no error in its log$"),
    ],
)
def test_a_dump_that_fails_let_them_go_on_itself(
    bed: Bed, saved: list[tuple[Any, ...]], tmp_path: Path, how: tuple[int, bool], why: str
) -> None:
    bed.method._dumped = how
    with pytest.raises(Refused, match=why):
        bed.method.dump(tmp_path, 60.0, 5 * MIB)
    assert bed.done == []


def test_one_that_was_whole_before_it_could_be_ended_counts(
    bed: Bed, saved: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    bed.method._dumped = (0, True)
    assert bed.method.dump(tmp_path, 60.0, MIB) == {"/a": 5}


@pytest.mark.parametrize("check", ["_check_inventory", "_check_rights"])
def test_what_became_so_while_it_was_saved_lets_them_go_on(
    bed: Bed,
    saved: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    check: str,
) -> None:
    def refuses() -> int:
        raise Refused("process x has left")

    monkeypatch.setattr(bed.method, check, refuses)
    with pytest.raises(Refused, match="process x has left"):
        bed.method.dump(tmp_path, 60.0, MIB)
    assert bed.done == [
        ("lend", "/tmp/link_remap.1"),
        "check",
        "wait again",
        {"do": "continue", "but": []},
        "take back",
    ]


def test_a_step_is_looked_for_before_a_save_and_once_all_stand_still(
    bed: Bed, saved: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looks: list[object] = []

    def check(*how: object) -> None:
        looks.append(how)
        raise Refused("it runs a step")

    monkeypatch.setattr(criu.steps, "check", check)
    monkeypatch.setattr(bed.method, "_tasks", lambda: [41])
    with pytest.raises(Refused, match="it runs a step"):
        bed.method.need()
    assert bed.done == [], "nothing was stopped"
    with pytest.raises(Refused, match="it runs a step"):
        bed.method.dump(tmp_path, 60.0, MIB, True)
    assert looks == [(bed.method._site, 7, [41], "criu")] * 2
    assert {"do": "continue", "but": []} in bed.done


@pytest.mark.parametrize("name", ["stray", "terminal", "local_files"])
def test_each_reason_not_to_save_it_counts(
    bed: Bed, saved: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(criu.inventory, name, lambda *_: f"why: {name}")
    with pytest.raises(Refused, match=f"^why: {name}$"):
        bed.method.need()


def test_its_locks_are_told_but_those_of_what_travels(
    bed: Bed, saved: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    locked = {"/tmp/a": (1, 2, 3), "/shared/b": (4, 5, 6)}
    monkeypatch.setattr(criu.inventory, "locked_files", lambda tasks: locked)
    assert bed.method.locked() == {"/shared/b": (4, 5, 6)}
    bed.method.gather(tmp_path, MIB)
    assert bed.done == [("pack", tmp_path, MIB, [21, 22])]


@pytest.mark.parametrize(
    ("said", "version"), [("Version: 4.1.1\nGitID: 7", "4.1.1"), ("", "unknown")]
)
def test_its_version_is_told(bed: Bed, tmp_path: Path, said: str, version: str) -> None:
    (tmp_path / "criu").write_text(f"#!/bin/sh\nprintf '{said}'\nexit 1\n")
    (tmp_path / "criu").chmod(0o755)
    assert bed.method.versions() == {"criu": version, "kernel": os.uname().release}


# what a job's user could not restore

STATUS = {"Uid": "2000\t2000\t2000\t2000", "Gid": "2000\t2000\t2000\t2000", "RssAnon": "1 kB",
          "CapInh": "0", "CapPrm": "0", "CapEff": "0", "CapAmb": "0", "Groups": "2000 "}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "owner", "why"),
    [
        ({}, 2000, ""),
        ({}, None, ""),
        ({"Uid": "2000\t0\t2000\t2000"}, 2000, "other rights"),
        ({"Gid": "2000\t2000\t2000\t0"}, 2000, "other rights"),
        *(({name: "0000000000000001"}, 2000, "other rights") for name in criu._NEEDED),
        ({"Groups": " ".join(map(str, range(128)))}, 2000, ""),
        ({"Groups": " ".join(map(str, range(129)))}, 2000, "more than 128 groups"),
        ({}, 0, "not dumpable"),
        # One that has ended has the rights that CRIU brought it back with; one of which only the
        # first thread has runs on.
        ({"CapPrm": "1", "State": "Z (zombie)", "Threads": "1"}, 0, ""),
        ({"CapPrm": "1", "State": "Z (zombie)", "Threads": "2"}, 0, "other rights"),
    ],
)
@pytest.mark.parametrize("modern", [False, True])
def test_a_task_with_more_than_its_users_rights_is_told(
    bed: Bed,
    monkeypatch: pytest.MonkeyPatch,
    status: dict[str, str],
    owner: int | None,
    why: str,
    modern: bool,
) -> None:
    monkeypatch.setattr(criu.capabilities, "is_whole", lambda: modern)
    monkeypatch.setattr(criu, "_filtered", lambda pid: False)
    said = bed.method._obstacle(21, owner, STATUS | status)
    assert (why in said) if why else said == ""


@pytest.mark.parametrize(("whole", "why"), [(True, "seccomp filter"), (False, "")])
def test_a_filter_is_one_where_the_user_could_not_set_it(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, whole: bool, why: str
) -> None:
    monkeypatch.setattr(criu.capabilities, "is_whole", lambda: whole)
    monkeypatch.setattr(criu, "_filtered", lambda pid: True)
    said = bed.method._obstacle(21, 2000, STATUS)
    assert (why in said) if why else said == ""


def test_a_zombie_has_nothing_that_could_be_restored(bed: Bed) -> None:
    dead = {name: value for name, value in STATUS.items() if name != "RssAnon"}
    assert "dumpable" not in bed.method._obstacle(21, 0, dead)


def test_a_task_in_a_user_namespace_of_its_own_is_told(bed: Bed) -> None:
    words = ["unshare", "--user", "sh", "-c", "echo up; read end"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as task:
        assert task.stdout is not None
        if task.stdout.readline() != b"up\n":
            pytest.skip("no user namespaces here")
        assert "user namespace" in bed.method._obstacle(task.pid, 2000, STATUS)
        task.communicate(b"\n")
    assert "user namespace" not in bed.method._obstacle(task.pid, 2000, STATUS)


def test_what_is_gone_has_no_owner_and_no_filter() -> None:
    assert (criu._owner(1 << 30), criu._filtered(1 << 30)) == (None, False)
    assert criu._owner(os.getpid()) == os.stat("/proc/self/fd").st_uid


def test_a_process_is_one_of_the_jobs_by_its_namespace(bed: Bed) -> None:
    with open("/proc/self/ns/pid", "rb") as own:
        bed.method._processes = own.fileno()
        bed.method._keeper = os.getppid()
        found = bed.method._tasks()
    assert os.getpid() in found
    assert os.getppid() not in found


# what a host lacks


@pytest.mark.parametrize("missing", ["criu", "/usr/bin/nsenter", "/usr/bin/setpriv"])
def test_a_host_without_one_of_the_programs_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    site: Any = SimpleNamespace(criu="criu")
    monkeypatch.setattr(criu, "_YAMA", tmp_path / "none")
    monkeypatch.setattr(criu.os, "access", lambda path, how: path != missing and how == os.X_OK)
    with pytest.raises(Refused, match=f"^{missing} is not installed$"):
        criu.available(site)


@ROOT_PART
def test_a_namespace_that_cannot_be_opened_leaves_nothing_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with subprocess.Popen(["/bin/sleep", "600"]) as one:
        for descriptor in criu._namespaces(one.pid):
            assert not os.get_inheritable(descriptor)
            os.close(descriptor)
        one.kill()
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(OSError):
            criu._namespaces(one.pid)
    assert len(os.listdir("/proc/self/fd")) == before
