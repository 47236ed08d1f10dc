"""The agent of a machine: when it ends the machine, what it starts, what it tells the head."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import eventually, patience

import slurm_elastic
from slurm_elastic.image.imds import MetadataAnswers, serving
from slurm_elastic.machine.programs import agent

PROGRAM = Path(slurm_elastic.__file__).parent / "machine" / "programs" / "agent.py"
UP = "NodeName=pub1 Arch=x86_64\n   State=ALLOCATED+CLOUD ThreadsPerCore=1\n"
SILENT = "slurm_load_node error: Unable to contact slurm controller (connect failure)"


class Timeline:
    """A switch that is asked each 5 s."""

    def __init__(self, timeout: float = 900.0, max_age: float = 0.0) -> None:
        self.now = 100.0
        self.switch = agent.Switch(timeout, max_age, self.now)
        self.age = 0.0

    def pass_(
        self, seconds: float, unneeded: str = "", *, busy: bool = False, kept: float = 0.0
    ) -> str:
        """The first reason to stop within so many seconds."""
        end = self.now + seconds
        while self.now < end:
            self.now += 5
            self.age += 5
            if why := self.switch.reason(self.now, self.age, unneeded, busy, kept):
                return why
        return ""


def test_files_are_owed_as_long_as_a_file_of_a_job_is_not_empty(tmp_path: Path) -> None:
    place = tmp_path / "owed"
    assert not agent.owes(str(place))
    place.mkdir()
    (place / "7").touch()
    assert not agent.owes(str(place))
    (place / "8").write_bytes(b"1")
    assert agent.owes(str(place))


class TestSwitch:
    def test_a_machine_that_is_needed_stays_for_ever(self) -> None:
        assert Timeline().pass_(100_000) == ""

    def test_a_machine_alone_stops_after_the_timeout_and_says_why(self) -> None:
        line = Timeline()
        assert line.pass_(895, "no answer") == ""
        assert line.pass_(5, "no answer") == "no answer, for 900 s; no job runs"

    def test_a_machine_with_results_waits_for_the_head_after_its_last_job(self) -> None:
        """The head may have been away long before the job ended."""
        line = Timeline()
        assert line.pass_(2000, "no answer", busy=True) == ""
        assert line.pass_(595, "no answer", kept=600.0) == ""
        assert "no job runs" in line.pass_(10, "no answer", kept=600.0), (
            "no machine is kept for ever"
        )
        line = Timeline()
        assert line.pass_(2000, "no answer", busy=True) == ""
        assert "no job runs" in line.pass_(65, "no answer")

    def test_a_restart_of_slurmctld_starts_the_count_anew(self) -> None:
        line = Timeline()
        for _ in range(20):
            assert line.pass_(890, "no answer") == ""
            assert line.pass_(5) == ""

    def test_a_job_runs_to_its_end_and_a_minute_more(self) -> None:
        line = Timeline()
        assert line.pass_(50_000, "no answer", busy=True) == ""
        assert line.pass_(55, "no answer") == ""
        assert line.pass_(5, "no answer") != ""

    def test_time_that_nobody_watched_does_not_count(self) -> None:
        line = Timeline()
        assert line.pass_(100, "no answer") == ""
        line.now += 10_000  # the host had the machine stopped
        assert line.pass_(700, "no answer") == ""
        assert line.pass_(200, "no answer") != ""

    def test_an_old_machine_stops_when_idle_needed_or_not(self) -> None:
        line = Timeline(max_age=3600)
        assert line.pass_(10_000, busy=True) == ""
        assert "3600 allowed" in line.pass_(60)
        assert Timeline().pass_(100_000) == ""

    @given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=600))
    def test_it_never_stops_one_that_works_or_was_needed_lately(
        self, seen: list[tuple[bool, bool]]
    ) -> None:
        line = Timeline(timeout=60)
        lonely, idle = 0, 0
        for needed, busy in seen:
            why = line.pass_(5, "" if needed else "no answer", busy=busy)
            lonely, idle = (0 if needed else lonely + 5), (0 if busy else idle + 5)
            assert bool(why) == (lonely >= 60 and idle >= 60)


class Scontrol:
    """A command that answers what the file says, and writes its arguments down."""

    def __init__(self, path: Path) -> None:
        self.command = path / "scontrol"
        self.log = path / "scontrol.log"
        self.answer, self.code = path / "answer", path / "code"
        self.command.write_text(
            f'#!/bin/sh\necho "$@" >>{self.log}\ncat {self.answer}\nexit $(cat {self.code})\n'
        )
        self.command.chmod(0o755)
        self.says(UP)

    def says(self, text: str, code: int = 0) -> None:
        self.answer.write_text(text)
        self.code.write_text(str(code))

    def slurm(self) -> agent.NodeInSlurm:
        return agent.NodeInSlurm("pub1", str(self.command))

    def ran(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def scontrol(tmp_path: Path) -> Scontrol:
    return Scontrol(tmp_path)


@pytest.mark.parametrize(
    ("text", "code", "needed"),
    [
        (UP, 0, True),
        ("NodeName=pub1\n   State=IDLE*+CLOUD+NOT_RESPONDING+POWERING_UP\n", 0, True),
        ("NodeName=pub1\n   State=DOWN+CLOUD\n", 0, True),
        ("NodeName=pub1\n   State=IDLE+CLOUD+DRAIN+POWERED_DOWN\n", 0, False),
        ("NodeName=pub1\n   State=IDLE+CLOUD+POWERING_DOWN\n", 0, False),
        ("Node pub1 not found\n", 1, False),
        (SILENT, 1, False),
        ("", 1, False),
    ],
)
def test_slurm_says_whether_the_machine_is_needed(
    scontrol: Scontrol, text: str, code: int, needed: bool
) -> None:
    scontrol.says(text, code)
    why = scontrol.slurm().unneeded()
    assert (why == "") == needed
    assert scontrol.ran() == ["show node pub1"]
    if text == SILENT:
        assert why.endswith(SILENT)


def test_a_missing_or_hanging_scontrol_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No such file" in agent.NodeInSlurm("n", str(tmp_path / "none")).unneeded()
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(agent, "COMMAND_S", 0.2)
    assert "no end" in agent.NodeInSlurm("n", str(slow)).unneeded()


@pytest.fixture
def step(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Processes named slurmstepd, each with a directory of its own."""
    started: list[subprocess.Popen[bytes]] = []
    program = tmp_path / "slurmstepd"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / "slurmstepd-wlm")
    program.symlink_to("slurmstepd-wlm")  # as Debian has it

    def start(name: str, word: str) -> Path:
        where = tmp_path / name
        where.mkdir()
        started.append(subprocess.Popen([program, word], cwd=where))
        eventually(lambda: _comm(started[-1].pid) == "slurmstepd")
        return where

    yield start
    for process in started:
        process.kill()
        process.wait()


def _comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_a_slurmstepd_is_work_and_that_of_cgroups_is_none(step: Callable[..., Path]) -> None:
    working = step("working", "600")
    lasting = step("lasting", "infinity")
    assert agent.busy(str(working))
    assert not agent.busy(str(lasting))
    assert not agent.busy(str(working.parent))
    assert agent.busy("")


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.mark.parametrize("disguise", ["named so", "copied", "run by a user"])
def test_what_a_user_calls_slurmstepd_is_no_work(open_place: Path, disguise: str) -> None:
    """Else one process of any job would keep the machine, and be paid, for ever."""
    if os.getuid() != 0:
        pytest.skip("needs other users")
    program = open_place / "slurmstepd"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    owner, user = (0, 2) if disguise == "run by a user" else (2, 0)
    os.chown(program, owner, owner)
    if disguise == "named so":
        program = Path(sys.executable)
    name = "import time; open('/proc/self/comm', 'w').write('slurmstepd'); time.sleep(600)"
    words = ["-c", name] if disguise == "named so" else ["600"]
    process = subprocess.Popen([program, *words], cwd="/", user=user)
    try:
        eventually(lambda: _comm(process.pid) == "slurmstepd")
        assert not agent.is_step(str(process.pid), "")
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def metadata() -> Iterator[str]:
    with serving(**{_below(agent.INSTANCE): "i-7"}) as url:
        yield url


def _below(path: str) -> str:
    return path.removeprefix("meta-data/")


def test_warnings_of_ec2_are_read_by_a_token(metadata: str) -> None:
    source = agent.Ec2Metadata(metadata)
    assert source.warning(0) == ""
    MetadataAnswers.answers[_below(agent.REBALANCE)] = '{"noticeTime": "2026-11-20T08:00:00Z"}'
    assert source.warning(1) == "rebalance:1795161600:i-7"
    MetadataAnswers.answers[_below(agent.INTERRUPTION)] = (
        '{"action": "terminate", "time": "2026-11-20T08:22:00Z"}'
    )
    assert source.warning(2) == "interruption:1795162920:i-7"
    MetadataAnswers.answers[_below(agent.INTERRUPTION)] = "not json"
    assert source.warning(3) == "rebalance:1795161600:i-7"


class Service(BaseHTTPRequestHandler):
    """A metadata service of Google or Azure: it answers only requests with its own header."""

    header = ("", "")
    answers: dict[str, str] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        name, value = self.header
        text = self.answers.get(self.path) if self.headers[name] == value else None
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None: ...


@contextmanager
def service(name: str, value: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A metadata service: its URL, and its answers by path."""
    answers: dict[str, str] = {}
    kind = type("Answers", (Service,), {"header": (name, value), "answers": answers})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", answers
        server.shutdown()
        thread.join()


def test_google_takes_a_machine_half_a_minute_after_its_warning() -> None:
    with service("Metadata-Flavor", "Google") as (url, answers):
        source = agent.metadata_of(f"gce {url}")
        assert source is not None
        assert source.warning(0) == "", "nothing answers yet"
        answers |= {"/instance/preempted": "FALSE", "/instance/maintenance-event": "NONE"}
        answers["/instance/name"] = "pub1-7f3a\n"
        assert source.warning(1) == ""
        answers["/instance/maintenance-event"] = "MIGRATE_ON_HOST_MAINTENANCE"
        assert source.warning(2) == "", "the machine continues on another host"
        answers["/instance/maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
        assert source.warning(3) == "interruption:0:pub1-7f3a"
        answers["/instance/preempted"] = "TRUE\n"
        begun = int(time.time())
        warning = source.warning(4)
        deadline = int(warning.split(":")[1])
        assert warning == f"interruption:{deadline}:pub1-7f3a"
        assert begun + 30 <= deadline <= time.time() + 30
        source.end_at -= 5
        assert source.warning(5) == f"interruption:{deadline - 5}:pub1-7f3a", "it keeps its time"


EVENTS = "/scheduledevents?api-version=2020-07-01"
NAME = "/instance/compute/name?api-version=2021-02-01&format=text"


def scheduled(kind: str, *machines: str, at: str = "Fri, 20 Nov 2026 08:22:00 GMT") -> object:
    return {"EventId": f"e-{kind}", "EventType": kind, "Resources": machines, "NotBefore": at}


def test_azure_reports_events_of_this_machine_only() -> None:
    with service("Metadata", "true") as (url, answers):
        source = agent.metadata_of(f"azure {url}")
        assert source is not None

        def warning(*events: object) -> str:
            answers[EVENTS] = json.dumps({"DocumentIncarnation": 1, "Events": events})
            return source.warning(0)

        assert source.warning(0) == "", "nothing answers yet"
        assert warning(scheduled("Preempt", "pub1-7f3a")) == "", "it does not know its name yet"
        answers[NAME] = "pub1-7f3a"
        assert warning() == ""
        others = scheduled("Preempt", "pub1-7f3a9", "pub2-7f3a")
        assert warning(others) == ""
        assert warning(scheduled("Reboot", "PUB1-7f3a")) == "rebalance:1795162920:pub1-7f3a"
        taken = "interruption:1795162920:pub1-7f3a"
        assert warning(scheduled("Reboot", "pub1-7f3a"), scheduled("Preempt", "pub1-7f3a")) == taken
        begun = scheduled("Preempt", "pub2-7f3a", "pub1-7f3a", at="")
        assert warning(begun) == taken, "an event that has begun has lost its time"
        assert warning(scheduled("Unheard", "pub1-7f3a")) == "", "a kind of event that is new"
        answers[EVENTS] = "<html>"
        assert source.warning(0) == ""


MACHINE = "/subscriptions/1/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/pub1-7f"
TOKEN = "/identity/oauth2/token?api-version=2018-02-01&resource="


@pytest.mark.parametrize(
    ("action", "call"),
    [
        ("delete", f"DELETE {MACHINE}?api-version=2024-07-01"),
        ("deallocate", f"POST {MACHINE}/deallocate?api-version=2024-07-01"),
    ],
)
def test_a_machine_of_azure_ends_its_own_bill(tmp_path: Path, action: str, call: str) -> None:
    """A shutdown inside leaves it allocated, and it goes on costing in full."""
    calls: list[str] = []

    class Manager(BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            is_allowed = self.headers["Authorization"] == "Bearer t0ken"
            calls.append(f"{self.command} {self.path}")
            self.send_response(202 if is_allowed else 403)
            self.end_headers()

        do_POST = do_DELETE  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with (
        service("Metadata", "true") as (url, answers),
        ThreadingHTTPServer(("127.0.0.1", 0), Manager) as server,
    ):
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        manager = f"http://127.0.0.1:{server.server_port}"
        settings = tmp_path / "agent"
        settings.write_text(
            f"node=pub1\nheartbeat_timeout=9\nstop_command=x\nmetadata=azure {url}\n"
        )

        def end(*identity: str) -> int:
            return agent.main(["agent.py", str(settings), "end", action, manager, *identity])

        answers["/instance/compute?api-version=2021-02-01"] = json.dumps({"resourceId": MACHINE})
        assert (end(), calls) == (1, []), "no identity"
        answers[f"{TOKEN}{manager}/&msi_res_id=/ours%28d%29"] = '{"access_token": "t0ken"}'
        assert (end(), end("/ours%28d%29"), calls) == (1, 0, [call])
        answers[f"{TOKEN}{manager}/"] = '{"access_token": "without rights"}'
        assert end() == 1, "the agent tries again"
        server.shutdown()
        thread.join()


def test_an_agent_looks_more_often_if_a_warning_comes_late() -> None:
    assert agent.Ec2Metadata("").period == 5
    assert {agent.GceMetadata("").period, agent.AzureMetadata("").period} == {2}
    assert agent.metadata_of("") is None
    assert agent.metadata_of("unheard http://127.0.0.1/") is None


def test_no_metadata_service_is_no_warning() -> None:
    assert agent.Ec2Metadata("http://127.0.0.1:9/latest/").warning(0) == ""


def test_an_answer_that_is_no_http_is_no_warning() -> None:
    """An error here would end the round before the dead-man switch is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_no_http() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"busy\r\n\r\n")

        thread = threading.Thread(target=answer_no_http)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/latest/"
        assert agent.Ec2Metadata(url).warning(0) == ""
        thread.join()


class Running:
    """The agent as a process."""

    def __init__(self, path: Path, scontrol: Scontrol, **settings: str) -> None:
        self.stopped = path / "stopped"
        self.file = path / "agent"
        self.workdir = path / "empty"
        self.workdir.mkdir()
        values = {
            "node": "pub1", "heartbeat_timeout": "1", "scontrol": str(scontrol.command),
            "stop_command": f"touch {self.stopped}", "workdir": str(self.workdir),
            **settings,
        }  # fmt: skip
        self.file.write_text("".join(f"{k}={v}\n" for k, v in values.items()))
        self.boot()

    def boot(self) -> None:
        """As after a start of the machine: /run is empty but for the settings."""
        for name in ("began", "started"):
            self.file.with_name(f"{self.file.name}.{name}").unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(PROGRAM), str(self.file)], stderr=subprocess.PIPE
        )

    def end(self) -> str:
        """Kill the agent; its words so far, told once."""
        self.process.kill()
        stderr = self.process.stderr
        assert stderr is not None
        said = "" if stderr.closed else self.process.communicate()[1].decode()
        self.process.wait()
        return said


@pytest.fixture
def running(tmp_path: Path, scontrol: Scontrol) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def start(**settings: str) -> Running:
        made.append(Running(tmp_path, scontrol, **settings))
        return made[-1]

    yield start
    for one in made:
        one.end()


def test_it_stops_the_machine_when_the_head_is_gone(
    scontrol: Scontrol, running: Callable[..., Running]
) -> None:
    machine = running()
    eventually(lambda: len(scontrol.ran()) >= 10)
    assert not machine.stopped.exists()
    scontrol.says(SILENT, 1)
    eventually(machine.stopped.exists)
    assert "stops itself: slurmctld does not know or answer this node" in machine.end()


def test_a_stop_command_that_fails_is_run_again(
    tmp_path: Path, scontrol: Scontrol, running: Callable[..., Running]
) -> None:
    scontrol.says(SILENT, 1)
    count = tmp_path / "count"
    script = tmp_path / "stop"
    script.write_text(f"#!/bin/sh\necho >>{count}\nexit 1\n")
    script.chmod(0o755)
    machine = running(stop_command=str(script))
    eventually(lambda: count.exists() and len(count.read_text()) >= 3)
    assert "exit 1" in machine.end()


def test_it_starts_slurmd_once_the_key_has_come(
    tmp_path: Path, scontrol: Scontrol, running: Callable[..., Running]
) -> None:
    mark, started = tmp_path / "mark", tmp_path / "started"
    machine = running(key_mark=str(mark), start_command=f"sh -c 'echo >>{started}'")
    eventually(lambda: len(scontrol.ran()) >= 3)
    assert not started.exists()
    mark.touch()
    eventually(started.exists)
    seen = len(scontrol.ran())
    eventually(lambda: len(scontrol.ran()) >= seen + 3)
    machine.end()
    again = subprocess.Popen([sys.executable, "-I", str(PROGRAM), str(machine.file)])
    seen = len(scontrol.ran())
    eventually(lambda: len(scontrol.ran()) >= seen + 3)
    again.kill()
    again.wait()
    assert started.read_text() == "\n", "a restart of the agent leaves slurmd alone"


def test_it_starts_slurmd_again_until_it_has_started(
    tmp_path: Path, scontrol: Scontrol, running: Callable[..., Running]
) -> None:
    """A machine without slurmd is paid and of no use until its time to boot is over."""
    tries, good = tmp_path / "tries", tmp_path / "good"
    start = tmp_path / "start"
    start.write_text(f"#!/bin/sh\necho >>{tries}\ntest -e {good}\n")
    start.chmod(0o755)
    machine = running(start_command=str(start))
    eventually(lambda: tries.exists() and len(tries.read_text()) >= 3)
    good.touch()
    eventually(machine.file.with_name(machine.file.name + ".started").exists)
    count = len(tries.read_text())
    seen = len(scontrol.ran())
    eventually(lambda: len(scontrol.ran()) >= seen + 3)
    assert len(tries.read_text()) == count, "not once more after it has started"
    assert "exit 1" in machine.end()


class Started:
    """An agent whose slurmd has started; its rounds are at the times that the test says."""

    def __init__(self, path: Path, scontrol: Scontrol) -> None:
        self.ran, settings = path / "ran", path / "settings"
        self.scontrol = scontrol
        settings.with_name("settings.started").touch()
        self.agent = agent.Agent(str(settings), {
            "node": "pub1", "heartbeat_timeout": "900", "stop_command": "false",
            "scontrol": str(scontrol.command), "boot_command": f"sh -c 'echo >>{self.ran}'",
        })  # fmt: skip

    def looks(self, now: float, text: str, code: int = 0) -> int:
        """How often slurmd was started as after a boot, after a look at that time."""
        self.scontrol.says(text, code)
        self.agent.slurm.unneeded()
        self.agent.report_boot(now)
        return len(self.ran.read_text()) if self.ran.exists() else 0


REFUSED = "NodeName=pub1\n   State=ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP\n"


def test_a_machine_that_slurmctld_does_not_take_reports_a_boot_once(
    tmp_path: Path, scontrol: Scontrol
) -> None:
    """It refuses a boot from before the node's last power-up request, for ever."""
    machine = Started(tmp_path, scontrol)
    seen = [machine.looks(now, REFUSED) for now in (100.0, 120.0, 131.0, 161.0)]
    assert seen == [0, 0, 1, 1]


def test_a_report_of_a_boot_that_fails_is_made_again(tmp_path: Path, scontrol: Scontrol) -> None:
    """slurmd has been stopped then, so nobody else would start it."""
    machine = Started(tmp_path, scontrol)
    machine.agent.settings["boot_command"] = f"sh -c 'echo >>{machine.ran}; exit 1'"
    assert [machine.looks(now, REFUSED) for now in (100.0, 131.0, 161.0)] == [0, 1, 2]
    machine.agent.settings["boot_command"] = f"sh -c 'echo >>{machine.ran}'"
    assert [machine.looks(now, REFUSED) for now in (191.0, 221.0)] == [3, 3]


def test_a_machine_that_slurmctld_has_taken_never_reports_a_boot(
    tmp_path: Path, scontrol: Scontrol
) -> None:
    """slurmctld would take it for rebooted, and end its jobs."""
    machine = Started(tmp_path, scontrol)
    assert machine.looks(100.0, REFUSED) == 0
    assert machine.looks(140.0, SILENT, 1) == 0
    assert machine.looks(150.0, UP) == 0
    assert machine.looks(200.0, REFUSED) == 0
    assert machine.looks(300.0, REFUSED) == 0


def test_slurmd_does_not_wait_for_an_scontrol_that_hangs_without_the_key(
    tmp_path: Path, scontrol: Scontrol, running: Callable[..., Running]
) -> None:
    mark, started, hangs = tmp_path / "mark", tmp_path / "started", tmp_path / "hangs"
    scontrol.command.write_text(f"#!/bin/sh\ntouch {hangs}\nexec sleep 600\n")
    machine = running(key_mark=str(mark), start_command=f"sh -c 'echo >>{started}'")
    eventually(hangs.exists)
    mark.touch()
    eventually(started.exists, 20.0)
    assert "no end" not in machine.end(), "the first scontrol has not come back"


def test_a_machine_that_was_stopped_for_a_while_begins_anew_with_its_boot(
    tmp_path: Path, scontrol: Scontrol, running: Callable[..., Running]
) -> None:
    """The head has stopped it as its node was idle, and starts it for the next job."""
    mark, started = tmp_path / "mark", tmp_path / "started"
    mark.touch()
    machine = running(key_mark=str(mark), start_command=f"sh -c 'echo >>{started}'")
    eventually(started.exists)
    machine.end()
    scontrol.says("NodeName=pub1\n   State=IDLE*+CLOUD+NOT_RESPONDING+POWERING_UP\n")
    machine.boot()
    seen = len(scontrol.ran())
    eventually(lambda: len(scontrol.ran()) >= seen + 10)
    assert started.read_text() == "\n\n", "slurmd starts once a boot"
    assert not machine.stopped.exists(), "it is needed, for longer than its timeout"


def test_a_warning_is_told_once_to_slurm(
    scontrol: Scontrol, metadata: str, running: Callable[..., Running]
) -> None:
    running(metadata=f"ec2 {metadata}")
    MetadataAnswers.answers[_below(agent.INTERRUPTION)] = json.dumps(
        {"action": "terminate", "time": "2026-11-20T08:22:00Z"}
    )
    told = "update nodename=pub1 comment=slurm-elastic:notice:interruption:1795162920:i-7"
    eventually(lambda: told in scontrol.ran())
    seen = len(scontrol.ran())
    eventually(lambda: len(scontrol.ran()) >= seen + 3)
    assert scontrol.ran().count(told) == 1


def test_a_warning_does_not_wait_for_slurm_or_the_check(
    tmp_path: Path, scontrol: Scontrol, metadata: str, running: Callable[..., Running]
) -> None:
    showing, told = tmp_path / "showing", tmp_path / "told"
    scontrol.command.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = show ]; then echo $$ >{showing}.new; mv {showing}.new {showing}; '
        "exec sleep 600; fi\n"
        f"kill -0 $(cat {showing}) && echo meanwhile >>{told} || echo late >>{told}\n"
    )
    running(metadata=f"ec2 {metadata}", heartbeat_timeout="300")
    eventually(showing.exists)
    MetadataAnswers.answers[_below(agent.INTERRUPTION)] = json.dumps(
        {"action": "terminate", "time": "2026-11-20T08:22:00Z"}
    )
    eventually(told.exists)
    assert told.read_text() == "meanwhile\n"
    os.kill(int(showing.read_text()), signal.SIGKILL)


def test_settings_without_a_node_end_it(tmp_path: Path) -> None:
    (tmp_path / "agent").write_text("heartbeat_timeout=9\n")
    done = subprocess.run(
        [sys.executable, "-I", str(PROGRAM), str(tmp_path / "agent")],
        capture_output=True, text=True, check=False, timeout=patience(60),
    )  # fmt: skip
    assert done.returncode == 2
    assert "lacks node, stop_command" in done.stderr
    assert os.listdir(tmp_path) == ["agent"]


# the gate


def entered(
    tmp_path: Path, scontrol: Scontrol, script: str, **settings: str
) -> tuple[int, list[str]]:
    """The exit code of ``agent.py SETTINGS check``, and what it told slurmctld."""
    check = tmp_path / "check"
    check.write_text(f"#!/bin/sh\n{script}\n")
    check.chmod(0o755)
    values = {
        "node": "pub1", "heartbeat_timeout": "60", "stop_command": "true", "scontrol": str(scontrol.command),
        "generation": "g7", "check": str(check), **settings,
    }  # fmt: skip
    file = tmp_path / "settings"
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    done = subprocess.run([sys.executable, "-I", str(PROGRAM), str(file), "check"], check=False)
    return done.returncode, scontrol.ran()


def test_a_machine_that_passes_its_check_may_start_slurmd(
    tmp_path: Path, scontrol: Scontrol
) -> None:
    assert entered(tmp_path, scontrol, "exit 0") == (0, [])
    assert entered(tmp_path, scontrol, "exit 1", check="") == (0, [])


def test_one_that_does_not_tells_slurmctld_why(tmp_path: Path, scontrol: Scontrol) -> None:
    code, ran = entered(tmp_path, scontrol, "echo first; echo 'sda fails, twice'; exit 3")
    assert code == 1
    assert ran == ["update nodename=pub1 comment=slurm-elastic:gate:g7:exit 3: sda fails; twice"]


def test_a_mount_that_fails_keeps_slurmd_from_starting_and_comes_before_the_check(
    tmp_path: Path, scontrol: Scontrol
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("echo 'cannot mount head:/home at /home: Connection refused'; exit 1\n")
    checked = tmp_path / "checked"
    code, ran = entered(tmp_path, scontrol, f"touch {checked}", prepare=f"/bin/sh {mounts}")
    reason = "cannot mount head:/home at /home: Connection refused"
    assert (code, ran) == (1, [f"update nodename=pub1 comment=slurm-elastic:prepare:g7:{reason}"])
    assert not checked.exists()
    assert entered(tmp_path, scontrol, "", prepare=f"/bin/sh {mounts}") == (1, ran), "told once"
    mounts.write_text("exit 0\n")
    assert entered(tmp_path, scontrol, f"touch {checked}", prepare=f"/bin/sh {mounts}")[0] == 0
    assert checked.exists()


def test_a_check_that_hangs_or_is_not_there_fails(tmp_path: Path, scontrol: Scontrol) -> None:
    code, ran = entered(tmp_path, scontrol, "exec sleep 60", check_timeout="1")
    assert code == 1
    assert "no end in 1 s" in ran[-1]
    code, ran = entered(tmp_path, scontrol, "", check="/nonexistent/check")
    assert code == 1
    assert "No such file" in ran[-1]


@pytest.mark.parametrize("state", ["ALLOCATED+CLOUD+POWER_DOWN", "MIXED+CLOUD"])
def test_an_old_machine_stays_while_its_node_has_a_job_without_a_step(
    tmp_path: Path, scontrol: Scontrol, state: str
) -> None:
    """Between two steps of a job of several nodes only the first node has a slurmstepd."""
    (tmp_path / "agent.began").write_text("0")
    one = agent.Agent(str(tmp_path / "agent"), {
        "node": "pub1", "heartbeat_timeout": "60", "max_age": "600", "stop_command": "true",
        "scontrol": str(scontrol.command), "workdir": str(tmp_path / "none"),
    })  # fmt: skip
    for text, stops in ((state, False), ("IDLE+CLOUD", True)):
        scontrol.says(f"NodeName=pub1\n   State={text} CPUAlloc=1\n")
        one.next_look, one.switch.busy_at = 0.0, float("-inf")
        assert bool(one.tick()) is stops


@pytest.mark.parametrize("killable", [True, False])
def test_a_check_whose_child_hangs_does_not_hold_the_switch(
    tmp_path: Path, scontrol: Scontrol, monkeypatch: pytest.MonkeyPatch, *, killable: bool
) -> None:
    """The kernel may keep a killed process, for instance one that asks a lost GPU."""
    written = tmp_path / "pid"
    check = tmp_path / "check"
    check.write_text(f"sleep 600 &\necho $! >{written}.new; mv {written}.new {written}; wait\n")
    killed: list[int] = []
    killpg = os.killpg
    if not killable:
        monkeypatch.setattr(os, "killpg", lambda pid, _: killed.append(pid))
    gate = agent.Gate({}, scontrol.slurm())
    try:
        assert gate.failure(f"/bin/sh {check}", 5.0) == "exit 124: no end in 5 s"
    finally:
        for pid in killed:
            killpg(pid, signal.SIGKILL)
    child = Path("/proc") / written.read_text().strip()
    eventually(lambda: not child.exists() or "State:\tZ" in (child / "status").read_text())


def test_after_the_last_job_a_check_that_fails_drains_the_node(
    tmp_path: Path, scontrol: Scontrol
) -> None:
    gate = agent.Gate({"check": "sh -c 'echo bad; exit 2'"}, scontrol.slurm())
    gate.look(is_busy=False)
    gate.look(is_busy=True)
    assert scontrol.ran() == [], "not before a job has ended"
    gate.look(is_busy=False)
    gate.look(is_busy=False)
    assert scontrol.ran() == [
        "update nodename=pub1 state=DRAIN reason=slurm-elastic gate: exit 2: bad"
    ]


def test_a_drain_that_slurmctld_did_not_take_is_sent_again(scontrol: Scontrol) -> None:
    """A job may end while slurmctld restarts, and the broken machine would get the next one."""
    gate = agent.Gate({"check": "sh -c 'echo bad; exit 2'"}, scontrol.slurm())
    drain = "update nodename=pub1 state=DRAIN reason=slurm-elastic gate: exit 2: bad"
    gate.look(is_busy=True)
    scontrol.says(SILENT, 1)
    gate.look(is_busy=False)
    assert scontrol.ran() == [drain]
    scontrol.says(UP)
    gate.look(is_busy=True)
    gate.look(is_busy=True)
    assert scontrol.ran() == [drain, drain]
