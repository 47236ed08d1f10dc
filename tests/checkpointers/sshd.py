"""A real sshd (Debian's openssh-server) with keys, port and configuration of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_ports

PROGRAM = "/usr/sbin/sshd"


class Sshd:
    """Listens on loopback; ``key`` is root's way in, ``known_hosts`` has its host key."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="se-sshd-", dir="/tmp"))
        self.home.chmod(0o755)
        self.port = free_ports(1)[0]
        self.key, self.known_hosts = self.home / "key", self.home / "known_hosts"
        for name in ("key", "host"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.home / name)]
            subprocess.run(command, check=True)
        host_key = (self.home / "host.pub").read_text()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {host_key}")
        (self.home / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {self.home}/host\n"
            f"AuthorizedKeysFile {self.home}/key.pub\nPidFile none\nUsePAM no\nStrictModes no\n"
            "PermitRootLogin prohibit-password\nPasswordAuthentication no\nPrintMotd no\n"
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd does not start without it
        log = open(self.home / "log", "ab")  # noqa: SIM115
        with log:
            self.process = subprocess.Popen(
                [PROGRAM, "-D", "-e", "-f", str(self.home / "sshd_config")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        until = time.monotonic() + 60
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 5),
            ):
                return
            assert time.monotonic() < until, (self.home / "log").read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        """The listener and the connections that it serves."""
        if self.process is not None:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            with contextlib.suppress(OSError):
                for pid in children.read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), 9)
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.home)


def running() -> Iterator[Sshd]:
    if os.geteuid() != 0:
        pytest.skip("sshd is started, which needs root")
    if not os.access(PROGRAM, os.X_OK):
        pytest.skip(f"{PROGRAM} is not installed (openssh-server)")
    server = Sshd()
    yield server
    server.close()
