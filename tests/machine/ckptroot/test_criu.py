"""Method criu, with stand-ins for CRIU and for the job's process 1."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import criu, dump
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.images import OpenFile
from slurm_elastic.machine.ckptroot.locks import Lock
from slurm_elastic.machine.ckptroot.payload import Payload
from slurm_elastic.machine.ckptroot.pinned_task import TaskOwner
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused

from .helpers import ROOT

CALLER = Caller(job=7, uid=2000, gid=2000, user="alice", groups=(2000,), environment={})
ENV = {b"PATH": b"/bin", b"TMPDIR": b"/old"}
PAYLOAD = Payload(("script",), ENV, "/", 0o22, 2000, 2000, (2000,))
MIB = 1 << 20
CLOCKS = {"monotonic": 7_000_000_000, "boottime": 9_000_000_000}


class Inside:
    """In place of a job's namespaces: ``done`` is what process 1 was told, ``told`` what it answers
    or why it refuses.
    """

    init, mounts, numbers, owner = 12, 3, 4, TaskOwner(2000, (0, 4))

    def __init__(self, done: list[object]) -> None:
        self.done = done
        self.told: dict[str, Any] | RequestRefused = {"pid": 1001}
        self.running = [21, 22]
        self.waits: list[float] = []

    def send_order(self, what: str, **more: object) -> None:
        self.done.append({"do": what, **more})

    def ask(self, what: str, within: float, **more: object) -> dict[str, Any]:
        self.send_order(what, **more)
        self.waits.append(within)
        if isinstance(self.told, RequestRefused):
            raise self.told
        return self.told

    def tasks(self) -> list[int]:
        return self.running

    def made_anew(self, kind: str) -> contextlib.nullcontext[int]:
        return contextlib.nullcontext({"ipc": 5, "time": 6}[kind])

    def kill(self) -> None:
        self.send_order("kill")

    def wait_status(self) -> int:
        return 256

    def close(self) -> None:
        self.done.append("inside")


class Bed:
    """Without any process: ``done`` is what was asked of whom."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[object] = []
        gone = lambda: self.done.append("places")  # noqa: E731
        self.places = SimpleNamespace(take=lambda payload: [], close=gone)
        self.inside = Inside(self.done)
        monkeypatch.setattr(criu, "JobNamespaces", self.begin)
        monkeypatch.setattr(criu, "TempFiles", lambda *given: self)
        monkeypatch.setattr(criu, "Scratch", lambda *given: self)
        monkeypatch.setattr(criu, "PrivateTmp", lambda *given: self.places)
        monkeypatch.setattr(criu.sysv, "held", lambda namespace: self.held[namespace])
        monkeypatch.setattr(criu.sysv, "check_undone", lambda *how: self.undone.append(how))
        self.undone: list[Any] = []
        for name, said in (
            ("check", ()), ("has_sysv", False), ("stopped", frozenset()), ("streams", ["a stream"]),
            ("links", ("/tmp/link_remap.1",)), ("locks", {}),
        ):  # fmt: skip
            monkeypatch.setattr(criu.images, name, lambda *_, said=said: said)
        monkeypatch.setattr(criu.images, "has_streams", lambda image: self.streams)
        monkeypatch.setattr(criu.image_access, "show", lambda image: None)
        monkeypatch.setattr(
            criu.quiet_continue, "continue_quietly", lambda tasks, stopped, owner: frozenset()
        )
        monkeypatch.setattr(
            criu.robust_mutexes, "keep", lambda tasks, owner: self.done.append(("kept", *tasks))
        )
        monkeypatch.setattr(criu.sockets, "stays_here", lambda tasks: "")
        monkeypatch.setattr(criu.sockets, "are_its_own", lambda tasks: self.streams)
        monkeypatch.setattr(criu.sockets, "reused", lambda tasks, owner: frozenset({"7"}))
        monkeypatch.setattr(
            criu.sockets, "wake", lambda *how: self.done.append(("wake", *how[:-1]))
        )
        monkeypatch.setattr(criu.sockets, "check_streams", self.done.append)
        self.streams = False
        self.held: dict[int, criu.sysv.HeldObjects | None] = {5: None}
        self.renamed = False
        self.not_found = ""
        self.work = place
        self.site = HelperSite(
            cluster="t", directory=place, key=b"", reader=(0, 0), criu=str(place / "criu"),
            slurmstepd="/none",
        )  # fmt: skip
        self.method: Any = criu.Criu(self.site, CALLER, PAYLOAD)

    def begin(self, payload: Payload) -> Inside:
        self.payload = payload
        return self.inside

    # the temporary directories and the scratch directory

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

    def own_files(self, tasks: Sequence[int]) -> dict[str, Any]:
        return {name: SimpleNamespace(st_blocks=8) for name in ("/tmp/a", "/tmp/b")}

    def has_renamed(self, gone: dict[str, Any], tasks: Sequence[int]) -> bool:
        return self.renamed

    def lend(self, links: Sequence[str]) -> None:
        self.done.append(("lend", *links))

    def take_back(self) -> None:
        self.done.append("take back")

    def obstacle(self, tasks: Sequence[int], found: object) -> str:
        return self.not_found

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


# its processes


def test_a_job_has_a_tmpdir_of_its_own_and_no_process_yet(bed: Bed) -> None:
    assert bed.payload.environment == {b"PATH": b"/bin", b"TMPDIR": b"/new"}
    assert (bed.method.pid, bed.method.wait_status()) == (0, 256)


def test_a_start_takes_back_what_an_unused_image_left(bed: Bed) -> None:
    bed.method.start()
    assert (bed.done, bed.method.pid) == (["withdraw", {"do": "start"}], 1001)
    assert bed.inside.waits == [30.0]


def test_its_clocks_are_told_by_those_of_the_node(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.method.start()
    assert bed.method.clocks() is None, "it has none of its own"
    monkeypatch.setattr(criu.clock, "offsets", lambda: {"monotonic": 5, "boottime": 5})
    bed.inside.told = {"pid": 1001, "clocks": {"monotonic": 10**15, "boottime": 10**16}}
    before = time.monotonic_ns()
    bed.method.start()
    found = bed.method.clocks()
    assert before + 10**15 - 5 <= found["monotonic"] <= time.monotonic_ns() + 10**15 - 5
    assert found["boottime"] > 10**16


def test_a_job_whose_clocks_cannot_go_on_is_not_saved(bed: Bed, saved: Saved) -> None:
    bed.inside.told = {"pid": 1001, "clockless": "Operation not permitted"}
    bed.method.start()
    with pytest.raises(
        RequestRefused, match=r"^its node gives it no clocks of its own: Operation not"
    ):
        bed.method.estimate_size()
    assert saved.ran == []


def test_a_stopped_job_ends_and_leaves_and_a_signal_goes_to_its_first_process(bed: Bed) -> None:
    bed.method.stop()
    assert bed.done == [("kept", 21, 22), {"do": "kill"}, "take back", "leave"]
    bed.done.clear()
    bed.method.signal(10)
    bed.method.resume()
    assert bed.done == [{"do": "signal", "number": 10}, {"do": "continue", "but": []}, "take back"]


def test_in_the_end_nothing_of_it_stays(bed: Bed) -> None:
    bed.method.close()
    assert bed.done == ["inside", "discard", "places", "close"]


def test_what_process_1_refuses_leaves_no_places(monkeypatch: pytest.MonkeyPatch, bed: Bed) -> None:
    def refuses(payload: Payload) -> None:
        raise RequestRefused("unshare")

    monkeypatch.setattr(criu, "JobNamespaces", refuses)
    with pytest.raises(RequestRefused, match="unshare"):
        criu.Criu(bed.site, CALLER, PAYLOAD)
    assert bed.done == ["places"]


# restoring


def test_a_restore_is_of_what_was_checked_and_shown(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown: list[Path] = []
    monkeypatch.setattr(criu.images, "check", lambda image, user: (2000, 2005))
    monkeypatch.setattr(criu.image_access, "show", shown.append)
    monkeypatch.setattr(criu.images, "has_sysv", lambda image: True)
    monkeypatch.setattr(criu.capabilities, "restorer", lambda user, *how: [user.uid, how])
    bed.method.restore(tmp_path / "1", manifest(None))
    assert (shown, bed.method.pid, bed.inside.waits) == ([tmp_path / "1"], 1001, [3600.0])
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
    bed.inside.told = RequestRefused("criu restore: exit 1")
    with pytest.raises(
        RequestRefused, match=r"^criu restore: exit 1: \(files-reg.c:9\): Can't open$"
    ):
        bed.method.restore(tmp_path / "1", manifest(None))


def test_connections_of_its_own_are_in_no_ones_way(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.inside.running = [4711]
    monkeypatch.setattr(criu.sockets, "connections", lambda tasks: ["127.0.0.1:80"])
    assert bed.method.outside_connections() == ["127.0.0.1:80"]
    bed.streams = True
    assert bed.method.outside_connections() == []


@ROOT
def test_what_comes_back_is_bound_again_with_no_more_than_its_users_rights(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[object] = []
    bed.inside.running = [4711]
    bind = lambda *what: done.append((os.geteuid(), *what))  # noqa: E731
    monkeypatch.setattr(criu.cpu_binding, "bind", bind)
    bed.method.restore(tmp_path / "1", manifest(None))
    bed.method.restore(tmp_path / "2", manifest(None, **{"1001": [1]}))
    assert done == [(2000, [4711], {"1001": [1]}, os.sched_getaffinity(0))]


@pytest.mark.parametrize("closed", [[], ["10.1.2.3:80"]])
def test_connections_are_closed_in_a_restore_where_they_were_in_the_save(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed: list[str]
) -> None:
    bed.method.restore(tmp_path / "1", manifest(closed))
    bed.method.restore(tmp_path / "1", manifest(None))
    commands = [order["command"] for order in bed.done if isinstance(order, dict)]
    assert [command.count("--tcp-close") for command in commands] == [1, 0]


@pytest.mark.parametrize("taken", [True, False])
def test_what_comes_back_stands_still_until_it_has_its_locks(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, taken: bool
) -> None:
    wanted = {1001: [Lock(3, 1, 0, 0)]}
    monkeypatch.setattr(criu.images, "locks", lambda image: wanted)
    monkeypatch.setattr(criu.images, "stopped", lambda image: frozenset({1002}))
    bed.inside.running = [4711]
    monkeypatch.setattr(
        criu.robust_mutexes, "keep", lambda tasks, owner: bed.done.append(("kept", *tasks))
    )
    asked: list[object] = []
    take = lambda *how: asked.append(how) or ("" if taken else "/shared/file")  # noqa: E731
    monkeypatch.setattr(criu.locks, "can_take", lambda: True)
    monkeypatch.setattr(criu.locks, "take", take)
    with (
        contextlib.nullcontext()
        if taken
        else pytest.raises(RequestRefused, match=r"^/shared/file: its")
    ):
        bed.method.restore(tmp_path / "1", manifest(None))
    order, *after = bed.done
    assert isinstance(order, dict)
    assert "--leave-stopped" in order["command"]
    assert asked == [([4711], wanted, Inside.owner)]
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
    assert bed.method.unappended_files(tmp_path) == {"/b"}
    bed.method.put_back_files(tmp_path)
    assert bed.done == [("unpack", tmp_path)]


# saving


class Saved:
    """The runs of CRIU, which end as ``ends``; its checks say nothing."""

    def __init__(self, bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[tuple[Any, ...]] = []
        self.ends = (0, False)
        done = bed.done
        monkeypatch.setattr(dump, "run", self.run)
        monkeypatch.setattr(dump, "know_kernel", lambda program: None)
        monkeypatch.setattr(dump.capabilities, "dumper", lambda *_: ["setpriv"])
        monkeypatch.setattr(dump.capabilities, "own_dumper", lambda *_: ["setpriv", "--reuid"])
        monkeypatch.setattr(criu.inventory, "gone_names", lambda tasks: {"/tmp/gone": (1, 2)})
        for name in ("stray", "terminal"):
            monkeypatch.setattr(criu.inventory, name, lambda *_: "")
        monkeypatch.setattr(criu.inventory, "deleted", lambda tasks: 7 if tasks == [21, 22] else 0)
        monkeypatch.setattr(criu.task_rights, "check", lambda tasks, user: 243)
        monkeypatch.setattr(criu.images, "check", lambda image, user: done.append("check"))
        monkeypatch.setattr(criu.poll_again, "go_back", lambda tasks, owner: None)
        monkeypatch.setattr(criu.poll_again, "wait_again", lambda image: done.append("wait again"))
        monkeypatch.setattr(criu.images, "writing", lambda image: (OpenFile("/a", 5),))

    def run(self, *words: Any) -> tuple[int, bool]:
        self.ran.append(words)
        return self.ends


@pytest.fixture
def saved(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> Saved:
    return Saved(bed, monkeypatch)


def test_it_takes_its_memory_and_its_files_on_this_node(bed: Bed, saved: Saved) -> None:
    assert bed.method.estimate_size() == 2 * 8 * 512 + 243 + 7


def test_a_dump_is_of_its_own_process_numbers_and_leaves_them_stopped(
    bed: Bed, saved: Saved, tmp_path: Path
) -> None:
    bed.method.pid = 1001
    assert bed.method.dump(tmp_path / "1.new", 0.1, 5 * MIB) == {"/a": 5}
    ((command, handed, image, most, said),) = saved.ran
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
    bed: Bed, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.held = {5: criu.sysv.HeldObjects(4096, semaphores=True)}
    asked: list[list[str]] = []
    monkeypatch.setattr(dump, "run_silently", lambda words, *_: asked.append(words) or 0)
    assert bed.method.estimate_size() == 2 * 8 * 512 + 243 + 7 + 4096
    bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    ((command, handed, *_),) = saved.ran
    assert handed == (3, 4, 6)
    assert not [word for word in command if word.startswith("--ipc")]
    assert asked[0][-1] == ": >>/proc/sys/kernel/shm_next_id"
    assert bed.undone == [([21, 22], 12)] * 2, "before and after"
    bed.held = {5: criu.sysv.HeldObjects(4096, semaphores=False)}
    bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    assert len(bed.undone) == 2, "there is nothing to be undone"
    saved.ran.pop()
    monkeypatch.setattr(dump, "run_silently", lambda *_: 2)
    with pytest.raises(RequestRefused, match="which this kernel lets only root bring back"):
        bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    assert len(saved.ran) == 1, "nothing was stopped for it"


def test_what_began_to_use_it_meanwhile_is_not_saved(
    bed: Bed, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = iter([None, criu.sysv.HeldObjects(0, semaphores=False)])
    monkeypatch.setattr(criu.sysv, "held", lambda namespace: next(held))
    with pytest.raises(RequestRefused, match="has begun to use System V IPC just now"):
        bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    assert bed.done[-2:] == [{"do": "continue", "but": []}, "take back"]


def test_links_are_made_as_the_jobs_user(
    bed: Bed, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.renamed = True
    monkeypatch.setattr(dump.image_access, "handed", lambda image, uid: contextlib.nullcontext(9))
    bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    ((command, handed, _, _, said),) = saved.ran
    assert handed == (3, 4, 6, 5, 9)
    assert isinstance(said, int)
    assert {"--reuid", "--link-remap", "--unprivileged", "/proc/self/fd/9"} <= set(command)
    assert (tmp_path / "dump.log").exists()


def test_connections_are_closed_in_a_save_that_is_asked_to(
    bed: Bed, saved: Saved, tmp_path: Path
) -> None:
    bed.method.dump(tmp_path / "1.new", 60.0, MIB, True)
    ((command, *_),) = saved.ran
    assert {"--tcp-close", "--skip-in-flight"} <= set(command)


def test_connections_of_its_own_are_kept_and_wake_up_where_it_goes_on(
    bed: Bed, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.streams = True
    bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    ((command, *_),) = saved.ran
    assert "--tcp-established" in command
    assert bed.done[-1] == ["a stream"], "they were at rest"
    bed.method.resume()
    assert bed.done[-3:] == [
        ("wake", [21, 22], frozenset({"7"})), {"do": "continue", "but": []}, "take back",
    ]  # fmt: skip
    bed.method.dump(tmp_path / "2.new", 60.0, MIB, True)
    assert "--tcp-established" not in saved.ran[1][0], "they are to be closed"
    bed.done.clear()
    bed.method.resume()
    assert bed.done == [{"do": "continue", "but": []}, "take back"]
    for closed, kept in ((None, True), (["127.0.0.1:80"], False)):
        bed.method.restore(tmp_path / "1", manifest(closed))
        order = bed.done[-2]
        assert isinstance(order, dict)
        assert ("--tcp-established" in order["command"]) is kept


def test_a_directory_that_fails_after_a_save_lets_them_go_on(
    bed: Bed, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(dump, "run", fails)
    with pytest.raises(OSError, match="Stale"):
        bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    assert bed.done == [{"do": "continue", "but": []}, "take back"]


def test_what_was_stopped_before_stays_so_and_what_would_notice_goes_on_apart(
    bed: Bed, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def quietly(*given: object) -> frozenset[int]:
        asked.append(given)
        return frozenset({1007})

    monkeypatch.setattr(criu.images, "stopped", lambda image: frozenset({1002}))
    monkeypatch.setattr(criu.quiet_continue, "continue_quietly", quietly)
    bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    bed.method.resume()
    assert asked == [([21, 22], {1002}, Inside.owner)]
    assert bed.done[-2:] == [{"do": "continue", "but": [1002, 1007]}, "take back"]
    monkeypatch.setattr(criu.quiet_continue, "continue_quietly", lambda *_: os.open("/none", 0))
    bed.method.resume()
    assert bed.done[-2:] == [{"do": "continue", "but": [1002]}, "take back"]


def test_connections_that_cannot_be_woken_let_them_go_on(
    bed: Bed, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RequestRefused("its connections cannot be opened")

    bed.streams = True
    bed.method.dump(tmp_path / "1.new", 60.0, MIB)
    monkeypatch.setattr(criu.sockets, "wake", fails)
    with pytest.raises(RequestRefused, match="cannot be opened"):
        bed.method.resume()
    assert bed.done[-2:] == [{"do": "continue", "but": []}, "take back"]


@pytest.mark.parametrize("within", [0.0, -1.0])
def test_after_the_deadline_nothing_is_stopped(
    bed: Bed, saved: Saved, tmp_path: Path, within: float
) -> None:
    with pytest.raises(RequestRefused, match="the deadline has passed"):
        bed.method.dump(tmp_path, within, MIB)
    assert saved.ran == []


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ((5, True), "^no room: the image would have more than 5 MiB$"),
        ((5, False), r"^criu dump: exit 5: no error in its log$"),
    ],
)
def test_a_dump_that_fails_let_them_go_on_itself(
    bed: Bed, saved: Saved, tmp_path: Path, how: tuple[int, bool], why: str
) -> None:
    saved.ends = how
    with pytest.raises(RequestRefused, match=why):
        bed.method.dump(tmp_path, 60.0, 5 * MIB)
    assert bed.done == []


def test_one_that_was_whole_before_it_could_be_ended_counts(
    bed: Bed, saved: Saved, tmp_path: Path
) -> None:
    saved.ends = (0, True)
    assert bed.method.dump(tmp_path, 60.0, MIB) == {"/a": 5}


@pytest.mark.parametrize("check", ["inventory.stray", "task_rights.check"])
def test_what_became_so_while_it_was_saved_lets_them_go_on(
    bed: Bed, saved: Saved, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, check: str
) -> None:
    def refuses(*_: object) -> int:
        raise RequestRefused("process x has left")

    module, name = check.split(".")
    monkeypatch.setattr(getattr(criu, module), name, refuses)
    with pytest.raises(RequestRefused, match="process x has left"):
        bed.method.dump(tmp_path, 60.0, MIB)
    assert bed.done == [
        ("lend", "/tmp/link_remap.1"),
        "check",
        "wait again",
        {"do": "continue", "but": []},
        "take back",
    ]


def test_a_step_is_looked_for_before_a_save_and_once_all_stand_still(
    bed: Bed, saved: Saved, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looks: list[object] = []

    def check(*how: object) -> None:
        looks.append(how)
        raise RequestRefused("it runs a step")

    monkeypatch.setattr(criu.steps, "check", check)
    bed.inside.running = [41]
    with pytest.raises(RequestRefused, match="it runs a step"):
        bed.method.estimate_size()
    assert bed.done == [], "nothing was stopped"
    with pytest.raises(RequestRefused, match="it runs a step"):
        bed.method.dump(tmp_path, 60.0, MIB, True)
    assert looks == [(bed.site, 7, [41], "criu")] * 2
    assert {"do": "continue", "but": []} in bed.done


@pytest.mark.parametrize("name", ["stray", "terminal"])
def test_each_reason_not_to_save_it_counts(
    bed: Bed, saved: Saved, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bed.not_found = "why: a file"
    with pytest.raises(RequestRefused, match=r"^why: a file$"):
        bed.method.estimate_size()
    monkeypatch.setattr(criu.inventory, name, lambda *_: f"why: {name}")
    with pytest.raises(RequestRefused, match=f"^why: {name}$"):
        bed.method.estimate_size()


def test_its_locks_are_told_but_those_of_what_travels(
    bed: Bed, saved: Saved, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    locked = {"/tmp/a": (2, 3), "/shared/b": (5, 6)}
    monkeypatch.setattr(criu.inventory, "locked_files", lambda tasks, owner: locked)
    assert bed.method.locked() == {"/shared/b": (5, 6)}
    bed.method.gather(tmp_path, MIB)
    assert bed.done == [("pack", tmp_path, MIB, [21, 22])]


@pytest.mark.parametrize(
    ("said", "version"), [("Version: 4.1.1\nGitID: 7", "4.1.1"), ("", "unknown")]
)
def test_its_version_is_told(bed: Bed, tmp_path: Path, said: str, version: str) -> None:
    (tmp_path / "criu").write_text(f"#!/bin/sh\nprintf '{said}'\nexit 1\n")
    (tmp_path / "criu").chmod(0o755)
    assert bed.method.versions() == {"criu": version, "kernel": os.uname().release}


# what a host lacks


@pytest.mark.parametrize("missing", ["criu", "/usr/bin/nsenter", "/usr/bin/setpriv"])
def test_a_host_without_one_of_the_programs_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    site: Any = SimpleNamespace(criu="criu")
    monkeypatch.setattr(criu, "YAMA", tmp_path / "none")
    monkeypatch.setattr(criu.os, "access", lambda path, how: path != missing and how == os.X_OK)
    with pytest.raises(RequestRefused, match=f"^{missing} is not installed$"):
        criu.available(site)


@pytest.mark.parametrize("scope", ["1", "2", "3"])
def test_a_kernel_that_lets_users_trace_only_descendants_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: str
) -> None:
    yama = tmp_path / "ptrace_scope"
    site: Any = SimpleNamespace(criu="/bin/sh")
    monkeypatch.setattr(criu, "YAMA", yama)
    criu.available(site)  # no such kernel
    yama.write_text("0\n")
    criu.available(site)
    yama.write_text(f"{scope}\n")
    with pytest.raises(RequestRefused, match=f"ptrace_scope is {scope}.* set it to 0"):
        criu.available(site)
