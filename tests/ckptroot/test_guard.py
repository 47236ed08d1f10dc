"""A port for one user alone, by the kernel's own firewall."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from needs import ROOT_PART
from patience import eventually

from slurm_elastic.ckptroot.guard import Guard, guarded

pytestmark = ROOT_PART

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
        "from slurm_elastic.ckptroot.guard import guarded\n"
        f"made = guarded({USER})\n"
        "print(made.port if made else 0, made._owner.pid if made else 0, flush=True)\n"
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
    monkeypatch.setattr("slurm_elastic.ckptroot.guard._PATH", {"PATH": "/nowhere"})
    assert guarded(USER) is None
