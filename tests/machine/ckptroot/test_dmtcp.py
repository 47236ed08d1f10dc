"""A payload under DMTCP is there when its own coordinator has said its port."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_elastic.machine.ckptroot import dmtcp, dmtcp_coordinator
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.dmtcp import Dmtcp
from slurm_elastic.machine.ckptroot.dmtcp_coordinator import Coordinator
from slurm_elastic.machine.ckptroot.payload import Payload
from slurm_elastic.machine.ckptroot.site import Refused, Site

from .helpers import ROOT, eventually

PAYLOAD = Payload(argv=("script",), environment={}, directory="/", umask=0, uid=0, gid=0, groups=())


class Beside:
    """In place of a coordinator, which has begun once there is ``said``."""

    def __init__(self, said: Path) -> None:
        self.said = said

    def words(self) -> list[str]:
        return ["--new-coordinator"]

    def forget(self) -> None:
        self.said.unlink(missing_ok=True)

    def wait(self, program: str, ended: Callable[[], int | None]) -> None:
        eventually(lambda: self.said.exists() or ended() is not None)
        if not self.said.exists():
            raise Refused(f"{program}: it started no coordinator")

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
        monkeypatch.setattr(dmtcp, "become", self.become)
        monkeypatch.setattr(dmtcp.clock, "begun", self.begun)
        monkeypatch.setattr(dmtcp.clock, "offsets", lambda: {"monotonic": 5})
        site = Site(cluster="t", directory=place, key=b"", reader=(0, 0), dmtcp="/opt")
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
        self.method.restore(self.image, cast("Any", SimpleNamespace(files=files, clocks=CLOCKS)))


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
    with pytest.raises(Refused, match="dmtcp_launch: it started no coordinator"):
        bed.method.start()
    assert bed.method.pid == 0


def test_a_restore_is_of_the_images_files_behind_an_open_directory(bed: Bed) -> None:
    (bed.image / "b.dmtcp").touch(mode=0o640)
    before = len(os.listdir("/proc/self/fd"))
    bed.restore("b.dmtcp", "a.dmtcp", "notes")
    assert len(os.listdir("/proc/self/fd")) == before + 1, "that of its process"
    saved = ["/proc/self/fd/3/a.dmtcp", "/proc/self/fd/3/b.dmtcp"]
    words = ["/opt/dmtcp_restart", "--new-coordinator", *saved]
    assert bed.said.read_text() == f"{words} {{'bound': True}} True"
    assert (bed.image / "b.dmtcp").stat().st_mode & 0o777 == 0o644
    with pytest.raises(Refused, match="no file of DMTCP"):
        bed.restore("notes")


def test_it_has_clocks_of_its_own_where_its_node_can_give_it_any(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dmtcp.clock, "now", lambda ours, theirs: theirs)
    bed.restore("a.dmtcp")
    assert bed.given == [({"monotonic": 5}, CLOCKS)]
    assert bed.method.clocks() == {"monotonic": 7}
    bed.method.stop()
    bed.cannot = PermissionError(1, "Operation not permitted")
    bed.method.start()
    assert bed.method.clocks() is None
    bed.method.stop()
    with pytest.raises(Refused, match=r"^its clocks cannot go on here: Operation not permitted$"):
        bed.restore("a.dmtcp")
    assert bed.method.pid == 0, "nothing was brought back with other clocks"


# its commands, which say what the test says


USER = 65534
CALLER = Caller(job=7, uid=USER, gid=USER, user="nobody", groups=(USER,), environment={})


class Commands:
    """A method with a port, in a user's directory; ``asked`` is what was run and for how long."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.user = home, home / "user"
        self.asked: list[tuple[float, list[str]]] = []
        self.answer: tuple[int, str] | Refused = (0, "")
        self.user.mkdir()
        os.chown(self.user, USER, USER)
        monkeypatch.setattr(dmtcp_coordinator.child, "run", self.run)
        site = Site(
            cluster="t", directory=home, key=b"k" * 64, reader=(0, 0), dmtcp="/opt",
            slurmstepd="/none",
        )  # fmt: skip
        payload = replace(PAYLOAD, directory=str(self.user), uid=USER, gid=USER, groups=(USER,))
        self.closed: list[str] = []
        self.guard: Any = self.closes("guard", port=20_001)
        scratch = self.closes("scratch", of_user=lambda uid, gid: self.user)
        monkeypatch.setattr(dmtcp_coordinator, "Scratch", lambda *_: scratch)
        monkeypatch.setattr(dmtcp_coordinator, "guarded", lambda uid: self.guard)
        self.method = Dmtcp(site, CALLER, payload)
        self.coordinator = Coordinator(site, CALLER)
        self.port = self.user / "port"
        self.say("7779\n")

    def closes(self, name: str, **more: object) -> SimpleNamespace:
        return SimpleNamespace(close=lambda: self.closed.append(name), **more)

    def start(self, monkeypatch: pytest.MonkeyPatch, **child: object) -> None:
        """A payload that is no process, and has its coordinator at once."""
        made = SimpleNamespace(end=lambda: self.closed.append("child"), **child)
        monkeypatch.setattr(dmtcp, "Child", lambda pid: made)
        monkeypatch.setattr(dmtcp.os, "fork", lambda: 9)
        monkeypatch.setattr(dmtcp.clock, "begun", lambda *_: nullcontext())
        monkeypatch.setattr(Coordinator, "forget", lambda _: None)
        self.method.start()

    def say(self, text: str) -> None:
        self.port.write_text(text)
        os.chown(self.port, USER, USER)

    def run(self, command: Sequence[str], timeout: float, user: object) -> tuple[int, str]:
        assert user == (USER, USER, (USER,))
        self.asked.append((timeout, list(command)))
        if isinstance(self.answer, Refused):
            raise self.answer
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
        assert commands.asked == [(60.0, [*TO_IT, "--ckptdir", str(saved), "--bcheckpoint"])]
        assert list(saved.iterdir()) == []
        assert (saved.stat().st_uid, saved.stat().st_mode & 0o777) == (USER, 0o700)

    def test_a_short_deadline_leaves_a_command_a_second(self, commands: Commands) -> None:
        commands.method.dump(commands.home, 0.1, 1, False)
        assert commands.asked[0][0] == 1.0

    def test_a_save_that_fails_says_so_and_leaves_nothing(self, commands: Commands) -> None:
        commands.answer = (2, "  no " + "x" * 300)
        with pytest.raises(Refused, match=r"^dmtcp_command: exit 2: no x{197}$"):
            commands.method.dump(commands.home, 60.0, 1, False)
        assert list(commands.user.iterdir()) == [commands.port]

    def test_where_no_directory_can_be_made_is_refused(self, commands: Commands) -> None:
        commands.user.chmod(0o555)
        with pytest.raises(Refused, match=r"slurm-elastic-7.ckpt: Permission denied"):
            commands.method.dump(commands.home, 60.0, 1, False)

    def test_all_that_was_saved_becomes_roots_and_is_gone_there(self, commands: Commands) -> None:
        saved = commands.save("a.dmtcp", "b.dmtcp", "notes")
        image = commands.home / "image"
        image.mkdir()
        before = len(os.listdir("/proc/self/fd"))
        commands.method.gather(image, 20)
        assert len(os.listdir("/proc/self/fd")) == before
        found = {path.name: path.stat() for path in image.iterdir()}
        assert sorted(found) == ["a.dmtcp", "b.dmtcp"]
        assert {(one.st_uid, one.st_mode & 0o777) for one in found.values()} == {(0, 0o640)}
        assert (image / "b.dmtcp").read_bytes() == b"0123456789"
        assert not saved.exists()

    @pytest.mark.parametrize(
        ("names", "most", "why"),
        [
            (("a.dmtcp", "b.dmtcp"), 19, "10 bytes long, more than 9"),
            (("notes",), 20, "no image was written"),
        ],
    )
    def test_what_is_no_image_or_too_much_is_refused(
        self, commands: Commands, names: tuple[str, ...], most: int, why: str
    ) -> None:
        saved = commands.save(*names)
        image = commands.home / "image"
        image.mkdir()
        with pytest.raises(Refused, match=why):
            commands.method.gather(image, most)
        assert not saved.exists()

    def test_going_on_leaves_nothing_of_the_save(self, commands: Commands) -> None:
        saved = commands.save("a.dmtcp")
        commands.method.go_on()
        assert not saved.exists()

    @pytest.mark.parametrize("answer", [(0, ""), (1, ""), Refused("no answer in 30 s")])
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
        commands.start(monkeypatch, pid=9)
        saved = commands.save("a.dmtcp")
        assert commands.method.pid == 9
        getattr(commands.method, how)()
        assert commands.asked == [(within, [*TO_IT, "--quit"])]
        assert commands.method.pid == 0
        assert commands.closed == (["child"] if how == "stop" else ["child", "guard", "scratch"])
        assert saved.exists() is (how == "stop"), "root copies it yet, or has"

    def test_without_a_payload_there_is_nothing_to_end_or_signal(self, commands: Commands) -> None:
        commands.method.signal(15)
        commands.method.close()
        assert (commands.asked, commands.method.ended()) == ([], None)

    def test_a_payload_is_signalled(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        got: list[int] = []
        commands.start(monkeypatch, signal=got.append, status=lambda: 7)
        commands.method.signal(15)
        assert (got, commands.method.ended()) == ([15], 7)

    @pytest.mark.parametrize(
        ("answer", "version"),
        [((0, "dmtcp_launch (DMTCP) 3.0.0\n"), "3.0.0"), ((0, "?"), "unknown"), (Refused("x"), "unknown")],
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
        with pytest.raises(Refused, match="the coordinator's port is no number"):
            commands.coordinator.command(1.0)

    def test_more_than_a_port_is_not_read(self, commands: Commands) -> None:
        commands.say("1" * 33)
        with pytest.raises(Refused, match="33 bytes long, more than 32"):
            commands.coordinator.command(1.0)

    def test_a_link_in_its_place_is_refused(self, commands: Commands) -> None:
        commands.port.unlink()
        commands.port.symlink_to("/etc/hostname")
        with pytest.raises(Refused, match=r"^the coordinator's port: Too many"):
            commands.coordinator.command(1.0)

    def test_its_coordinator_has_one_guarded_port_or_none(self, commands: Commands) -> None:
        guard, commands.guard = commands.guard, None
        with pytest.raises(Refused, match="nft cannot set rules here"):
            commands.coordinator.words()
        commands.guard = guard
        assert commands.coordinator.words() == [
            "--new-coordinator", "--coord-port", "20001", "--port-file", str(commands.port),
            "--interval", "0", "--ckptdir", str(commands.user),
        ]  # fmt: skip
        commands.guard = None
        assert commands.coordinator.words()[2] == "20001", "the same one"

    def test_a_coordinator_is_waited_for_a_minute(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = [1000.0]
        monkeypatch.setattr(dmtcp_coordinator.time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(
            dmtcp_coordinator.time, "sleep", lambda _: clock.append(clock.pop() + 15.0)
        )
        commands.coordinator.forget()
        with pytest.raises(Refused, match="dmtcp_launch: it started no coordinator"):
            commands.coordinator.wait("dmtcp_launch", lambda: None)
        assert clock == [1075.0], "the first look after it"

    def test_it_knows_of_no_more_than_its_outputs(self, commands: Commands) -> None:
        method = commands.method
        assert (method.need(), method.locked(), method.alone(commands.home)) == (0, {}, frozenset())

    def test_a_job_with_a_step_is_not_saved(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dmtcp.steps, "running", lambda site, job: iter(["7.0"]))
        said = r"^it runs a step \(srun\), which dmtcp does not save: 7\.0$"
        with pytest.raises(Refused, match=said):
            commands.method.need()


def test_a_host_without_one_of_its_commands_or_nft_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    guards = iter([None, SimpleNamespace(close=lambda: closed.append("guard"))])
    monkeypatch.setattr(dmtcp, "guarded", lambda uid: next(guards))
    site = Site(cluster="t", directory=tmp_path, key=b"", reader=(0, 0), dmtcp=str(tmp_path))
    for name in ("dmtcp_launch", "dmtcp_command", "dmtcp_restart"):
        with pytest.raises(Refused, match=f"{name} is not installed"):
            dmtcp.available(site)
        (tmp_path / name).touch(mode=0o755)
    with pytest.raises(Refused, match="nft cannot set rules here"):
        dmtcp.available(site)
    dmtcp.available(site)
    assert closed == ["guard"]
