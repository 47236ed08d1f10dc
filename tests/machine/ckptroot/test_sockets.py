"""Which sockets of a job can be there again elsewhere, by those of the test itself."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import kernel, sockets
from slurm_elastic.machine.ckptroot.images import Stream
from slurm_elastic.machine.ckptroot.site import RequestRefused

from .helpers import ROOT, owner

HERE = [1 << 30, os.getpid()]
LOOP, MAPPED = b"\x7f\0\0\x01", b"\0" * 10 + b"\xff\xff\x7f\0\0\x01"


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """No other sockets of this process than those that a test puts there."""
    kept: list[socket.socket] = []
    every = sockets.descriptors_of

    def some(pid: int) -> Iterator[tuple[int, str]]:
        own = {one.fileno() for one in kept}
        return (found for found in every(pid) if found[0] in own)

    monkeypatch.setattr(sockets, "descriptors_of", some)
    yield kept
    for one in kept:
        one.close()


def pair(kept: list[socket.socket], address: str = "127.0.0.1") -> None:
    """A connection whose both ends are here, and no listener."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        client = socket.create_connection(server.getsockname()[:2])
        kept += [client, server.accept()[0]]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_connection_between_two_of_its_own_is_its_own(
    only: list[socket.socket], address: str
) -> None:
    assert not sockets.are_its_own(HERE), "there is none"
    pair(only, address)
    assert sockets.are_its_own(HERE)
    assert sockets.stays_here(HERE) == ""
    pair(only, address)
    only.pop().close()
    assert not sockets.are_its_own(HERE), "the other end is not there any more"


def test_one_whose_ends_are_of_two_families_is_its_own(only: list[socket.socket]) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        only += [socket.create_connection(("127.0.0.1", server.getsockname()[1]))]
        only += [server.accept()[0]]
    assert sockets.are_its_own(HERE)


def test_one_that_nobody_has_accepted_is_not(only: list[socket.socket]) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    only += [server, socket.create_connection(server.getsockname())]
    assert not sockets.are_its_own(HERE)


def test_a_socket_at_an_address_of_its_node_stays_here(
    only: list[socket.socket], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sockets, "NONLOCAL", tmp_path / "none")
    for address in ("127.0.0.1", "0.0.0.0"):
        only += [socket.create_server((address, 0)), socket.socket(type=socket.SOCK_DGRAM)]
        only[-1].bind((address, 0))
    pair(only)
    assert sockets.stays_here(HERE) == ""
    one, end = sockets.sockets(HERE)[0], (ipaddress.ip_address("10.0.0.5"), 3000)
    for kind, far, stays in (
        ("tcp", one.remote, one.remote[1] == 0), ("udp", end, True), ("tcp", end, False),
    ):  # fmt: skip
        found = [sockets.Socket(kind, end, far, 10)]
        monkeypatch.setattr(sockets, "sockets", lambda tasks, found=found: found)
        said = "it has a socket bound to 10.0.0.5:3000, which only its node can be"
        assert sockets.stays_here(HERE) == (said if stays else "")
    monkeypatch.setattr(sockets, "NONLOCAL", tmp_path / "set")
    (tmp_path / "set").write_text("1\n")
    sockets.sockets(HERE)[:] = [sockets.Socket("udp", end, end, 10)]
    assert sockets.stays_here(HERE) == "", "here any node can"


@ROOT
def test_connections_carry_data_again_and_are_as_they_were(only: list[socket.socket]) -> None:
    pair(only)
    first, second = only
    for one, kept in ((first, 0), (second, 1)):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, kept)
    before = sockets.reused([os.getpid()], owner(os.geteuid()))
    for one in only:
        one.setsockopt(socket.IPPROTO_TCP, sockets.TCP_REPAIR, 1)
    sockets.wake([os.getpid()], before, owner(os.geteuid()))
    first.sendall(b"here")
    assert second.recv(9) == b"here"
    assert not any(one.getsockopt(socket.IPPROTO_TCP, sockets.TCP_REPAIR) for one in only)
    reuses = [one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) for one in only]
    assert reuses == [0, 1]


def test_sockets_that_nobody_could_wake_are_not_put_to_rest(
    only: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair(only)
    monkeypatch.setattr(kernel, "PIDFD_GETFD", -1)
    with pytest.raises(RequestRefused, match="cannot be opened: Function not implemented"):
        sockets.reused([os.getpid()], owner(os.geteuid()))
    monkeypatch.setattr(kernel.ctypes, "get_errno", lambda: errno.EBADF)
    assert sockets.reused([1 << 30, os.getpid()], owner(os.geteuid())) == frozenset(), (
        "they are closed by now"
    )


def stream(here: int, there: int, received: int, kept: int, unsent: int = 0) -> Stream:
    return Stream((LOOP, here), (MAPPED, there), received, kept, unsent)


def test_ends_that_agree_are_at_rest() -> None:
    sockets.check_streams([])
    sockets.check_streams([stream(1, 2, 100, 700), stream(2, 1, 700, 100)])
    sockets.check_streams([stream(1, 2, 100, 700), stream(2, 1, 750, 90)])  # sent twice, if at all
    sockets.check_streams([stream(1, 2, 5, 0xFFFFFFFF), stream(2, 1, 3, 0xFFFFFFF0)])


@pytest.mark.parametrize(
    "found",
    [
        [stream(1, 2, 100, 700)],
        [stream(1, 2, 100, 700), stream(2, 3, 700, 100)],
        [stream(1, 2, 100, 700), stream(2, 1, 699, 100)],
        [stream(1, 2, 0xFFFFFFFF, 700), stream(2, 1, 700, 0)],
        [stream(1, 2, 100, 700, unsent=1), stream(2, 1, 700, 100)],
    ],
)
def test_ends_of_which_one_lacks_what_the_other_has_no_longer_are_refused(
    found: list[Stream],
) -> None:
    with pytest.raises(RequestRefused, match="could not be saved at rest"):
        sockets.check_streams(found)


@pytest.mark.parametrize(
    ("address", "refused"), [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False)]
)
def test_a_datagram_that_is_not_read_yet_is_in_no_image(
    only: list[socket.socket], address: str, refused: bool
) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    one = socket.socket(family, socket.SOCK_DGRAM)
    one.bind((address, 0))
    only.append(one)
    sockets.check_datagrams(HERE)
    one.sendto(b"datagram", one.getsockname())
    if refused:
        with pytest.raises(RequestRefused, match="datagrams could not be saved at rest"):
            sockets.check_datagrams(HERE)
    else:
        sockets.check_datagrams(HERE)
    assert one.recv(64) == b"datagram"
    sockets.check_datagrams(HERE)
