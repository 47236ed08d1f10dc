"""A payload under DMTCP is there when its own coordinator has said its port."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_elastic.machine.ckptroot import (
    attendant,
    dmtcp,
    dmtcp_coordinator,
    dmtcp_hang,
    dmtcp_images,
    dmtcp_task,
)
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.dmtcp import Dmtcp
from slurm_elastic.machine.ckptroot.dmtcp_coordinator import Coordinator
from slurm_elastic.machine.ckptroot.dmtcp_hang import SaveHang, SaveProbe
from slurm_elastic.machine.ckptroot.dmtcp_images import DmtcpImages
from slurm_elastic.machine.ckptroot.dmtcp_nodes import OtherNodes
from slurm_elastic.machine.ckptroot.job_nodes import JobNode, JobNodes
from slurm_elastic.machine.ckptroot.payload import Payload
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused

from .helpers import ROOT, eventually

PAYLOAD = Payload(argv=("script",), environment={}, directory="/", umask=0, uid=0, gid=0, groups=())


class Beside:
    """In place of a coordinator, which has begun once there is ``said``."""

    def __init__(self, said: Path) -> None:
        self.said = said

    def words(self, images: Path) -> list[str]:
        return ["--new-coordinator"]

    def environment(self, images: Path) -> dict[bytes, bytes]:
        return {b"DMTCP_CHECKPOINT_DIR": os.fsencode(images)}

    def forget(self) -> None:
        self.said.unlink(missing_ok=True)

    def begin(self, images: Path) -> None:
        """dmtcp_launch starts it."""

    def wait(self, program: str, ended: Callable[[], int | None]) -> None:
        eventually(lambda: self.said.exists() or ended() is not None)
        if not self.said.exists():
            raise RequestRefused(f"{program}: it started no coordinator")

    def wait_restored(
        self, program: str, images: int, ended: Callable[[], int | None], within: float
    ) -> None:
        """All of them run."""

    def command(self, within: float, *arguments: str) -> None:
        """It has gone with its payload."""

    def close(self) -> None:
        """Nothing is left."""


class Bed:
    """A method whose payload does what the test says."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said = place / "said"
        self.said.write_text("by an earlier one")
        monkeypatch.setattr(dmtcp, "Coordinator", lambda *_: Beside(self.said))
        monkeypatch.setattr(dmtcp_task, "become", self.become)
        monkeypatch.setattr(dmtcp_task.clock, "begun", self.begun)
        monkeypatch.setattr(dmtcp_task.clock, "offsets", lambda: {"monotonic": 5})
        site = HelperSite(cluster="t", directory=place, key=b"", reader=(0, 0), dmtcp="/opt")
        us = Caller(7, os.geteuid(), os.getegid(), "us", tuple(os.getgroups()), {})
        self.method = Dmtcp(site, us, replace(PAYLOAD, directory=str(place)))
        self.given: list[object] = []
        self.cannot: OSError | None = None
        self.does = "tell"
        self.image = place / "images" / "1"
        self.image.mkdir(parents=True)

    @contextmanager
    def begun(self, ours: object, saved: object) -> Iterator[dict[str, int]]:
        self.given.append((ours, saved))
        if self.cannot:
            raise self.cannot
        yield {"monotonic": 7}

    def become(self, payload: Payload, **how: Any) -> None:
        if self.does == "tell":
            handed = how.pop("handed")
            kept = handed is not None and os.path.samestat(os.fstat(handed), self.image.stat())
            new = self.said.with_name("said.new")  # whole at once, as whoever waits for it reads it
            new.write_text(f"{list(payload.argv)} {how} {kept}")
            new.rename(self.said)
        os._exit(3)

    def restore(self, *names: str) -> None:
        files = dict.fromkeys(names, (0, ""))
        self.method.restore(
            self.image, cast("Any", SimpleNamespace(files=files, clocks=CLOCKS, size=0))
        )


CLOCKS = {"monotonic": 9, "boottime": 9}


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    made = Bed(tmp_path, monkeypatch)
    yield made
    made.method.close()


def test_what_an_earlier_run_said_is_not_taken_for_this_ones(bed: Bed) -> None:
    bed.method.start()
    words = ["/opt/dmtcp_launch", "--new-coordinator", "script"]
    assert bed.said.read_text() == f"{words} {{'bound': True}} False"
    assert bed.method.pid > 0


def test_one_that_ends_before_it_has_a_coordinator_is_refused_and_gone(bed: Bed) -> None:
    bed.does = "end"
    with pytest.raises(RequestRefused, match="dmtcp_launch: it started no coordinator"):
        bed.method.start()
    assert bed.method.pid == 0


def test_a_restore_is_of_the_images_files_behind_an_open_directory(bed: Bed) -> None:
    (bed.image / "b.dmtcp").touch(mode=0o640)
    before = len(os.listdir("/proc/self/fd"))
    bed.restore("b.dmtcp", "a.dmtcp", "notes")
    assert len(os.listdir("/proc/self/fd")) == before + 1, "that of its process"
    saved = ["/proc/self/fd/3/a.dmtcp", "/proc/self/fd/3/b.dmtcp"]
    words = ["/opt/dmtcp_restart", "--new-coordinator", "--no-strict-checking", *saved]
    assert bed.said.read_text() == f"{words} {{'bound': True}} True"
    assert (bed.image / "b.dmtcp").stat().st_mode & 0o777 == 0o644
    with pytest.raises(RequestRefused, match="no file of DMTCP"):
        bed.restore("notes")


def test_it_has_clocks_of_its_own_where_its_node_can_give_it_any(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dmtcp_task.clock, "now", lambda ours, theirs: theirs)
    bed.restore("a.dmtcp")
    assert bed.given == [({"monotonic": 5}, CLOCKS)]
    assert bed.method.clocks() == {"monotonic": 7}
    bed.method.stop()
    bed.cannot = PermissionError(1, "Operation not permitted")
    bed.method.start()
    assert bed.method.clocks() is None
    bed.method.stop()
    with pytest.raises(
        RequestRefused, match=r"^its clocks cannot continue here: Operation not permitted$"
    ):
        bed.restore("a.dmtcp")
    assert bed.method.pid == 0, "nothing was brought back with other clocks"


# its commands, which say what the test says


USER = 65534
CALLER = Caller(job=7, uid=USER, gid=USER, user="nobody", groups=(USER,), environment={})


FORK = os.fork


class Others:
    """The job's other nodes. ``bytes``: those of a save there."""

    def __init__(self, closed: list[str]) -> None:
        self.closed = closed
        self.bytes: int | None = 0
        self.restores = 0

    def make(self) -> None:
        """Nothing there."""

    def begin(self, port: int) -> None:
        """They run."""

    def tend(self, place: Path, clocks: object) -> None:
        """mpirun starts nothing."""

    def appended(self) -> list[str]:
        return []

    def written(self) -> int | None:
        return self.bytes

    def saved(self) -> tuple[int, int]:
        return (1, 10)

    def lost(self) -> str:
        return ""

    def restore(self, *_: object) -> None:
        self.restores += 1

    def restored(self) -> None:
        """All run."""

    def end(self) -> None:
        self.closed.append("others")


class Commands:
    """A method with a port, in a user's directory; ``asked`` is what was run and for how long."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.user = home, home / "user"
        self.status: int | None = None
        self.saves = True
        self.asked: list[tuple[float, list[str]]] = []
        self.answer: tuple[int, str] | RequestRefused = (0, "")
        self.user.mkdir()
        os.chown(self.user, USER, USER)
        monkeypatch.setattr(dmtcp_coordinator.child, "run", self.run)
        site = HelperSite(
            cluster="t", directory=home, key=b"k" * 64, reader=(0, 0), dmtcp="/opt",
            slurmstepd="/none",
        )  # fmt: skip
        payload = replace(PAYLOAD, directory=str(self.user), uid=USER, gid=USER, groups=(USER,))
        self.closed: list[str] = []
        self.guard: Any = self.closes("guard", port=20_001)
        scratch = self.closes("scratch", of_user=lambda uid, gid: self.user)
        monkeypatch.setattr(dmtcp_coordinator, "Scratch", lambda *_: scratch)
        monkeypatch.setattr(dmtcp_coordinator, "guarded", lambda uid, peers: self.guard)
        self.method = Dmtcp(site, CALLER, payload)
        self.coordinator = Coordinator(site, CALLER)
        self.port = self.user / "port"
        self.say("7779\n")

    def closes(self, name: str, **more: object) -> SimpleNamespace:
        return SimpleNamespace(close=lambda: self.closed.append(name), **more)

    def start(self, monkeypatch: pytest.MonkeyPatch, **child: object) -> None:
        """A payload that is no process, and has its coordinator at once."""
        made = SimpleNamespace(end=lambda: self.closed.append("child"), **child)
        made.__dict__.setdefault("pid", 1 << 30)
        monkeypatch.setattr(dmtcp_task, "Child", lambda pid: made)
        monkeypatch.setattr(dmtcp_task.os, "fork", lambda: 9)
        monkeypatch.setattr(dmtcp_task.clock, "begun", lambda *_: nullcontext())
        monkeypatch.setattr(Coordinator, "forget", lambda _: None)
        self.method.start()

    def be_late(self, *, kills: bool = False, during: Callable[[], object] = bool) -> None:
        """A save that is not written in time."""
        self.method.expect_stop(kills)
        self.answer, self.saves = (0, "NUM_PEERS=1\n  RUNNING=no\n"), False
        during()
        with pytest.raises(RequestRefused, match="DMTCP has not written the images in time"):
            self.method.dump(self.home, 0.05, 1, False)

    def have_others(self, monkeypatch: pytest.MonkeyPatch) -> Others:
        """The job has other nodes."""
        self.start(monkeypatch, status=lambda: self.status)
        # The payload is no process, but the probe is.
        monkeypatch.setattr(dmtcp_hang, "os", SimpleNamespace(**vars(os) | {"fork": FORK}))
        others = Others(self.closed)
        monkeypatch.setattr(self.method, "_others", others)
        monkeypatch.setattr(dmtcp.steps, "check", lambda *_: None)
        self.closed.clear()
        return others

    def own_clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The time by which a hang is found; the test sets it. It is a late save's from now."""
        now = [1000.0]
        moment = SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
        monkeypatch.setattr(dmtcp_hang, "time", moment)
        self.method._hang = SaveHang(self.method._written)
        return now

    def say(self, text: str) -> None:
        self.port.write_text(text)
        os.chown(self.port, USER, USER)

    def run(
        self, command: Sequence[str], timeout: float, user: object, variables: object
    ) -> tuple[int, str]:
        assert user == (USER, USER, (USER,))
        assert variables == {"DMTCP_TMPDIR": str(self.user)}
        self.asked.append((timeout, list(command)))
        if isinstance(self.answer, RequestRefused):
            raise self.answer
        if command[-1].endswith("checkpoint") and self.saves:
            self.save("dmtcp_restart_script.sh")
        return self.answer

    def save(self, *names: str) -> Path:
        """As DMTCP does, ten bytes a file."""
        saved = self.user / ".slurm-elastic-7.ckpt"
        saved.mkdir(exist_ok=True)
        for name in names:
            (saved / name).write_bytes(b"0123456789")
            os.chown(saved / name, USER, USER)
        os.chown(saved, USER, USER)
        return saved


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    home = Path(tempfile.mkdtemp(prefix="se-dmtcp-", dir="/tmp"))
    home.chmod(0o755)
    yield Commands(home, monkeypatch)
    shutil.rmtree(home)


TO_IT = ["/opt/dmtcp_command", "--coord-host", "127.0.0.1", "--coord-port", "7779"]


@ROOT
class TestCommands:
    def test_a_save_goes_into_a_fresh_directory_of_the_users(self, commands: Commands) -> None:
        saved = commands.save("of-before.dmtcp")
        assert commands.method.dump(commands.home, 60.0, 1, False) == {}
        assert commands.asked == [(60.0, [*TO_IT, "--checkpoint"])]
        assert [path.name for path in saved.iterdir()] == ["dmtcp_restart_script.sh"]
        assert (saved.stat().st_uid, saved.stat().st_mode & 0o777) == (USER, 0o700)

    def test_a_short_deadline_leaves_a_command_a_second(self, commands: Commands) -> None:
        commands.method.dump(commands.home, 0.1, 1, False)
        assert commands.asked[0][0] == 1.0

    def test_a_save_that_fails_says_so_and_leaves_nothing(self, commands: Commands) -> None:
        commands.answer, commands.saves = (2, "NUM_PEERS=1\n no " + "x" * 300), False
        with pytest.raises(
            RequestRefused, match=r"^dmtcp_command: exit 2: NUM_PEERS=1\n no x{184}$"
        ):
            commands.method.dump(commands.home, 60.0, 1, False)
        with pytest.raises(RequestRefused, match="DMTCP still writes the images of the last save"):
            commands.method.dump(commands.home, 60.0, 1, False)
        commands.answer = (0, "NUM_PEERS=1\n  RUNNING=yes\n")
        assert commands.method.wait_status() is None
        assert list(commands.user.iterdir()) == [commands.port]

    def test_a_save_that_stops_the_job_ends_its_processes_with_their_images(
        self, commands: Commands
    ) -> None:
        commands.method.expect_stop(True)
        commands.answer = (2, "Computation was checkpointed and killed.\n")
        assert commands.method.dump(commands.home, 60.0, 1, False) == {}
        assert commands.asked == [(60.0, [*TO_IT, "--kcheckpoint"])]
        commands.answer = (2, "Coordinator not found. Please check port and host.\n")
        with pytest.raises(RequestRefused, match="Coordinator not found"):
            commands.method.dump(commands.home, 60.0, 1, False)

    @pytest.mark.parametrize("kills", [False, True])
    def test_images_that_come_after_their_time_are_removed_and_the_job_runs_on(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch, kills: bool
    ) -> None:
        commands.start(monkeypatch, status=lambda: commands.status)
        restarts: list[list[str]] = []
        monkeypatch.setattr(Coordinator, "wait_restored", lambda *args: restarts.append(args[2:3]))
        commands.method.expect_stop(kills)
        commands.answer, commands.saves = (0, "NUM_PEERS=1\n  RUNNING=no\n"), False
        with pytest.raises(RequestRefused, match="DMTCP has not written the images in time"):
            commands.method.dump(commands.home, 0.05, 1, False)
        assert commands.method.wait_status() is None
        saved = commands.save("a.dmtcp", "dmtcp_restart_script.sh")
        commands.status = 0 if kills else None
        commands.closed.clear()
        assert commands.method.wait_status() == commands.status, "brought back: it is the new one's"
        assert commands.closed == (["child"] if kills else [])
        assert len(restarts) == kills
        assert not saved.exists()

    def test_a_request_during_a_late_save_does_not_change_whether_that_ends_the_tasks(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commands.start(monkeypatch, status=lambda: None)
        restarts: list[object] = []
        monkeypatch.setattr(Coordinator, "wait_restored", lambda *args: restarts.append(args))
        commands.be_late(kills=True)
        commands.method.expect_stop(False)
        with pytest.raises(RequestRefused, match="DMTCP still writes the images"):
            commands.method.dump(commands.home, 60.0, 1, False)
        commands.save("a.dmtcp", "dmtcp_restart_script.sh")
        commands.method.wait_status()
        assert len(restarts) == 1, "the tasks have ended with their images"

    def test_a_late_save_on_one_node_is_never_ended(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commands.start(monkeypatch, status=lambda: None)
        commands.be_late()
        saved, now = commands.save("a.dmtcp.temp"), commands.own_clock(monkeypatch)
        commands.closed.clear()
        for _ in range(100):
            now[0] += 10.0
            assert commands.method.wait_status() is None
        assert commands.closed == []
        assert saved.exists()

    def test_of_several_nodes_one_that_writes_nothing_for_long_is_ended(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        others = commands.have_others(monkeypatch)
        commands.be_late()
        saved, now = commands.save("a.dmtcp.temp"), commands.own_clock(monkeypatch)
        lines: list[str] = []
        monkeypatch.setattr(dmtcp.log, "write", lambda _, line: lines.append(line))

        def look(times: int) -> None:
            for _ in range(times):
                now[0] += 10.0
                commands.method.wait_status()

        for number in range(20):
            (saved / "a.dmtcp.temp").write_bytes(b"x" * number)
            look(1)
        for number in range(20):
            others.bytes = number
            look(1)
        others.bytes = None
        look(50)
        others.bytes = 20
        look(10)
        now[0] += 300.0
        look(10)
        assert commands.closed == [], "it writes, or its file system stalls"
        assert commands.method.pid
        look(5)
        assert commands.closed == ["others", "child"] or commands.closed == ["child", "others"]
        assert commands.method.pid == 0
        assert not saved.exists()
        assert lines == ["job 7: DMTCP's save has written nothing for 120 s: ending the tasks"]

    def test_a_refused_order_begins_the_time_of_a_hang_anew(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commands.have_others(monkeypatch)
        now = commands.own_clock(monkeypatch)
        for _ in range(2):
            commands.answer, commands.saves = (2, "no"), False
            with pytest.raises(RequestRefused, match="exit 2: no"):
                commands.method.dump(commands.home, 60.0, 1, False)
            for _ in range(11):
                now[0] += 10.0
                assert commands.method.wait_status() is None
            assert commands.method.pid
            assert commands.closed == []
            commands.answer = (0, "NUM_PEERS=1\n  RUNNING=yes\n")
            commands.method.wait_status()

    def test_first_processes_that_ended_with_their_images_wait_for_other_nodes(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        others = commands.have_others(monkeypatch)
        monkeypatch.setattr(Coordinator, "wait_restored", lambda *args: None)
        commands.be_late(kills=True, during=lambda: setattr(commands, "status", 0))
        saved = commands.save("a.dmtcp")
        assert commands.method.wait_status() is None, "not the job's own end"
        assert saved.exists()
        commands.save("dmtcp_restart_script.sh")
        commands.status = None
        commands.method.wait_status()
        assert others.restores == 1

    def test_a_probe_counts_all_files_and_leaves_none(self, commands: Commands) -> None:
        saved = commands.save("a.dmtcp", "b.dmtcp.temp")
        beside = saved / "ckpt_a_files"
        beside.mkdir()
        (beside / "x").write_bytes(b"123")
        os.chown(beside, USER, USER)
        probe = SaveProbe(DmtcpImages(saved, CALLER))
        before = len(os.listdir("/proc/self/fd"))
        empty = beside.stat().st_size
        assert [probe.look(), probe.look()] == [23 + empty, 23 + empty]
        assert len(os.listdir("/proc/self/fd")) == before
        assert {path.name for path in saved.iterdir()} == {
            "a.dmtcp", "b.dmtcp.temp", "ckpt_a_files",
        }  # fmt: skip
        shutil.rmtree(saved)
        assert probe.look() == 0, "an error is an answer"

    def test_a_file_system_that_does_not_answer_is_asked_by_one_child(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stalls = commands.home / "stalls"
        stalls.touch()

        def wait(_: DmtcpImages) -> None:
            while stalls.exists():
                time.sleep(0.01)

        monkeypatch.setattr(DmtcpImages, "write_probe", wait)
        monkeypatch.setattr(dmtcp_hang, "_PROBE_TIMEOUT_S", 0.1)
        forks: list[int] = []
        fork = os.fork
        monkeypatch.setattr(dmtcp_hang.os, "fork", lambda: forks.append(1) or fork())
        probe = SaveProbe(DmtcpImages(commands.save("a.dmtcp.temp"), CALLER))
        assert [probe.look(), probe.look()] == [None, None]
        stalls.unlink()
        eventually(lambda: probe.look() == 10)
        assert len(forks) == 1

    def test_outputs_are_measured_while_an_image_is_written(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commands.saves = False
        looks = iter([5, 9])
        monkeypatch.setattr(dmtcp.outputs, "sizes", lambda *_: {"/out": next(looks)})

        def advance(_: float) -> None:
            saved = commands.save()
            if (saved / "a.dmtcp.temp").exists():
                (saved / "a.dmtcp.temp").rename(saved / "a.dmtcp")
                commands.save("dmtcp_restart_script.sh")
            else:
                commands.save("a.dmtcp.temp")

        monkeypatch.setattr(dmtcp.time, "sleep", advance)
        assert commands.method.dump(commands.home, 60.0, 1, False) == {"/out": 5}

    def test_where_no_directory_can_be_made_is_refused(self, commands: Commands) -> None:
        commands.user.chmod(0o555)
        with pytest.raises(RequestRefused, match=r"slurm-elastic-7.ckpt: Permission denied"):
            commands.method.dump(commands.home, 60.0, 1, False)

    def test_all_that_was_saved_becomes_roots_and_is_gone_there(self, commands: Commands) -> None:
        commands.save("a.dmtcp", "b.dmtcp", "notes")
        image = commands.home / "image"
        image.mkdir()
        before = len(os.listdir("/proc/self/fd"))
        commands.method.gather(image, 20)
        assert len(os.listdir("/proc/self/fd")) == before
        found = {path.name: path.stat() for path in image.iterdir()}
        assert sorted(found) == ["a.dmtcp", "b.dmtcp"]
        assert {(one.st_uid, one.st_mode & 0o777) for one in found.values()} == {(0, 0o640)}
        assert (image / "b.dmtcp").read_bytes() == b"0123456789"

    def test_images_of_several_nodes_are_one_set(self, commands: Commands) -> None:
        saved = commands.save("a.dmtcp")
        other = saved / "1"
        for path in (other, other / "ckpt_b_files"):
            path.mkdir()
        (other / "b.dmtcp").write_bytes(b"other")
        (other / "ckpt_b_files" / "x").write_bytes(b"beside")
        (saved / "dmtcp_restart_script_ab-1.sh").write_text(
            "x.dmtcp\n :: one :bg: /d/a.dmtcp : ssh\n :: two :bg: /d/1/b.dmtcp /d/1/c.dmtcp : ssh\n"
        )
        for path in (*saved.rglob("*"),):
            os.chown(path, USER, USER)
        images = DmtcpImages(saved, CALLER), DmtcpImages(other, CALLER, 1)
        assert images[0].count_of_set() == 3
        image = commands.home / "image"
        image.mkdir()
        assert [one.gather(image, 100) for one in images] == [90, 100 - len(b"otherbeside")]
        names = {path.name for path in image.iterdir()}
        assert names == {"a.dmtcp", "n1-b.dmtcp", "n1-beside-0", "n1-beside.json"}
        assert [name for name in sorted(names) if dmtcp_images.is_of_first(name)] == ["a.dmtcp"]
        images[1].put_back_files(image)
        assert (other / "ckpt_b_files" / "x").read_bytes() == b"beside"

    def test_files_beside_an_image_go_along_and_are_laid_out_again(
        self, commands: Commands
    ) -> None:
        saved = commands.save("a.dmtcp")
        for place in ("ckpt_a_files", "ckpt_b_files"):
            (saved / place).mkdir()
            (saved / place / "tmp_99047").write_text(place)
            (saved / place / "tmp_99047").chmod(0o750)
            for path in (saved / place, saved / place / "tmp_99047"):
                os.chown(path, USER, USER)
        image = commands.home / "image"
        image.mkdir()
        commands.method.gather(image, 1000)
        assert {path.stat().st_uid for path in image.iterdir()} == {0}
        commands.method.put_back_files(image)
        for place in ("ckpt_a_files", "ckpt_b_files"):
            found = saved / place / "tmp_99047"
            assert (found.read_text(), found.stat().st_uid) == (place, USER)
            assert found.stat().st_mode & 0o777 == 0o750
        assert sorted(path.name for path in saved.iterdir()) == ["ckpt_a_files", "ckpt_b_files"]

    @pytest.mark.parametrize("kind", ["pipe", "link", "directory", "much"])
    def test_a_file_beside_an_image_is_plain_and_bounded(
        self, commands: Commands, kind: str
    ) -> None:
        place = commands.save("a.dmtcp") / "ckpt_a_files"
        place.mkdir()
        match kind:
            case "pipe":
                os.mkfifo(place / "x")
            case "link":
                (place / "x").symlink_to("/etc/shadow")
            case "directory":
                (place / "x").mkdir()
            case _:
                (place / "x").write_bytes(b"x" * 11)
        for path in place.iterdir():
            os.chown(path, USER, USER, follow_symlinks=False)
        image = commands.home / "image"
        image.mkdir()
        with pytest.raises(RequestRefused):
            commands.method.gather(image, 20)

    @pytest.mark.parametrize(
        ("names", "most", "why"),
        [
            (("a.dmtcp", "b.dmtcp"), 19, "10 bytes long, more than 9"),
            (("notes",), 20, "no image was written"),
            (("a.dmtcp", "b.dmtcp.temp"), 20, "an image is not whole"),
        ],
    )
    def test_what_is_no_image_or_too_much_is_refused(
        self, commands: Commands, names: tuple[str, ...], most: int, why: str
    ) -> None:
        commands.save(*names)
        image = commands.home / "image"
        image.mkdir()
        with pytest.raises(RequestRefused, match=why):
            commands.method.gather(image, most)

    def test_going_on_leaves_nothing_of_the_save(self, commands: Commands) -> None:
        saved = commands.save("a.dmtcp")
        commands.method.resume()
        assert not saved.exists()

    @pytest.mark.parametrize("answer", [(0, ""), (1, ""), RequestRefused("no answer in 30 s")])
    @pytest.mark.parametrize(("how", "within"), [("stop", 30.0), ("close", 10.0)])
    def test_an_end_is_asked_for_and_then_made(
        self,
        commands: Commands,
        monkeypatch: pytest.MonkeyPatch,
        answer: Any,
        how: str,
        within: float,
    ) -> None:
        commands.answer = answer
        commands.start(monkeypatch)
        saved = commands.save("a.dmtcp")
        assert commands.method.pid == 1 << 30
        getattr(commands.method, how)()
        assert commands.asked == [(within, [*TO_IT, "--quit"])]
        assert commands.method.pid == 0
        assert commands.closed == (["child"] if how == "stop" else ["child", "guard", "scratch"])
        assert not saved.exists()

    def test_without_a_payload_there_is_nothing_to_end_or_signal(self, commands: Commands) -> None:
        commands.method.signal(15)
        commands.method.close()
        assert (commands.asked, commands.method.wait_status()) == ([], None)

    def test_a_payload_is_signalled(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        got: list[int] = []
        commands.start(monkeypatch, signal=got.append, status=lambda: 7)
        commands.method.signal(15)
        assert (got, commands.method.wait_status()) == ([15], 7)

    @pytest.mark.parametrize(
        ("answer", "version"),
        [((0, "dmtcp_launch (DMTCP) 4.2.0\n"), "4.2.0"), ((0, "?"), "unknown"), (RequestRefused("x"), "unknown")],
    )  # fmt: skip
    def test_its_version_is_told(self, commands: Commands, answer: Any, version: str) -> None:
        commands.answer = answer
        wanted = {"dmtcp": version, "kernel": os.uname().release}
        assert commands.method.versions() == wanted
        assert commands.asked == [(10.0, ["/opt/dmtcp_launch", "--version"])]

    @pytest.mark.parametrize("said", ["7779\n", "", "77x\n", "1" * 32])
    def test_a_port_is_a_number(self, commands: Commands, said: str) -> None:
        commands.say(said)
        if said.strip().isdecimal():
            commands.coordinator.command(1.0)
            assert commands.asked[0][1][-1] == said.strip()
            commands.port.unlink()
        with pytest.raises(RequestRefused, match="the coordinator's port is no number"):
            commands.coordinator.command(1.0)

    def test_more_than_a_port_is_not_read(self, commands: Commands) -> None:
        commands.say("1" * 33)
        with pytest.raises(RequestRefused, match="33 bytes long, more than 32"):
            commands.coordinator.command(1.0)

    def test_a_link_in_its_place_is_refused(self, commands: Commands) -> None:
        commands.port.unlink()
        commands.port.symlink_to("/etc/hostname")
        with pytest.raises(RequestRefused, match=r"^the coordinator's port: Too many"):
            commands.coordinator.command(1.0)

    def test_its_coordinator_has_one_guarded_port_or_none(self, commands: Commands) -> None:
        guard, commands.guard = commands.guard, None
        with pytest.raises(RequestRefused, match="nft cannot set rules here"):
            commands.coordinator.words(Path("/images"))
        commands.guard = guard
        assert commands.coordinator.words(Path("/images")) == [
            "--new-coordinator", "--coord-host", "127.0.0.1", "--coord-port", "20001",
            "--port-file", str(commands.port), "--interval", "0", "--ckptdir", "/images",
            "--tmpdir", str(commands.user), "--quiet", "--quiet",
        ]  # fmt: skip
        assert commands.coordinator.environment(Path("/images")) == {
            b"DMTCP_CHECKPOINT_DIR": b"/images", b"DMTCP_TMPDIR": os.fsencode(commands.user),
        }  # fmt: skip
        commands.guard = None
        assert commands.coordinator.words(Path("/images"))[4] == "20001", "the same one"

    @pytest.mark.parametrize(
        ("answers", "status", "why"),
        [
            (["1 no", "2 no", "2 yes"], None, ""),
            (["3 no", "3 no", "2 no"], None, "1 of 3 processes did not come back"),
            (["1 no"], 99 << 8, r"it ended before the job ran \(exit code 99\)"),
            (["1 no"], 3 << 8, r"it ended before the job ran \(exit code 3\)"),
            (["1 no"], 9, r"it ended before the job ran \(signal 9\)"),
            (["2 no"] * 100, None, "2 of 3 processes in 60 s"),
        ],
    )
    def test_a_restart_is_over_once_all_its_processes_run(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch, answers: list[str],
        status: int | None, why: str,
    ) -> None:  # fmt: skip
        told = iter(answers)
        clock = iter(range(0, 1000, 5))
        monkeypatch.setattr(dmtcp_coordinator.time, "monotonic", lambda: next(clock))
        monkeypatch.setattr(dmtcp_coordinator.time, "sleep", lambda _: None)

        def status_text(*_: object, **__: object) -> tuple[int, str]:
            peers, runs = next(told).split()
            return 0, f"Status...\n  NUM_PEERS={peers}\n  RUNNING={runs}\n"

        monkeypatch.setattr(dmtcp_coordinator.child, "run", status_text)
        refused = pytest.raises(RequestRefused, match=why) if why else nullcontext()
        with refused:
            commands.coordinator.wait_restored("dmtcp_restart", 3, lambda: status, 60.0)

    @pytest.mark.parametrize("code", [0, 3])
    def test_a_job_may_end_as_soon_as_it_has_come_back(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        told = iter([(0, "NUM_PEERS=2\n RUNNING=no"), (2, "Coordinator not found."), (2, "")])
        monkeypatch.setattr(dmtcp_coordinator.child, "run", lambda *_, **__: next(told))
        ends = iter([None, None, code << 8])
        commands.coordinator.wait_restored("dmtcp_restart", 2, lambda: next(ends), 60.0)

    def test_a_coordinator_is_waited_for_a_minute(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = [1000.0]
        monkeypatch.setattr(dmtcp_coordinator.time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(
            dmtcp_coordinator.time, "sleep", lambda _: clock.append(clock.pop() + 15.0)
        )
        commands.coordinator.forget()
        with pytest.raises(RequestRefused, match="dmtcp_launch: it started no coordinator"):
            commands.coordinator.wait("dmtcp_launch", lambda: None)
        assert clock == [1075.0], "the first look after it"

    def test_it_knows_of_no_more_than_its_outputs(self, commands: Commands) -> None:
        method = commands.method
        assert (
            method.estimate_size(),
            method.locked(),
            method.unappended_files(commands.home),
        ) == (0, {}, frozenset())

    def test_a_job_with_a_step_is_not_saved(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dmtcp.steps, "running", lambda site, job: iter(["7.0"]))
        said = r"^it runs a step \(srun\), which dmtcp does not save: 7\.0$"
        with pytest.raises(RequestRefused, match=said):
            commands.method.estimate_size()


def test_a_host_without_one_of_its_commands_or_nft_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    guards = iter([None, SimpleNamespace(close=lambda: closed.append("guard"))])
    monkeypatch.setattr(dmtcp, "guarded", lambda uid: next(guards))
    site = HelperSite(cluster="t", directory=tmp_path, key=b"", reader=(0, 0), dmtcp=str(tmp_path))
    for name in ("dmtcp_launch", "dmtcp_command", "dmtcp_restart"):
        with pytest.raises(RequestRefused, match=f"{name} is not installed"):
            dmtcp.available(site)
        (tmp_path / name).touch(mode=0o755)
    with pytest.raises(RequestRefused, match="nft cannot set rules here"):
        dmtcp.available(site)
    dmtcp.available(site)
    assert closed == ["guard"]


@ROOT
@pytest.mark.parametrize(
    ("answers", "written"),
    [
        ([{"written": 3}, {"written": 4}], 7), ([{"written": 3}, {"written": None}], None),
        ([{"written": 3}, {"written": "4"}], 3), ([{}], 0), (RequestRefused("n2 is lost"), 0),
    ],
)  # fmt: skip
def test_the_bytes_of_other_nodes_are_known_if_each_file_system_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Any, written: int | None
) -> None:
    site = HelperSite(cluster="t", directory=tmp_path, key=b"", reader=(0, 0))
    nodes = JobNodes(JobNode("n1", "127.0.0.1"), (JobNode("n2", "127.0.0.1"),))
    others = OtherNodes(site, CALLER, nodes, tmp_path)

    def ask(order: dict[str, object]) -> object:
        assert order == {"images": str(tmp_path), "do": "measure"}
        if isinstance(answers, RequestRefused):
            raise answers
        return answers

    monkeypatch.setattr(others._attendants, "ask", ask)
    assert others.written() == written


@ROOT
def test_an_attendant_measures_the_save_of_its_own_node(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = commands.save() / "1"
    saved.mkdir()
    (saved / "b.dmtcp.temp").write_bytes(b"12345")
    os.chown(saved, USER, USER)
    facts = {"address": "127.0.0.1", "port": 20_001, "nodes": ["n2"]}
    monkeypatch.setattr(attendant.files, "read", lambda *_, **__: json.dumps(facts).encode())
    monkeypatch.setattr(attendant, "guarded_peer", lambda *_: commands.guard)
    monkeypatch.setattr(attendant, "Scratch", lambda *_: commands.closes("scratch"))
    site = HelperSite(cluster="t", directory=commands.home, key=b"", reader=(0, 0))
    caller = replace(CALLER, environment={b"SLURMD_NODENAME": b"n2"})
    here = attendant.Attendant(site, caller, -1, -1)
    order = {"do": "measure", "images": str(saved.parent)}
    assert here._carry_out(order) == {"written": 5}
    (saved / "b.dmtcp.temp").write_bytes(b"1234567")
    assert here._carry_out(order) == {"written": 7}
    here.close()


@ROOT
def test_a_command_that_had_ended_before_the_image_ends_again_after_a_restore(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node has no process in the image, but mpirun's child may still wait for its end."""
    facts = {"address": "127.0.0.1", "port": 20_001, "nodes": ["n2"]}
    monkeypatch.setattr(attendant.files, "read", lambda *_, **__: json.dumps(facts).encode())
    monkeypatch.setattr(attendant, "guarded_peer", lambda *_: commands.guard)
    scratch = SimpleNamespace(of_user=lambda *_: commands.home, close=lambda: None)
    monkeypatch.setattr(attendant, "Scratch", lambda *_: scratch)
    site = HelperSite(cluster="t", directory=commands.home, key=b"", reader=(0, 0))
    caller = replace(CALLER, environment={b"SLURMD_NODENAME": b"n2"})
    reader, writer = os.pipe()
    here = attendant.Attendant(site, caller, -1, writer)
    order = {"do": "restore", "images": str(commands.home), "image": 0, "names": {"1": ["start-4"]},
             "clocks": None, "uncut": []}  # fmt: skip
    here._carry_out(order)
    report = json.loads(os.read(reader, 1000))
    assert report == {"node": 1, "event": "ended", "status": 0, "names": ["start-4"]}
    here.close()
    os.close(reader)
    os.close(writer)
