"""mpirun's commands for other nodes, and srun, which must not start ranks."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_elastic.machine.ckptroot import (
    dmtcp_coordinator,
    dmtcp_images,
    dmtcp_nodes,
    dmtcp_probe,
    kernel,
    mpi,
)
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.dmtcp_coordinator import Coordinator
from slurm_elastic.machine.ckptroot.dmtcp_nodes import OtherNodes
from slurm_elastic.machine.ckptroot.job_nodes import JobNode, JobNodes
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused

from .helpers import ROOT, aside, eventually

pytestmark = ROOT
NODES = JobNodes(JobNode("n1", "127.0.0.1"), (JobNode("n2", "10.0.0.2"),))
CALLER = Caller(
    job=7, uid=os.geteuid(), gid=os.getegid(), user="us", groups=tuple(os.getgroups()),
    environment={b"PATH": b"/opt/mpi/bin:/usr/bin:/bin", b"UCX_TLS": b"tcp"},
)  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> dict[bytes, bytes]:
    """The job's variables; its programs are there."""
    site = HelperSite(cluster="t", directory=tmp_path, key=b"", reader=(0, 0),
                      scontrol=str(tmp_path / "scontrol"))  # fmt: skip
    (tmp_path / "t" / "7").mkdir(parents=True)
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'MpiDefault              = pmix'\n")
    (tmp_path / "scontrol").chmod(0o755)
    return mpi.environment(site, CALLER, NODES, tmp_path)


@pytest.fixture
def agent(made: dict[bytes, bytes], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """ssh's place, as Hydra calls it."""
    program = os.fsdecode(made[b"HYDRA_LAUNCHER_EXEC"])
    environment = {
        **made, b"SLURMD_NODENAME": b"n1", b"MINE": b"a=b\nc", b"DMTCP_QUIET": b"2",
        b"LD_PRELOAD": b"/usr/lib/dmtcp/libdmtcp_none.so",
    }  # fmt: skip
    process = subprocess.Popen(
        [program, "-x", "n2", '"echo"', "--id", "1"], env=environment, cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    yield process
    process.kill()
    process.wait()


def took(taken: list[mpi.Start], place: Path) -> bool:
    """Take the commands that are there. Whether there were any, now or before."""
    taken += mpi.starts(place, CALLER)
    return bool(taken)


def test_the_job_keeps_its_own_values_but_for_what_starts_ranks(made: dict[bytes, bytes]) -> None:
    assert made[b"UCX_TLS"] == b"tcp"
    assert made[b"OMPI_MCA_btl"] == b"tcp,self"
    assert made[b"OMPI_MCA_plm_rsh_agent"] == made[b"HYDRA_LAUNCHER_EXEC"]
    assert made[b"PATH"].endswith(b"/t/7/bin:/opt/mpi/bin:/usr/bin:/bin")


def test_a_command_for_another_node_is_taken_once_and_its_end_ends_ssh(
    agent: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    taken: list[mpi.Start] = []
    eventually(lambda: took(taken, tmp_path))
    (start,) = taken
    assert (start.node, start.directory) == ("n2", str(tmp_path))
    assert start.command == '"echo" --id 1'
    before = os.umask(0o22)
    os.umask(before)
    assert start.umask == before
    assert start.environment[b"MINE"] == b"a=b\nc"
    assert b"DMTCP_QUIET" not in start.environment
    assert start.environment[b"LD_PRELOAD"] == b""
    assert mpi.starts(tmp_path, CALLER) == []
    assert agent.poll() is None, "mpirun finds its child after a restore"
    mpi.end(tmp_path, CALLER, start.name, 3)
    assert agent.wait(60) == 3
    assert mpi.has_read_end(tmp_path, CALLER, start.name)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"scontrol", "t"}, "a job that calls mpirun often does not fill the directory"


def test_a_command_waits_until_there_is_room_for_it(
    made: dict[bytes, bytes], tmp_path: Path
) -> None:
    """mpirun starts those of all nodes at once, and root takes them away one after the other."""
    program = os.fsdecode(made[b"HYDRA_LAUNCHER_EXEC"])

    def in_a_small_place() -> list[object]:
        kernel.unshare_mounts()
        place = tmp_path / "place"
        place.mkdir()
        options = b"size=64k,mode=755"
        assert kernel.LIBC.mount(b"tmpfs", bytes(place), b"tmpfs", 0, options) == 0
        (place / "of others").write_bytes(b"x" * (64 << 10))
        environment = {**made, b"SLURMD_NODENAME": b"n1", b"SLURM_ELASTIC_STARTS": bytes(place)}
        agent = subprocess.Popen([program, "n2", "true"], env=environment, cwd="/")
        eventually(lambda: list(place.glob("start-*.env")))
        is_waiting = agent.poll() is None
        (place / "of others").unlink()
        taken: list[mpi.Start] = []
        eventually(lambda: took(taken, place))
        mpi.end(place, CALLER, taken[0].name, 3)
        return [is_waiting, agent.wait(60), taken[0].command]

    assert aside(in_a_small_place) == [True, 3, "true"]


def test_a_command_that_nobody_had_taken_before_an_image_comes_again_after_the_restore(
    agent: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    eventually(lambda: list(tmp_path.glob("start-*[0-9]")))
    for path in tmp_path.glob("start-*"):  # a restore begins with an empty directory
        path.unlink()
    taken: list[mpi.Start] = []
    eventually(lambda: took(taken, tmp_path))
    assert taken[0].environment[b"MINE"] == b"a=b\nc"
    eventually(lambda: not list(tmp_path.glob("start-*")))
    time.sleep(0.7)  # it looks twice a second
    assert mpi.starts(tmp_path, CALLER) == [], "a command that was taken does not come again"
    mpi.end(tmp_path, CALLER, taken[0].name, 0)
    assert agent.wait(60) == 0


def test_a_command_that_cannot_be_read_ends_and_keeps_no_other_from_its_node(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"start-{number}").write_text("n2\n/\n22\nhostname")
        (tmp_path / f"start-{number}.env").write_bytes(b"A=b")
    (tmp_path / "start-2.env").write_bytes(b"A=" + b"b" * (1 << 20))
    assert [start.name for start in mpi.starts(tmp_path, CALLER)] == ["start-1", "start-3"]
    assert (tmp_path / "start-2.ended").read_text() == "1\n"
    assert "mpirun cannot start a command: " in capfd.readouterr().err


def test_the_commands_for_hundreds_of_nodes_are_taken_at_once(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"start-{number}.env").write_bytes(b"A=b")
        (tmp_path / f"start-{number}").write_text(f"n{number}\n/\n22\ntrue")
    assert len(mpi.starts(tmp_path, CALLER)) == 600


def test_mpirun_may_give_a_node_its_domain() -> None:
    names = ["n1", "n12", "n2.a"]
    asked = ("n12", "n12.site.org", "n2.a", "n1", "n1.site", "n2", "n123")
    assert [mpi.number_of(name, names) for name in asked] == [1, 1, 2, 0, 0, 0, 0]


class AgentBed:
    """The first node's part, with attendants that answer as the test says."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.place = place
        self.asked: list[dict[str, object]] = []
        self.reported: list[dict[str, object]] = []
        site = HelperSite(cluster="t", directory=place, key=b"", reader=(0, 0))
        others = tuple(JobNode(name, "10.0.0.2") for name in names[1:])
        self.nodes = OtherNodes(site, CALLER, JobNodes(JobNode(names[0], "10.0.0.1"), others),
                                place / "saved")  # fmt: skip
        attendants = self.nodes._attendants
        monkeypatch.setattr(attendants, "ask", self._ask)
        monkeypatch.setattr(attendants, "reports", self.reports)

    def _ask(self, order: dict[str, object]) -> list[dict[str, object]]:
        self.asked.append(order)
        return []

    def reports(self) -> list[dict[str, object]]:
        reported, self.reported = self.reported, []
        return reported

    def start(self, number: int, node: str) -> None:
        (self.place / f"start-{number}.env").write_bytes(b"A=b")
        (self.place / f"start-{number}").write_text(f"{node}\n/\n22\nhostname")
        self.nodes.tend(self.place, None)

    def end(self, number: int, status: int) -> None:
        names = [f"start-{number}"]
        self.reported.append({"node": 1, "event": "ended", "status": status, "names": names})
        self.nodes.tend(self.place, None)

    def images(self) -> Path:
        image = self.place / "t" / "7" / "images" / "1"
        image.mkdir(parents=True, exist_ok=True)
        return image


def test_a_command_goes_to_the_same_place_among_the_nodes_of_a_later_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's environment names the nodes of its first run, for ever."""
    bed = AgentBed(tmp_path, monkeypatch, "n1", "n2", "n3")
    bed.start(1, "n3")
    assert bed.asked[-1]["commands"] == {2: "hostname"}
    bed.nodes.gather(bed.images(), 1 << 20)
    later = AgentBed(tmp_path, monkeypatch, "n7", "n8", "n9")
    later.nodes.restore(1, None, ())
    later.start(2, "n3")
    assert later.asked[-1]["commands"] == {2: "hostname"}
    later.start(3, "n2")
    assert later.asked[-1]["commands"] == {1: "hostname"}
    later.start(4, "n8")
    assert (tmp_path / "start-4.ended").read_text() == "1\n", "no node that the job knows"


def test_a_command_counts_as_active_until_mpiruns_child_has_read_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image may have that child, which would wait for ever after a restore."""
    bed = AgentBed(tmp_path, monkeypatch, "n1", "n2")
    bed.start(1, "n2")
    bed.end(1, 3 << 8)
    assert (tmp_path / "start-1.ended").read_text() == "3\n"
    bed.nodes.gather(bed.images(), 1 << 20)
    bed.nodes.restore(1, None, ())
    assert bed.asked[-1]["names"] == {1: ["start-1"]}
    (tmp_path / "start-1.ended").unlink()
    bed.end(1, 0)
    assert (tmp_path / "start-1.ended").read_text() == "0\n"
    (tmp_path / "start-1.ended").unlink()
    bed.nodes.tend(tmp_path, None)
    bed.nodes.restore(0, None, ())
    assert bed.asked[-1]["names"] == {1: []}
    monkeypatch.setattr(dmtcp_nodes, "_READ_TIMEOUT_S", -1.0)
    bed.start(2, "n2")
    bed.end(2, 9)
    assert not list(tmp_path.glob("start-2.*")), "mpirun has ended its child"


def test_the_time_in_which_a_job_is_suspended_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mpirun's child, which could not read the end meanwhile, would wait for it for ever."""
    bed = AgentBed(tmp_path, monkeypatch, "n1", "n2")
    bed.start(1, "n2")
    bed.end(1, 0)
    clock = [time.monotonic()]
    monkeypatch.setattr(dmtcp_nodes, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    clock[0] += 3600
    for _ in range(59):
        bed.nodes.tend(tmp_path, None)
        clock[0] += 1
    assert (tmp_path / "start-1.ended").exists()
    for _ in range(3):
        bed.nodes.tend(tmp_path, None)
        clock[0] += 1
    assert not list(tmp_path.glob("start-1.*"))


def test_a_command_for_its_own_node_is_carried_out(made: dict[bytes, bytes]) -> None:
    program = os.fsdecode(made[b"HYDRA_LAUNCHER_EXEC"])
    environment = {**made, b"SLURMD_NODENAME": b"n1"}
    done = subprocess.run(
        [program, "n1", "echo", '"a', 'b"'], env=environment, capture_output=True, check=True
    )
    assert done.stdout == b"a b\n"


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["--mpi=pmi2", "ring"], "pmi2"), (["-n", "2", "--mpi", "pmix_v4", "ring"], "pmix_v4"),
        (["ring"], "pmix"), (["hostname"], "pmix"), (["-n", "2", "ring"], "pmix"),
        (["--mpi=pmix", "-n", "1", "ring"], "pmix"), (["-n1", "-n", "4", "ring"], "pmix"),
        (["ring", "-n", "1"], "pmix"), (["-N", "2", "ring", "--ntasks=1"], "pmix"),
        (["-l", "ring", "-n1"], "pmix"), (["-n", "1", "a", ":", "-n", "1", "b"], "pmix"),
        (["-n1", ":", "-n", "1", "b"], "pmix"), (["-n", "12", "ring"], "pmix"), ([], "pmix"),
        (["-N1", "ring"], "pmix"), (["-n", "2", "prog", "-n", "1"], "pmix"),
        (["--mpi=none", "ring"], ""), (["--mpi", "none", "-n", "2", "ring"], ""),
        (["-n", "1", "hostname"], ""), (["-n1", "hostname"], ""), (["--ntasks=1", "hostname"], ""),
        (["-N1", "-n1", "a b"], ""), (["-N", "1", "--ntasks", "1", "hostname"], ""),
        (["-l", "-J", "x", "--mem=0", "-w", "n1", "-n", "1", "prog", "-n", "4"], ""),
    ],
)  # fmt: skip
def test_srun_starts_no_rank(
    made: dict[bytes, bytes], tmp_path: Path, words: list[str], refused: str
) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\nprintf '%s\\n' \"$*\"\n")
    (tmp_path / "srun").chmod(0o755)
    own = made[b"PATH"].partition(b":")[0]
    environment = {**made, b"PATH": own + b":" + os.fsencode(tmp_path) + b":/bin"}
    done = subprocess.run(
        ["/usr/bin/env", "srun", *words], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if refused:
        assert done.returncode == 1
        reason = f"srun --mpi={refused} cannot be saved by dmtcp: start them by mpirun"
        assert reason in done.stderr
        assert "srun --mpi=none hostname" in done.stderr
    else:
        assert done.stdout == " ".join(words) + "\n"


def test_other_nodes_are_checked_again_after_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our processes run there already, when the next image is tried or the job starts over."""
    bed = AgentBed(tmp_path, monkeypatch, "n1", "n2")
    monkeypatch.setattr(dmtcp_images, "library_digest", lambda _: "abc")
    answers = ["DMTCP lacks a change", "DMTCP lacks a change", ""]

    def check(*_: object) -> None:
        if answer := answers.pop(0):
            raise RequestRefused(answer)

    monkeypatch.setattr(dmtcp_probe, "check", check)
    attendants = bed.nodes._attendants
    monkeypatch.setattr(attendants, "start", lambda _: [{"library": "abc"}])
    monkeypatch.setattr(type(attendants), "has_ended", property(lambda _: len(answers) == 3))
    for _ in range(2):
        with pytest.raises(RequestRefused, match="lacks a change"):
            bed.nodes.begin(20_001)
    bed.nodes.begin(20_001)
    bed.nodes.begin(20_001)
    assert answers == []


def test_a_coordinator_that_no_process_has_joined_ends_with_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def ask(_self: object, program: str, _within: float, *words: str) -> tuple[int, str]:
        asked.append((program, *words[-1:]))
        return 0, ""

    guard = SimpleNamespace(port=20_001, close=lambda: asked.append(("guard",)))
    monkeypatch.setattr(dmtcp_coordinator, "guarded", lambda *_: guard)
    monkeypatch.setattr(dmtcp_coordinator, "Scratch", lambda *_: SimpleNamespace(
        of_user=lambda *_: tmp_path, close=lambda: None))  # fmt: skip
    monkeypatch.setattr(Coordinator, "ask", ask)
    monkeypatch.setattr(
        dmtcp_coordinator, "is_free", lambda _: not asked or asked[-1][-1] == "--quit"
    )
    site = HelperSite(cluster="t", directory=tmp_path, key=b"", reader=(0, 0))
    coordinator = Coordinator(site, CALLER, NODES)
    coordinator.begin(tmp_path)
    assert asked.pop()[0] == "dmtcp_coordinator"
    asked.append(("listens",))
    coordinator.close()
    assert asked == [("listens",), ("dmtcp_command", "--quit"), ("guard",)]

    def no_program(*_: object) -> tuple[int, str]:
        raise FileNotFoundError("dmtcp_command")

    monkeypatch.setattr(Coordinator, "ask", no_program)
    monkeypatch.setattr(dmtcp_coordinator, "is_free", lambda _: False)
    asked.clear()
    coordinator.close()
    assert asked == [("guard",)], "the port is opened even if DMTCP has been uninstalled"
