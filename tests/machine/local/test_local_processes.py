"""Processes by pid and start time, and machines as all that runs on them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from patience import eventually

from slurm_elastic.machine.local import local_processes
from slurm_elastic.machine.local.local_processes import Process, SlurmdSettings

ENV = {"PATH": "/usr/bin:/bin:/usr/sbin"}


@pytest.fixture
def fake_slurmd(tmp_path):
    """A slurmd of shell: one job in its own session that orphans a daemon, as slurmstepd would."""
    path = tmp_path / "slurmd"
    path.write_text(
        "#!/bin/sh\n"
        f'echo "$@" > {tmp_path}/argv\n'
        f"env > {tmp_path}/env\n"
        f"setsid sh -c 'setsid sleep 1001 & echo $! > {tmp_path}/daemon; exec sleep 1000' &\n"
        f"echo $! > {tmp_path}/job\n"
        "wait\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture(params=[True, False], ids=["own UTS namespace", "none"])
def namespaces(request, monkeypatch):
    if request.param and not local_processes.has_namespaces():
        pytest.skip("this user may not make namespaces")
    monkeypatch.setattr(local_processes, "has_namespaces", lambda: request.param)


@pytest.fixture
def machine(tmp_path, fake_slurmd, namespaces):
    machine = SlurmdSettings(
        id=f"m-{os.getpid()}-{time.monotonic_ns()}",
        node="n1",
        directory=str(tmp_path / "machine"),
        log=str(tmp_path / "log"),
        conf=str(tmp_path / "slurm.conf"),
        slurmd=str(fake_slurmd),
    )
    yield machine
    local_processes.power_off(machine.directory)


def pid_in(path: Path) -> int:
    return eventually(lambda: path.exists() and path.read_text().strip() and int(path.read_text()))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_log_that_is_a_link_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "log").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        local_processes.spawn(["echo", "spoiled"], ENV, log=str(tmp_path / "log"))
    assert victim.read_text() == "precious"


def test_a_started_slurmd_gets_its_node_configuration_and_a_session(machine, tmp_path):
    process = local_processes.start(machine)
    pid_in(tmp_path / "job")
    assert (tmp_path / "argv").read_text().split() == [
        *("-N", "n1", "-b", "-D", "-f"),
        machine.conf,
    ]
    environment = (tmp_path / "env").read_text().splitlines()
    assert f"SLURM_CONF={machine.conf}" in environment
    assert not [line for line in environment if line.startswith("AWS_")]
    assert os.getsid(process.pid) == process.pid
    assert local_processes.alive(process)


def test_configless_asks_the_server_instead_of_a_file(machine, tmp_path):
    local_processes.start(
        SlurmdSettings(
            **{f: getattr(machine, f) for f in machine.__struct_fields__}
            | {"conf_server": "127.0.0.1:6817"}
        )
    )
    pid_in(tmp_path / "job")
    assert (tmp_path / "argv").read_text().split()[-2:] == ["--conf-server", "127.0.0.1:6817"]


def test_power_off_ends_jobs_in_other_sessions_and_their_daemons(machine, tmp_path):
    process = local_processes.start(machine)
    job, daemon = pid_in(tmp_path / "job"), pid_in(tmp_path / "daemon")
    members = {p.pid for p in local_processes.belonging(machine.directory)}
    assert {process.pid, job, daemon} <= members
    local_processes.power_off(machine.directory, slurmd=process)
    assert not any(running(pid) for pid in (process.pid, job, daemon))
    assert not local_processes.alive(process)


def test_power_off_still_finds_the_jobs_when_slurmd_was_killed_before(machine, tmp_path):
    process = local_processes.start(machine)
    job = pid_in(tmp_path / "job")
    pid_in(tmp_path / "daemon")
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not local_processes.alive(process))
    assert running(job)
    local_processes.power_off(machine.directory)
    assert not running(job)


def test_power_off_leaves_other_machines_alone(machine, tmp_path):
    other = local_processes.spawn(
        ["sleep", "1000"], ENV | {local_processes.MARKER: "another"}, log="/dev/null"
    )
    try:
        local_processes.start(machine)
        pid_in(tmp_path / "daemon")
        local_processes.power_off(machine.directory)
        assert local_processes.alive(other)
    finally:
        local_processes.stop(other)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_a_user_cannot_get_a_process_killed_by_imitating_the_marker(machine):
    victim = local_processes.spawn(
        ["sleep", "1000"],
        ENV | {local_processes.MARKER: machine.directory},
        log="/dev/null",
        user="nobody",
    )
    try:
        eventually(lambda: Path(f"/proc/{victim.pid}/comm").read_text() == "sleep\n")
        local_processes.power_off(machine.directory)
        assert local_processes.alive(victim)
    finally:
        local_processes.stop(victim)


def test_a_shell_that_stands_in_the_machines_directory_is_no_member(machine):
    os.mkdir(machine.directory)
    shell = local_processes.spawn(
        ["sleep", "1000"], ENV, log="/dev/null", directory=machine.directory
    )
    try:
        eventually(lambda: Path(f"/proc/{shell.pid}/comm").read_text() == "sleep\n")
        assert local_processes.belonging(machine.directory) == []
    finally:
        local_processes.stop(shell)


def test_a_reused_pid_is_another_process():
    me = os.getpid()
    assert not local_processes.alive(Process(pid=me, start=1))
    local_processes.send(Process(pid=me, start=1), signal.SIGKILL)  # we live on


def test_blocked_and_ignored_signals_are_not_inherited(tmp_path):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = local_processes.spawn(["sleep", "1000"], ENV, log="/dev/null")
    finally:
        signal.signal(signal.SIGINT, old)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    status = Path(f"/proc/{child.pid}/status").read_text().splitlines()
    masks = {
        k: int(v, 16)
        for k, _, v in (line.partition(":") for line in status)
        if k.startswith("Sig") and k != "SigQ"
    }
    assert masks["SigBlk"] == 0
    assert not masks["SigIgn"] & 1 << (signal.SIGINT - 1)
    local_processes.stop(child, 10)
    assert not local_processes.alive(child)


def test_what_ignores_sigterm_is_killed_after_the_deadline(tmp_path):
    child = local_processes.spawn(
        ["sh", "-c", f"trap '' TERM; touch {tmp_path}/ready; while :; do sleep 0.1; done"],
        ENV,
        log="/dev/null",
    )
    eventually(lambda: (tmp_path / "ready").exists())
    local_processes.stop(child, 0.3)
    assert not local_processes.alive(child)


def test_signalling_what_is_gone_is_no_error():
    child = local_processes.spawn(["true"], ENV, log="/dev/null")
    assert local_processes.wait_gone([child], 60)
    local_processes.send(child, signal.SIGTERM)
    local_processes.stop(child)


def test_the_memory_of_a_users_process_is_not_asked_for(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(local_processes, "_is_trusted", lambda pid: pid == 1)
    monkeypatch.setattr(local_processes, "_environment", lambda pid: asked.append(pid) or [])
    assert not any(local_processes._has_marker(pid, "/machine") for pid in (1, 2))
    assert asked == [1]
