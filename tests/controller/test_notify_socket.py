"""The socket by which slurmctld's programs wake the daemon."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience

from slurm_elastic.controller import notify_socket
from slurm_elastic.controller.notify_socket import WakeSocket

LONG = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "wake.sock"


@pytest.fixture
def wake(path: Path) -> Iterator[WakeSocket]:
    with WakeSocket(path) as opened:
        yield opened


def send(path: Path, *payloads: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        here = os.open(path.parent, os.O_RDONLY)
        for payload in payloads:
            sender.sendto(payload, f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def test_nothing_is_open_after_it_is_closed(path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    one = WakeSocket(path)
    one.close()
    one.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_gives_all_that_has_come_in_order(wake: WakeSocket, path: Path) -> None:
    send(path, b"one", b"two", b"")
    assert wake.wait(patience(10)) == [b"one", b"two", b""]
    assert wake.wait(0) == []


def test_a_datagram_ends_the_wait(wake: WakeSocket, path: Path) -> None:
    threading.Timer(0.1, send, (path, b"up")).start()
    began = time.monotonic()
    assert wake.wait(LONG) == [b"up"]
    assert time.monotonic() - began < LONG


def test_a_ring_of_another_thread_ends_the_wait_once(wake: WakeSocket) -> None:
    threading.Timer(0.1, wake.ring).start()
    began = time.monotonic()
    assert wake.wait(LONG) == []
    assert time.monotonic() - began < LONG
    wake.ring()
    wake.ring()
    assert wake.wait(patience(60)) == []
    assert waits_for_a_ring(wake), "rings end one wait"


def waits_for_a_ring(wake: WakeSocket) -> bool:
    waited = threading.Event()
    waiter = threading.Thread(target=lambda: (wake.wait(LONG), waited.set()))
    waiter.start()
    too_early = waited.wait(0.2)
    wake.ring()
    waiter.join(patience(30))
    return waited.is_set() and not too_early


def test_without_a_socket_the_time_passes_and_a_ring_ends_it_all_the_same() -> None:
    deaf = WakeSocket(None)
    threading.Timer(0.1, deaf.ring).start()
    began = time.monotonic()
    assert deaf.wait(LONG) == []
    assert time.monotonic() - began < LONG
    deaf.ring()
    assert deaf.wait(LONG) == []
    assert time.monotonic() - began < LONG, "a ring that came before the wait counts"
    assert waits_for_a_ring(deaf), "a ring ends one wait"
    assert deaf.wait(-1.0) == []
    deaf.close()


def test_nothing_comes(wake: WakeSocket) -> None:
    assert wake.wait(0.05) == []
    assert wake.wait(-1) == []


def test_the_file_is_for_owner_and_group_alone(wake: WakeSocket, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_crashed_daemons_socket_is_replaced(path: Path) -> None:
    crashed = WakeSocket(path)
    with WakeSocket(path) as second:
        send(path, b"hello")
        assert second.wait(patience(10)) == [b"hello"]
        crashed.close()
        assert path.exists(), "the second one's file was removed by the first"
    assert not path.exists()


def test_anything_else_than_a_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(FileExistsError, match=r"wake\.sock exists and is no socket"):
        WakeSocket(path)
    assert path.read_text() == "precious"


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        WakeSocket(tmp_path / "absent" / "wake.sock")


def test_a_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with WakeSocket(deep / "wake.sock") as wake:
        send(deep / "wake.sock", b"far")
        assert wake.wait(patience(10)) == [b"far"]
    assert os.listdir(deep) == []


def test_so_many_datagrams_are_taken_at_once(
    wake: WakeSocket, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert notify_socket.MAX_DRAINED == 1000
    monkeypatch.setattr(notify_socket, "MAX_DRAINED", 3)
    send(path, *[b"x"] * 5)
    assert [len(wake.wait(patience(10))) for _ in range(2)] == [3, 2]


def test_a_flood_is_taken_in_parts(wake: WakeSocket, path: Path) -> None:
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            send(path, *[b"x"] * 10)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        assert 0 < len(wake.wait(patience(10))) <= 1000
    finally:
        stop.set()
        while thread.is_alive():
            wake.wait(0.01)
            thread.join(0.01)
