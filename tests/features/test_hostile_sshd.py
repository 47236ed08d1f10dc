"""A machine that talks for ever over SSH costs a bounded number of bytes and a bounded time."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import paramiko
import pytest

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.checkpointers.ssh import Shells
from slurm_elastic.config.sections.checkpoint import BlcrSettings
from slurm_elastic.features.network.host_keys import HostKey, printed_keys
from slurm_elastic.features.network.ssh_file import MAX_RECEIVED_BYTES, FileTarget, PushError, push

BUFFERS = 16 << 20
"""Bytes that paramiko's window and the kernel's buffers may hold beside what is read."""
PIECE = b"x" * 32768
KEY = paramiko.ECDSAKey.generate()

Talk = Callable[["Hostile", socket.socket], None]


class Hostile(paramiko.ServerInterface):
    """Lets everybody in; ``talk`` serves each connection. ``sent`` counts bytes."""

    def __init__(self, talk: Talk) -> None:
        self.sent = 0
        self.over = threading.Event()
        self.asked = threading.Event()
        self._talk = talk
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError, EOFError, paramiko.SSHException):
            while True:
                link, _ = self._listener.accept()
                self._talk(self, link)

    def close(self) -> None:
        self.over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.asked.set()
        return True


def in_session(send: Callable[[Hostile, paramiko.Channel], object]) -> Talk:
    """The talk of a server that logs the client in and has its command begin."""

    def talk(server: Hostile, link: socket.socket) -> None:
        transport = paramiko.Transport(link)
        transport.add_server_key(KEY)
        transport.start_server(server=server)
        channel = transport.accept(60)
        assert channel is not None
        server.asked.wait(60)
        with suppress(OSError, EOFError):
            while not server.over.is_set() and transport.is_active():
                send(server, channel)
        transport.close()

    return talk


def flood(server: Hostile, channel: paramiko.Channel) -> None:
    channel.settimeout(1)
    with suppress(TimeoutError):
        server.sent += channel.send_stderr(PIECE)


def trickle(server: Hostile, channel: paramiko.Channel) -> None:
    server.sent += channel.send_stderr(b"x")
    server.over.wait(0.05)


def banner(server: Hostile, link: socket.socket) -> None:
    """Never ends the line that the protocol begins with."""
    link.settimeout(1)
    with suppress(OSError):
        while not server.over.is_set():
            with suppress(TimeoutError):
                server.sent += link.send(PIECE)
    link.close()


def slow_banner(server: Hostile, link: socket.socket) -> None:
    with suppress(OSError):
        while not server.over.is_set():
            server.sent += link.send(b"x")
            server.over.wait(0.05)
    link.close()


TALKS = {
    "floods stderr": in_session(flood),
    "trickles stderr": in_session(trickle),
    "floods before the login": banner,
    "trickles before the login": slow_banner,
}


@contextmanager
def hostile(talk: Talk) -> Iterator[Hostile]:
    server = Hostile(talk)
    try:
        yield server
    finally:
        server.close()


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
def test_a_machine_that_talks_for_ever_ends_a_push(talk: Talk) -> None:
    with hostile(talk) as server:
        target = FileTarget(
            address="127.0.0.1", port=server.port, user="root", path="/k", owner="a:b", mark="/m/k",
            timeout=4.0,
        )  # fmt: skip
        known = [HostKey(KEY.get_name(), KEY.get_base64())]
        with pytest.raises(PushError) as caught:
            push(target, paramiko.ECDSAKey.generate(), known, b"secret")
        assert len(str(caught.value)) < 400
        assert server.sent < MAX_RECEIVED_BYTES + BUFFERS


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
def test_a_node_that_talks_for_ever_ends_a_command(talk: Talk, tmp_path: Path) -> None:
    with hostile(talk) as server:
        known, key = tmp_path / "known", tmp_path / "key"
        known.write_text(f"[127.0.0.1]:{server.port} {KEY.get_name()} {KEY.get_base64()}\n")
        paramiko.ECDSAKey.generate().write_private_key_file(str(key))
        settings = BlcrSettings(key=str(key), known_hosts=str(known), port=server.port)
        shells = Shells(settings)
        with pytest.raises(CheckpointError, match=r"127\.0\.0\.1: SSH"):
            shells.run("127.0.0.1", ["true"], deadline=time.time() + 5)
        shells.close()
        assert server.sent < (4 << 20) + BUFFERS


def test_a_console_full_of_beginnings_is_read_in_one_pass() -> None:
    """Each beginning without an end would be searched to the last character."""
    line = f"ssh-ed25519 {'A' * 68}\n"
    begin, end = (f"-----{word} SSH HOST KEY KEYS-----\n" for word in ("BEGIN", "END"))
    assert printed_keys(begin * 2_000_000) == ()
    assert printed_keys(begin * 2_000_000 + line + end) == (HostKey("ssh-ed25519", "A" * 68),)
    many = "".join(f"ssh-ed25519 {n:068d}\n" for n in itertools.islice(itertools.count(), 1000))
    assert len(printed_keys(begin + many + end)) == 16
