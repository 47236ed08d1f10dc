"""The agent's socket: the kernel says who asks before anything is spent on the answer."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import eventually

from slurm_elastic.base.errors import AuthError, TransientError
from slurm_elastic.base.processes.bounded import ReadBudget, exchange
from slurm_elastic.config import Cluster
from slurm_elastic.machine.local.listening import MAX_CLIENTS, MAX_LINE_BYTES, RootServer
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.local.provider import LocalProvider
from slurm_elastic.providers.local.settings import LocalCloud
from tests.threads import new_threads

STRANGER = {os.getuid() + 12_345}


@contextlib.contextmanager
def serving(path: Path, uids: set[int]) -> Iterator[None]:
    server = RootServer(path, uids, bytes.strip)
    server.start()
    try:
        yield
    finally:
        server.close()


def client(path: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(60)
    link.connect(str(path))
    return link


def provider(path: Path) -> LocalProvider:
    settings = LocalCloud(
        name="host", location=Location.ON_PREMISES, socket=str(path), api_timeout=5.0
    )
    return LocalProvider(settings, Cluster(name="c", uuid="u"))


def test_whoever_may_not_ask_costs_no_thread_and_learns_why(tmp_path: Path) -> None:
    with serving(tmp_path / "s", STRANGER):
        started = new_threads()
        links = [client(tmp_path / "s") for _ in range(60)]
        said = [link.makefile().readline() for link in links]
        assert started() == 0
        assert all("only root and SlurmUser may ask" in line for line in said)
        for link in links:
            link.close()
        with pytest.raises(AuthError, match="only root and SlurmUser may ask"):
            provider(tmp_path / "s").check()


def test_clients_are_bounded_and_a_place_is_given_back(tmp_path: Path) -> None:
    with serving(tmp_path / "s", {os.getuid()}):
        links = [client(tmp_path / "s") for _ in range(MAX_CLIENTS)]
        for link in links:
            assert exchange(link, b"hello", ReadBudget(100, 60)) == b"hello"
        with client(tmp_path / "s") as late:
            assert b"too many clients" in exchange(late, b"hello", ReadBudget(1000, 60))
        with pytest.raises(TransientError, match="too many clients"):
            provider(tmp_path / "s").check()
        for link in links:
            link.close()
        eventually(lambda: is_served(tmp_path / "s"))


def is_served(path: Path) -> bool:
    with client(path) as link:
        return exchange(link, b"hello", ReadBudget(1000, 60)) == b"hello"


def test_a_request_that_is_too_long_is_told_so(tmp_path: Path) -> None:
    with serving(tmp_path / "s", {os.getuid()}), client(tmp_path / "s") as link:
        assert b"4 MiB at most" in exchange(link, b"x" * (MAX_LINE_BYTES + 9), ReadBudget(1000, 60))


@pytest.mark.parametrize("piece", [b"x", b"x" * 65536], ids=["slowly", "fast"])
def test_an_agent_that_answers_for_ever_is_left(tmp_path: Path, piece: bytes) -> None:
    over = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def talk() -> None:
            link, _ = listener.accept()
            with link, contextlib.suppress(OSError):
                while not over.is_set():
                    link.sendall(piece)
                    over.wait(0.0 if len(piece) > 1 else 0.05)

        thread = threading.Thread(target=talk)
        thread.start()
        try:
            with pytest.raises(TransientError, match=r"does not answer|bytes came"):
                provider(tmp_path / "s").check()
        finally:
            over.set()
            thread.join(60)
