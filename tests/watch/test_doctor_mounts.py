"""``doctor`` and the servers of ``join.mounts``: the finding for each answer, and the question itself
against a server that speaks as RFC 7530 says.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slurm_elastic.config import Config, configfile
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.watch.doctor import nfs
from slurm_elastic.watch.doctor.mounts import examine
from slurm_elastic.watch.doctor.nfs import NfsDirectory, NfsError
from tests.config.test_mounts import HOME, NFS, site


def config(mounts: str = HOME) -> Config:
    return configfile.parse(site(mounts, NFS), "site.yaml")


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)


def examined(answer: NfsDirectory | Exception, mounts: str = HOME) -> Finding:
    def probe(host: str, directory: str, _timeout: float) -> NfsDirectory:
        assert (host, directory) == ("10.99.0.1", "/home")
        if isinstance(answer, Exception):
            raise answer
        return answer

    (finding,) = examine(config(mounts), probe)
    return finding


def test_a_server_that_has_the_directory_is_all_right() -> None:
    finding = examined(NfsDirectory(owner="0"))
    assert finding.level is FindingLevel.OK
    assert finding.observed == "10.99.0.1:/home answers, for /home on aws"


@pytest.mark.parametrize(
    ("error", "observed", "advice"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "refused", "start the NFS server"),
        (NfsError("no such directory for this host"), "no such", "export it to 10.99.0.0/16"),
    ],
)
def test_a_server_without_the_directory_is_told_with_what_follows(
    error: Exception, observed: str, advice: str
) -> None:
    finding = examined(error)
    assert finding.level is FindingLevel.WRONG
    assert observed in finding.observed
    assert "machines of aws start no slurmd without /home" in finding.expected
    assert advice in finding.advice
    spare = "[{path: /home, from: 'head:/home', required: false}]"
    assert examined(error, spare).level is FindingLevel.NOTE


def test_a_refusal_of_a_users_port_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    finding = examined(NfsError("no access for this host"))
    assert (finding.level, finding.advice) == (FindingLevel.NOTE, "run doctor as root")


def test_a_server_that_names_users_is_told() -> None:
    finding = examined(NfsDirectory(owner="root@example.org"))
    assert finding.level is FindingLevel.NOTE
    assert "names users as root@example.org" in finding.observed


def test_no_mounts_are_no_finding() -> None:
    assert list(examine(config("[]"))) == []


def opaque(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data + b"\0" * (-len(data) % 4)


def accepted(results: bytes) -> bytes:
    return struct.pack(">IIIIII", 1, 1, 0, 0, 0, 0) + results


FILLED = accepted(
    struct.pack(">I", 0) + opaque(b"") + struct.pack(">I", 3)
    + struct.pack(">II", 24, 0) + struct.pack(">II", 15, 0) + struct.pack(">II", 9, 0)
    + struct.pack(">III", 2, 0, 16) + opaque(opaque(b"root@site"))
)  # fmt: skip
REFUSED = accepted(struct.pack(">I", 2) + opaque(b"") + struct.pack(">I", 2))
OLD = struct.pack(">IIIIII", 1, 1, 0, 0, 0, 2) + struct.pack(">II", 2, 3)
DENIED = struct.pack(">IIII", 1, 1, 1, 1)
NO_MINOR = accepted(struct.pack(">I", 10021) + opaque(b"") + struct.pack(">I", 0))


@contextmanager
def server(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A host that answers one request, in two fragments; the requests."""
    requests: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            requests.append(connection.recv(1 << 16))
            first, second = answer[:5], answer[5:]
            connection.sendall(struct.pack(">I", len(first)) + first)
            connection.sendall(struct.pack(">I", 1 << 31 | len(second)) + second)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(nfs, "NFS_PORT", listener.getsockname()[1])
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield requests
        thread.join()


def test_the_question_is_one_compound_and_needs_no_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(FILLED, monkeypatch) as requests:
        assert nfs.ask("127.0.0.1", "/home", 5.0) == NfsDirectory(owner="root@site")
    assert b"\x00\x00\x00\x04home" in requests[0]
    assert struct.unpack(">I", requests[0][:4])[0] == 1 << 31 | (len(requests[0]) - 4)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (REFUSED, "no such directory for this host"), (OLD, "it speaks no NFS 4"),
        (DENIED, "it refuses the request of root"), (b"HTTP/1.1 400 Bad Request", "refuses|not NFS"),
        (b"12345", "not NFS"),
    ],
)  # fmt: skip
def test_a_refusal_is_told(answer: bytes, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(answer, monkeypatch), pytest.raises(NfsError, match=why):
        nfs.ask("127.0.0.1", "/home", 5.0)


def test_a_server_without_nfs_4_0_is_there_and_no_more_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server(NO_MINOR, monkeypatch):
        assert nfs.ask("127.0.0.1", "/home", 5.0) == NfsDirectory(owner="")


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nfs, "NFS_PORT", port)
        with pytest.raises(ConnectionRefusedError):
            nfs.ask("127.0.0.1", "/home", 5.0)
