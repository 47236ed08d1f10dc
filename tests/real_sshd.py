"""A real sshd (Debian's openssh-server) on a port and with keys of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from needs import missing
from patience import patience

from tests.ports import free_ports

_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {host_key}
AuthorizedKeysFile {place}/authorized
PidFile none
UsePAM {pam}
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
"""


def why_not() -> str | None:
    """Why this machine cannot run one; None if it can."""
    if os.getuid() != 0:
        return "sshd logs root in, which needs root"
    return missing("sshd") or None


def root_is_locked() -> bool:
    """Whether sshd without PAM would refuse root, whatever key it shows."""
    lines = Path("/etc/shadow").read_text().splitlines()
    return any(line.startswith("root:!") for line in lines)


def make_key(path: Path, kind: str = "ed25519") -> str:
    """A new key pair; the public key's line."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "test", "-f", str(path)], check=True
    )
    return path.with_suffix(".pub").read_text().strip()


class Sshd:
    """Listens on loopback once it is started; ``key`` is root's way in, ``known_hosts`` has its own."""

    def __init__(self, place: Path) -> None:
        if reason := why_not():
            pytest.skip(reason)
        place.mkdir()
        self.place = place
        (self.port,) = free_ports(1)
        self.host_key = make_key(place / "host")
        self.key, self.known_hosts = place / "key", place / "known_hosts"
        (place / "authorized").write_text(make_key(self.key) + "\n")
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {self.host_key}\n")
        text = _CONFIG.format(port=self.port, host_key=place / "host", place=place,
                              pam="yes" if root_is_locked() else "no")  # fmt: skip
        (place / "config").write_text(text)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """Its log so far."""
        return (self.place / "log").read_text()

    @contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.stop()

    def start(self) -> None:
        """Returns when it listens."""
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd does not start without it
        command = ["/usr/sbin/sshd", "-D", "-e", "-f", str(self.place / "config")]
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)
        try:
            self._wait(self.process)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """The listener and the connections that it serves."""
        if self.process is None:
            return
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with suppress(OSError):
            for pid in children.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.process = None

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + patience(60)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 5).close()
            except OSError:
                assert process.poll() is None, self.log
                assert time.monotonic() < deadline, self.log
                time.sleep(0.05)
            else:
                return
