"""Whoever answers for ever, slowly or at full speed, costs a bounded time and a bounded memory."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from botocore.config import Config as BotoConfig
from botocore.exceptions import HTTPClientError
from docker.errors import DockerException

from slurm_elastic.base.processes import asking
from slurm_elastic.base.processes.bounded import Exceeded, ReadBudget, bound_boto
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.base.bounded_http import BoundedSession
from slurm_elastic.providers.docker import client as docker_client
from slurm_elastic.providers.docker.settings import DockerHost
from slurm_elastic.providers.opennebula.client import open_server
from slurm_elastic.providers.opennebula.settings import OneTemplate, OpenNebulaCloud

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nContent-Length: 99999999999\r\n\r\n"
MOST = 1 << 20
BUFFERS = 16 << 20


class Endless:
    """An HTTP server whose every answer goes on for ever; ``sent`` counts the bytes of bodies,
    ``heard`` those of questions.
    """

    def __init__(self, piece: bytes, pause: float) -> None:
        self.sent = self.heard = 0
        self._piece, self._pause = piece, pause
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while not self._over.is_set():
                link, _ = self._listener.accept()
                with link, contextlib.suppress(OSError):
                    link.settimeout(1)
                    self.heard += len(link.recv(65536))
                    link.sendall(HEAD)
                    while not self._over.is_set():
                        with contextlib.suppress(TimeoutError):
                            self.sent += link.send(self._piece)
                        self._over.wait(self._pause)

    def close(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)


@pytest.fixture(params=[(b"x" * 65536, 0.0), (b"x", 0.05)], ids=["fast", "slowly"])
def endless(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endless]:
    for module in ("docker.client", "base.bounded_http", "opennebula.client"):
        monkeypatch.setattr(f"slurm_elastic.providers.{module}.ANSWER", MOST)
    server = Endless(*request.param)
    yield server
    server.close()


def ec2(url: str, _: Path) -> None:
    limits = BotoConfig(read_timeout=3, retries={"total_max_attempts": 1})
    client = boto3.client(
        "ec2", region_name="r", endpoint_url=url, config=limits, aws_access_key_id="a",
        aws_secret_access_key="b",
    )  # fmt: skip
    bound_boto(client, 3, MOST)
    client.describe_instances()


def openstack(url: str, _: Path) -> None:
    session = BoundedSession()
    with session.within(3):
        session.get(url)


def opennebula(url: str, place: Path) -> None:
    auth = place / "auth"
    auth.write_text("user:password\n")
    auth.chmod(0o600)
    cloud = OpenNebulaCloud(
        name="one", location=Location.ON_PREMISES, endpoint=f"{url}/RPC2", auth_file=str(auth),
        api_timeout=3.0, types={"t": OneTemplate(cpus=1, memory=1, template=1)},
    )  # fmt: skip
    open_server(cloud).system.version()


def docker(url: str, _: Path) -> None:
    with docker_client.until(time.monotonic() + 3):
        docker_client.open_client(DockerHost(url=url.replace("http", "tcp")))


@pytest.mark.parametrize("ask", [ec2, openstack, opennebula, docker])
def test_a_cloud_that_answers_for_ever_ends_a_call(
    endless: Endless, tmp_path: Path, ask: Callable[[str, Path], None]
) -> None:
    with pytest.raises((OSError, HTTPClientError, DockerException)):
        ask(endless.url, tmp_path)
    assert endless.sent < MOST + BUFFERS


@pytest.mark.parametrize("looks", [0, 1], ids=["at once", "once there is a connection"])
@pytest.mark.parametrize("ask", [ec2, openstack, opennebula, docker])
def test_where_nothing_may_be_asked_no_cloud_is_called(
    tmp_path: Path, ask: Callable[[str, Path], None], looks: int
) -> None:
    """A head may have stood still between its look at who acts and what it sends."""
    left = [None] * looks

    def acts() -> None:
        if not left:
            raise OSError("b (epoch 2) acts, not a")
        left.pop()

    server = Endless(b"x", 0.0)
    asking.set_gate(acts)
    try:
        # botocore says no more at first, and asks once more, which is refused at once.
        words = r"b \(epoch 2\) acts, not a|Connection was closed before"
        with pytest.raises((OSError, HTTPClientError, DockerException), match=words):
            ask(server.url, tmp_path)
    finally:
        asking.set_gate(None)
        server.close()
    assert not left
    assert server.heard == 0


def test_a_budget_is_of_bytes_and_of_time() -> None:
    now = 0.0
    budget = ReadBudget(10, 5.0, lambda: now)
    budget.take(10)
    with pytest.raises(Exceeded, match="more than 10 bytes"):
        budget.take(1)
    now = 5.0
    with pytest.raises(TimeoutError):
        budget.remaining_s()
