"""A port for one user alone, by the kernel's own firewall."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import port_guard as guards
from slurm_elastic.machine.ckptroot.port_guard import Guard, guarded

from .helpers import ROOT, eventually

pytestmark = ROOT

USER, OTHER = 65534, 65533
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)"


def reaches(port: int, uid: int, host: str = "127.0.0.1") -> bool:
    """Whether that user's program can connect to it."""
    command = ["/usr/bin/python3", "-I", "-c", CONNECT, host, str(port)]
    done = subprocess.run(command, user=uid, group=uid, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "ConnectionRefusedError" in done.stderr, done.stderr
    return done.returncode == 0


@pytest.fixture
def guard() -> Iterator[Guard]:
    made = guarded(USER)
    if made is None:
        pytest.skip("nft is missing or may not set rules here")
    yield made
    made.close()


def tables() -> str:
    listed = ["nft", "list", "tables"]
    return subprocess.run(listed, capture_output=True, text=True, check=False).stdout


def test_its_user_and_root_reach_it_and_nobody_else(guard: Guard) -> None:
    with socket.create_server(("", guard.port)):
        assert reaches(guard.port, USER)
        assert reaches(guard.port, 0)
        assert not reaches(guard.port, OTHER)
        assert not reaches(guard.port, OTHER, "127.0.0.2"), "by no address of the host"
        guard.close()
        assert reaches(guard.port, OTHER)


def test_other_ports_stay_everybodys(guard: Guard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert other.getsockname()[1] != guard.port
        assert reaches(other.getsockname()[1], OTHER)


def test_it_ends_with_its_session_and_by_no_signal_to_the_jobs_processes() -> None:
    code = (
        "import os, signal, sys\n"
        "from slurm_elastic.machine.ckptroot.port_guard import guarded\n"
        f"made = guarded({USER})\n"
        "print(made.port if made else 0, made.owner.pid if made else 0, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        port, owner = map(int, made.stdout.readline().split())
        if not port:
            made.kill()
            pytest.skip("nft is missing or may not set rules here")
        assert os.getsid(owner) == owner, (
            "what ends the job's process group or session ends no rule"
        )
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            subprocess.run(["kill", f"-{number.value}", str(owner)], check=True)
        with socket.create_server(("", port)):
            assert not reaches(port, OTHER)
            made.kill()
            made.wait()
            eventually(lambda: f"slurm_elastic_port_{port}\n" not in tables())
            assert reaches(port, OTHER)


def test_without_nft_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_elastic.machine.ckptroot.port_guard.PATH", {"PATH": "/nowhere"})
    assert guarded(USER) is None


# by a stand-in for nft


NFT = """#!/bin/sh
if [ "$1" = -i ]; then
  echo $$ >"$0.owner"
  read rules
  echo "$rules" >"$0.rules"
  exec sleep 600
fi
echo "$*" >"$0.asked"
exit $(cat "$0.code")
"""


class Nft:
    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program = place / "nft"
        self.program.write_text(NFT)
        self.program.chmod(0o755)
        self.says(0)
        monkeypatch.setattr(guards, "PATH", {"PATH": f"{place}:/usr/bin:/bin"})

    def says(self, code: int) -> None:
        (self.program.parent / "nft.code").write_text(str(code))

    def of(self, name: str) -> str:
        return (self.program.parent / f"nft.{name}").read_text().strip()


@pytest.fixture
def nft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nft:
    return Nft(tmp_path, monkeypatch)


def test_the_rules_are_of_its_own_port_and_stand_before_it_is_given_out(nft: Nft) -> None:
    made = guarded(USER)
    assert made is not None
    try:
        assert 20_000 <= made.port <= 32_000, "below what kernels give out, above services"
        eventually(lambda: (nft.program.parent / "nft.rules").exists() and nft.of("rules") != "")
        assert f"tcp dport {made.port} reject" in nft.of("rules")
        assert f"meta skuid {USER} accept" in nft.of("rules")
        assert nft.of("asked") == f"list table inet slurm_elastic_port_{made.port}"
        os.kill(made.owner.pid, 0)
    finally:
        made.close()
    assert made.owner.returncode == -signal.SIGKILL
    assert made.owner.stdin is not None
    assert made.owner.stdin.closed


def test_rules_that_do_not_stand_in_time_are_nobodys(
    nft: Nft, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it may list tables and set none."""
    started: list[subprocess.Popen[bytes]] = []
    starts, clock = subprocess.Popen, [0.0]

    def start(*words: Any, **more: Any) -> subprocess.Popen[bytes]:
        started.append(starts(*words, **more))
        return started[-1]

    nft.says(1)
    monkeypatch.setattr(guards.subprocess, "Popen", start)
    sleep = SimpleNamespace(
        monotonic=lambda: clock[0], sleep=lambda _: clock.append(clock.pop() + 2.0)
    )
    monkeypatch.setattr(guards, "time", sleep)
    assert guarded(USER) is None
    assert started[0].returncode == -signal.SIGKILL, "it is ended and waited for"
    assert clock == [6.0], "five seconds"


def test_an_nft_that_ends_at_once_is_not_waited_for(nft: Nft) -> None:
    nft.program.write_text("#!/bin/sh\nexit 1\n")
    assert guarded(USER) is None


def test_an_nft_that_has_ended_before_it_is_told_is_none(
    nft: Nft, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = subprocess.Popen

    def start(*words: Any, **more: Any) -> subprocess.Popen[bytes]:
        process = starts(*words, **more)
        process.wait(60)
        return process

    nft.program.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setattr(guards.subprocess, "Popen", start)
    assert guarded(USER) is None


def test_ports_that_somebody_has_are_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken, socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        drawn = iter([*[taken.getsockname()[1]] * 49, port])
        monkeypatch.setattr(guards.random, "randint", lambda low, high: next(drawn))
        assert guards.free_port() == port
        assert next(drawn, None) is None
        drawn = iter([taken.getsockname()[1]] * 50)
        assert guards.free_port() is None
    monkeypatch.setattr(guards, "free_port", lambda: None)
    assert guarded(USER) is None


def test_the_jobs_other_hosts_reach_it_and_only_its_user_there() -> None:
    guard = guarded(USER, ["192.0.2.7", "192.0.2.8"])
    if guard is None:
        pytest.skip("nft is missing or may not set rules here")
    try:
        listed = ["nft", "list", "table", "inet", f"slurm_elastic_port_{guard.port}"]
        shown = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        accepts = f"ip saddr {{ 192.0.2.7, 192.0.2.8 }} tcp dport {guard.port} accept"
        assert accepts in shown
        assert guards.is_guarded_port(guard.port)
    finally:
        guard.close()


def test_on_another_host_of_the_job_only_its_user_and_root_connect() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        guard = guards.guarded_peer(USER, "127.0.0.1", port)
        if guard is None:
            pytest.skip("nft is missing or may not set rules here")
        try:
            assert reaches(port, USER)
            assert reaches(port, 0)
            assert not reaches(port, OTHER)
            assert reaches(port, OTHER, "127.0.0.2"), "that host's port alone"
        finally:
            guard.close()
        assert reaches(port, OTHER)
