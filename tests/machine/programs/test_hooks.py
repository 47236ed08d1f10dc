"""slurm-elastic-prolog, -epilog and -wait as slurmctld runs them."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import awake, patience, stretched

from benchmarks.small_slurm import wait_until
from slurm_elastic.controller.notify_socket import WakeSocket
from slurm_elastic.features.power.prolog import PrologServer
from slurm_elastic.slurm.client.fake import FakeSlurm
from tests.machine.programs.installed import Installed, job, modules_of

LONG = 60.0


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


@pytest.fixture
def slurm() -> FakeSlurm:
    """Job 7 waits for pub1 and pub2, which come up."""
    fake = FakeSlurm()
    fake.set_node("pub1", "ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING")
    fake.set_node("pub2", "ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING")
    fake.set_job(7, "CONFIGURING", nodes=("pub1", "pub2"))
    return fake


@pytest.fixture
def daemon(installed: Installed, slurm: FakeSlurm) -> Iterator[PrologServer]:
    server = PrologServer(installed.state / "prolog.sock", slurm, threading.Event())
    server.start()
    yield server
    server.close()


@contextlib.contextmanager
def listener(installed: Installed, backlog: int = 10) -> Iterator[socket.socket]:
    """A daemon's socket without a daemon."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(installed.state / "prolog.sock"))
        sock.listen(backlog)
        yield sock


def ends(process: subprocess.Popen[bytes]) -> int:
    process.communicate(timeout=patience(LONG))
    return process.returncode


# Jobs of the site's own.


def test_a_static_job_never_reaches_python(installed: Installed, daemon: PrologServer) -> None:
    installed.settings("python=/nonexistent/would-fail", f"site_prolog={shutil.which('true')}")
    for partition in ("batch", "clouds", "clou", "*", "on prem", "", "a,b"):
        assert installed.run("slurm-elastic-prolog", env=job(partition=partition)) == (0, "")
        assert installed.run("slurm-elastic-epilog", env=job(partition=partition)) == (0, "")
    assert daemon.waiting() == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="the limit is for a user without processes")
def test_a_static_job_costs_no_further_process() -> None:
    """Where the kernel permits no second process, the hooks of a static job still work."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        installed = Installed(Path(directory))
        with (
            listener(installed),
            WakeSocket(installed.state / "wake.sock"),
            WakeSocket(installed.state / "ckptman.sock"),
        ):
            for kind, partition, code in (
                ("prolog", "batch", 0),
                ("epilog", "batch", 0),
                ("epilog", "cloud", 2),  # which must start Python: so the limit holds
            ):
                done = subprocess.run(
                    ["/bin/sh", str(installed.programs / f"slurm-elastic-{kind}")],
                    env=job(partition=partition),
                    check=False,
                    capture_output=True,
                    preexec_fn=_become_alone,
                )
                assert done.returncode == code, done.stderr


def _become_alone() -> None:
    os.setgroups([])
    os.setgid(64999)
    os.setuid(64999)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))


def test_no_daemon_no_waiting(installed: Installed) -> None:
    assert installed.run("slurm-elastic-prolog", env=job()) == (0, "")
    assert installed.run("slurm-elastic-epilog", env=job()) == (0, "")


def test_missing_settings_never_fail_a_job(installed: Installed) -> None:
    os.unlink(installed.programs / "settings")
    assert installed.run("slurm-elastic-prolog", env=job()) == (0, "")
    assert installed.run("slurm-elastic-epilog", env=job()) == (0, "")
    assert installed.run("slurm-elastic-wait", env=job())[0] == 0


def test_an_empty_environment_never_fails_a_job(installed: Installed, daemon: PrologServer) -> None:
    assert installed.run("slurm-elastic-prolog") == (0, "")
    assert installed.run("slurm-elastic-epilog") == (0, "")
    code, said = installed.run("slurm-elastic-wait")
    assert (code, "Traceback" in said) == (0, False)


def test_settings_are_text_and_no_shell(installed: Installed, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    installed.settings(
        f"partitions=cloud $(touch {marker}) `touch {marker}` * ' \" ; touch {marker}",
        f"state_dir={tmp_path}/with = sign \\ $HOME",
        "python=",
    )
    assert installed.run("slurm-elastic-prolog", env=job(partition="x")) == (0, "")
    assert installed.run("slurm-elastic-epilog", env=job(partition="x")) == (0, "")
    assert not marker.exists()


# The site's own prolog and epilog.


def site_program(tmp_path: Path, body: str) -> str:
    path = tmp_path / "the site's own"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("kind", ["prolog", "epilog"])
@pytest.mark.parametrize("code", [0, 1, 99])
@pytest.mark.parametrize("partition", ["batch", "cloud"])
def test_the_sites_own_program_runs_first_and_its_exit_status_is_passed_on(
    installed: Installed, tmp_path: Path, kind: str, code: int, partition: str
) -> None:
    out = tmp_path / "out"
    program = site_program(
        tmp_path, f"echo \"$SLURM_JOB_ID $SLURM_SCRIPT_CONTEXT $#\" > '{out}'; exit {code}"
    )
    installed.settings(f"site_{kind}={program}")
    assert installed.run(f"slurm-elastic-{kind}", env=job(partition=partition))[0] == code
    assert out.read_text() == "7 prolog_slurmctld 0\n"


def test_a_failed_site_prolog_does_not_wait(
    installed: Installed, tmp_path: Path, daemon: PrologServer
) -> None:
    installed.settings(f"site_prolog={site_program(tmp_path, 'exit 3')}")
    assert installed.run("slurm-elastic-prolog", env=job())[0] == 3
    assert daemon.waiting() == ()


def test_a_site_prolog_that_cannot_run_fails_the_job_as_without_us(installed: Installed) -> None:
    installed.settings("site_prolog=/nonexistent/prolog")
    assert installed.run("slurm-elastic-prolog", env=job(partition="batch"))[0] == 127


@pytest.mark.parametrize("kind", ["prolog", "epilog"])
@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (("PrologSlurmctld=/etc/new", "include slurm-elastic.conf"), 0),
        (("PrologSlurmctld={old}", "include slurm-elastic.conf"), 127),
        (("#PrologSlurmctld={old}", "include slurm-elastic.conf"), 0),
        (("include of-the-site.conf", "include slurm-elastic.conf"), 127),
    ],
)
def test_a_site_program_that_slurm_conf_no_longer_names_may_be_removed(
    kind: str, lines: tuple[str, ...], code: int, installed: Installed, tmp_path: Path
) -> None:
    """Until the next `conf install` our program would requeue each job of the site for it."""
    old, conf = tmp_path / "old", tmp_path / "slurm.conf"
    conf.write_text("".join(f"{line.format(old=old)}\n" for line in lines))
    installed.settings(f"site_{kind}={old}", f"slurm_conf={conf}")
    assert installed.run(f"slurm-elastic-{kind}", env=job(partition="batch"))[0] == code


# Waiting.


def test_a_job_is_let_go_when_its_nodes_are_up(
    installed: Installed, slurm: FakeSlurm, daemon: PrologServer
) -> None:
    process = installed.start("slurm-elastic-prolog", env=job())
    wait_until(lambda: daemon.waiting() == (7,))
    slurm.set_node("pub1", "ALLOCATED", "CLOUD")
    wait_until(lambda: slurm.calls["nodes"] > 2)
    assert process.poll() is None
    slurm.set_node("pub2", "ALLOCATED", "CLOUD")
    assert ends(process) == 0
    wait_until(lambda: daemon.waiting() == ())


def test_a_job_submitted_to_several_partitions(
    installed: Installed, slurm: FakeSlurm, daemon: PrologServer
) -> None:
    process = installed.start("slurm-elastic-prolog", env=job(partition="batch,cloud"))
    wait_until(lambda: daemon.waiting() == (7,))
    slurm.remove_job(7)
    assert ends(process) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda slurm: slurm.remove_job(7),
        lambda slurm: slurm.set_job(7, "PENDING", nodes=()),
        lambda slurm: slurm.set_node("pub2", "DOWN", "CLOUD", "POWERING_UP"),
    ],
    ids=["job gone", "job requeued", "node failed"],
)
def test_a_prolog_never_outlasts_its_job(
    installed: Installed,
    slurm: FakeSlurm,
    daemon: PrologServer,
    change: Callable[[FakeSlurm], None],
) -> None:
    process = installed.start("slurm-elastic-prolog", env=job())
    wait_until(lambda: daemon.waiting() == (7,))
    change(slurm)
    assert ends(process) == 0


def test_with_signals_blocked(installed: Installed, slurm: FakeSlurm, daemon: PrologServer) -> None:
    everything = [s for s in signal.Signals if s not in (signal.SIGKILL, signal.SIGSTOP)]
    process = installed.start("slurm-elastic-prolog", env=job(), blocked=everything)
    wait_until(lambda: daemon.waiting() == (7,))
    slurm.remove_job(7)
    assert ends(process) == 0


def test_sigterm_ends_a_wait_without_failing_the_job(
    installed: Installed, daemon: PrologServer
) -> None:
    process = installed.start("slurm-elastic-prolog", env=job(), blocked=[signal.SIGTERM])
    wait_until(lambda: daemon.waiting() == (7,))
    process.terminate()
    assert ends(process) == 0
    wait_until(lambda: daemon.waiting() == ())


def test_a_daemon_that_stops_lets_go(installed: Installed, daemon: PrologServer) -> None:
    process = installed.start("slurm-elastic-prolog", env=job())
    wait_until(lambda: daemon.waiting() == (7,))
    daemon.close()
    assert ends(process) == 0
    assert not (installed.state / "prolog.sock").exists()


DAEMON = """
import sys, threading, pathlib
from slurm_elastic.features.power.prolog import PrologServer
from slurm_elastic.slurm.client.fake import FakeSlurm
slurm = FakeSlurm()
slurm.set_node("pub1", "ALLOCATED", "POWERING_UP")
slurm.set_node("pub2", "ALLOCATED", "POWERING_UP")
slurm.set_job(7, "CONFIGURING")
server = PrologServer(pathlib.Path(sys.argv[1]), slurm, threading.Event())
server.start()
while True:
    if server.waiting():
        print("waiting", flush=True)
    threading.Event().wait(0.02)
"""


def test_a_killed_daemon(installed: Installed) -> None:
    path = installed.state / "prolog.sock"
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON, path], stdout=subprocess.PIPE)
    wait_until(path.exists)
    process = installed.start("slurm-elastic-prolog", env=job())
    assert daemon.stdout is not None
    assert daemon.stdout.readline() == b"waiting\n"
    assert process.poll() is None
    daemon.kill()
    daemon.communicate()
    assert ends(process) == 0
    # Its socket file is still there, and the next hook finds nobody behind it.
    assert path.exists()
    with awake() as took:
        assert installed.run("slurm-elastic-prolog", env=job())[0] == 0
        assert took() < stretched(10)


def test_a_daemon_that_hangs_is_left_after_some_silence(installed: Installed) -> None:
    """Three ways to hang: never accept, never answer, fall silent after a sign of life."""
    began = time.monotonic()
    with listener(installed, backlog=0) as sock:
        silent = installed.start("slurm-elastic-prolog", env=job(1))
        quiet, _ = sock.accept()
        babbled = installed.start("slurm-elastic-prolog", env=job(2))
        once, _ = sock.accept()
        once.send(b".\n")
        # One connection fits into a queue of 0; the other one waits in connect(2).
        queued = [installed.start("slurm-elastic-prolog", env=job(n)) for n in (3, 4)]
        assert quiet.recv(100).startswith(b'{"job": 1, "nodes": "pub[1-2]", "partition": "cloud"}')
        assert [ends(p) for p in (silent, babbled, *queued)] == [0, 0, 0, 0]
        quiet.close()
        once.close()
    assert 14 < time.monotonic() - began < patience(LONG)


def test_a_wait_is_bounded_even_with_signs_of_life(installed: Installed) -> None:
    installed.settings("prolog_timeout=1.5")
    with listener(installed) as sock:
        process = installed.start("slurm-elastic-prolog", env=job())
        client, _ = sock.accept()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while process.poll() is None:
                client.send(b".\n")
                time.sleep(0.05)
        assert ends(process) == 0
        client.close()


@pytest.mark.parametrize("answer", [b"go", b".\ngo on\n", b"go nodes are up\n.\n"])
def test_what_counts_as_go(installed: Installed, answer: bytes) -> None:
    with listener(installed) as sock:
        process = installed.start("slurm-elastic-prolog", env=job())
        client, _ = sock.accept()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may go at once
            for byte in answer:
                client.send(bytes([byte]))
        assert ends(process) == 0
        client.close()


def test_a_long_state_directory(tmp_path: Path, slurm: FakeSlurm) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    installed = Installed(deep)
    server = PrologServer(installed.state / "prolog.sock", slurm, threading.Event())
    server.start()
    process = installed.start("slurm-elastic-wait", env=job())
    wait_until(lambda: server.waiting() == (7,))
    server.close()
    assert ends(process) == 0


# The epilog.


def test_the_epilog_tells_the_daemon(installed: Installed) -> None:
    with WakeSocket(installed.state / "wake.sock") as wake:
        assert installed.run("slurm-elastic-epilog", env=job(12)) == (0, "")
        assert wake.wait(patience(10)) == [b'{"event": "job-end", "job": 12}']
        assert installed.run("slurm-elastic-epilog", env=job(partition="batch")) == (0, "")
        assert wake.wait(0.05) == []


def test_the_epilog_never_waits_for_the_daemon(installed: Installed) -> None:
    WakeSocket(installed.state / "wake.sock")._socket.close()
    assert installed.run("slurm-elastic-epilog", env=job())[0] == 0


def test_the_other_service_hears_of_both_ends_of_a_job_alone_or_not(
    installed: Installed, slurm: FakeSlurm
) -> None:
    """Its jobs' starts as their prologs end; whichever of the two services runs."""
    with WakeSocket(installed.state / "ckptman.sock") as heard:
        server = PrologServer(installed.state / "prolog.sock", slurm, threading.Event())
        server.start()
        process = installed.start("slurm-elastic-prolog", env=job())
        wait_until(lambda: server.waiting() == (7,))
        assert heard.wait(0) == []
        slurm.remove_job(7)
        assert ends(process) == 0
        assert heard.wait(patience(10)) == [b'{"event": "job-start", "job": 7}']
        server.close()
        assert installed.run("slurm-elastic-epilog", env=job()) == (0, "")
        assert heard.wait(patience(10)) == [b'{"event": "job-end", "job": 7}']
        installed.run("slurm-elastic-prolog", env=job(partition="batch"))
        installed.run("slurm-elastic-epilog", env=job(partition="batch"))
        assert heard.wait(0.05) == []


def test_a_prolog_that_nobody_answers_still_tells_the_other_service(installed: Installed) -> None:
    server = PrologServer(installed.state / "prolog.sock", FakeSlurm(), threading.Event())
    server.start()
    server.close()
    with listener(installed) as sock, WakeSocket(installed.state / "ckptman.sock") as heard:
        sock.close()  # as a daemon that was killed leaves it
        assert installed.run("slurm-elastic-prolog", env=job())[0] == 0
        assert heard.wait(patience(10)) == [b'{"event": "job-start", "job": 7}']


def test_waiting_loads_next_to_nothing() -> None:
    loaded = modules_of("slurm-elastic-wait")
    assert "_socket" in loaded
    assert not loaded & {"socket", "signal", "json", "re", "logging", "subprocess", "contextlib"}


# Copies of files.


COPIES = ("copy_partitions=cloud", "copy_out_timeout=60", "copy_back_timeout=60")


class CopyDesk:
    """Answers clients at copy.sock with the lines that it is given, one connection each."""

    def __init__(self, installed: Installed, *answers: bytes) -> None:
        self.heard: list[dict[str, object]] = []
        self._answers = answers
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(installed.state / "copy.sock"))
        self._socket.listen(4)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._socket:
            for answer in self._answers:
                link, _ = self._socket.accept()
                with link, link.makefile("rb") as lines:
                    self.heard.append(json.loads(lines.readline()))
                    link.sendall(answer)

    def close(self) -> list[dict[str, object]]:
        self._thread.join(patience(LONG))
        return self.heard


@pytest.mark.parametrize(
    ("answers", "code"),
    [((b".\ngo\n",), 0), ((b"no too large\n",), 1), ((b".\n", b"", b".\n.\ngo\n"), 0)],
    ids=["copied", "refused", "the daemon restarts"],
)
def test_a_job_starts_when_its_files_are_there(
    installed: Installed, answers: tuple[bytes, ...], code: int
) -> None:
    """Without the daemon's prolog.sock, too: then it waits for the daemon."""
    installed.settings(*COPIES)
    desk = CopyDesk(installed, *answers)
    assert installed.run("slurm-elastic-prolog", env=job(partition="cloud"))[0] == code
    said = {"job": 7, "nodes": "pub[1-2]", "partition": "cloud", "phase": "out"}
    heard = desk.close()
    assert all(55 < float(str(line.pop("remaining"))) <= 60 for line in heard)
    assert heard == [said] * len(answers)


def test_a_job_never_starts_without_python_and_files(installed: Installed) -> None:
    installed.settings(*COPIES, "python=/nonexistent")
    assert installed.run("slurm-elastic-prolog", env=job(partition="cloud"))[0] == 1
    installed.settings("copy_partitions=other", "python=/nonexistent")
    assert installed.run("slurm-elastic-prolog", env=job(partition="cloud"))[0] == 0


def test_a_line_feed_in_a_reason_starts_no_job(installed: Installed) -> None:
    installed.settings(*COPIES)
    desk = CopyDesk(installed, b".\nno files of /home/a/x\ngo on are too large\n")
    assert installed.run("slurm-elastic-prolog", env=job(partition="cloud"))[0] == 1
    desk.close()


@pytest.mark.parametrize("partition", ["batch,cloud", "cloud,batch"])
def test_files_are_copied_for_a_job_of_several_partitions(
    installed: Installed, partition: str
) -> None:
    installed.settings(*COPIES)
    desk = CopyDesk(installed, b"no too large\n", b"go\n")
    assert installed.run("slurm-elastic-prolog", env=job(partition=partition))[0] == 1
    assert installed.run("slurm-elastic-epilog", env=job(partition=partition))[0] == 0
    assert [heard["phase"] for heard in desk.close()] == ["out", "back"]


def test_sigterm_while_files_are_copied_never_starts_the_job_without_them(
    installed: Installed,
) -> None:
    installed.settings(*COPIES)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(installed.state / "copy.sock"))
        sock.listen(1)
        process = installed.start("slurm-elastic-prolog", env=job(), blocked=[signal.SIGTERM])
        client, _ = sock.accept()
        with client:
            process.terminate()
            assert ends(process) == 1


def test_a_boot_and_a_copy_share_slurms_time(installed: Installed, daemon: PrologServer) -> None:
    """The boot takes all of it. The daemon is still asked, so that it can hold the job."""
    installed.settings(*COPIES, "whole_timeout=3")
    desk = CopyDesk(installed, b"no time is over\n")
    began = time.monotonic()
    assert installed.run("slurm-elastic-prolog", env=job())[0] == 1
    assert time.monotonic() - began < 30, "not the 60 s of each wait"
    (heard,) = desk.close()
    assert float(str(heard["remaining"])) <= 3


@pytest.mark.parametrize("kind", ["prolog", "epilog"])
def test_the_sites_own_program_is_a_part_of_slurms_time(
    installed: Installed, tmp_path: Path, kind: str
) -> None:
    theirs = site_program(tmp_path, "sleep 2")
    terms = ("whole_timeout=1000", "copy_out_timeout=5000", "copy_back_timeout=5000")
    installed.settings("copy_partitions=cloud", *terms, f"site_{kind}={theirs}")
    desk = CopyDesk(installed, b"go\n")
    assert installed.run(f"slurm-elastic-{kind}", env=job(partition="cloud"))[0] == 0
    (heard,) = desk.close()
    assert 900 < float(str(heard["remaining"])) <= 998


def test_files_that_do_not_come_requeue_the_job(installed: Installed) -> None:
    installed.settings(*COPIES, "copy_out_timeout=2")
    assert installed.run("slurm-elastic-prolog", env=job(partition="cloud"))[0] == 1


@pytest.mark.parametrize("broken", [
    "state_dir=/nonexistent", "copy_out_timeout=soon", "whole_timeout=soon", "prolog_timeout=soon",
])  # fmt: skip
def test_a_prolog_that_fails_starts_no_job_without_its_files(
    installed: Installed, broken: str
) -> None:
    installed.settings(*COPIES, "copy_out_timeout=1", broken)
    assert installed.run("slurm-elastic-prolog", env=job(partition="cloud"))[0] == 1
    assert installed.run("slurm-elastic-prolog", env=job(partition="onprem"))[0] == 0


def test_a_job_starts_when_its_files_are_there_after_the_state_directory_is_mounted(
    installed: Installed,
) -> None:
    installed.settings(*COPIES)
    away = installed.state.rename(installed.state.with_name("away"))
    process = installed.start("slurm-elastic-prolog", env=job(partition="cloud"))
    assert process.stderr is not None
    assert b"FileNotFoundError" in process.stderr.readline()
    away.rename(installed.state)
    desk = CopyDesk(installed, b"go\n")
    assert ends(process) == 0
    assert len(desk.close()) == 1


def test_the_epilog_waits_until_the_files_are_back(installed: Installed) -> None:
    installed.settings(*COPIES)
    desk = CopyDesk(installed, b"", b"go\n")
    assert installed.run("slurm-elastic-epilog", env=job(partition="cloud"))[0] == 0
    assert [heard["phase"] for heard in desk.close()] == ["back", "back"]
    installed.settings(*COPIES, "copy_back_timeout=1")
    assert installed.run("slurm-elastic-epilog", env=job(partition="cloud"))[0] == 0, "bounded"
