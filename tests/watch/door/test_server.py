"""The read door's socket: bounded, whoever comes, and never in the daemon's way."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import needs
import pytest

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.processes.server import LOOKUP_THREADS
from slurm_elastic.base.processes.unixsocket import Peer
from slurm_elastic.watch.door.questions import Lane, lane_of, understood
from slurm_elastic.watch.door.server import Door, DoorLimits, may_hold

pytestmark = pytest.mark.usefixtures("guarded")

NOBODY = 65534
SECONDS = 60.0


def echo(peer: Peer, line: bytes) -> bytes:
    return b"%d %s" % (peer.uid, line)


def nobody(peer: Peer) -> bool:
    """Trusted."""
    return False


@contextlib.contextmanager
def serving(
    place: Path,
    answer: Callable[[Peer, bytes], bytes] = echo,
    bounds: DoorLimits | None = None,
    trusts: Callable[[Peer], bool] = lambda peer: peer.uid == 0,
) -> Iterator[Path]:
    door = Door(place / "read.sock", answer, trusts, bounds)
    door.start()
    try:
        yield place / "read.sock"
    finally:
        door.close()
    assert not (place / "read.sock").exists()


def connect(path: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # No time-out of Python's: it makes a connect fail at once where the queue is full.
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        link.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(SECONDS), 0))
    link.connect(str(path))
    return link


def rest_of(link: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := link.recv(1 << 20):
            parts.append(part)
    link.close()
    return b"".join(parts)


def ask(path: Path, line: bytes) -> bytes:
    link = connect(path)
    with contextlib.suppress(BrokenPipeError):
        link.sendall(line + b"\n")
    return rest_of(link)


def test_an_answer_of_many_megabytes_arrives_whole(tmp_path: Path) -> None:
    with serving(tmp_path, lambda _peer, line: line * 1_000_000) as path:
        assert ask(path, b"0123456789") == b"0123456789" * 1_000_000


AS_NOBODY = """
import os, socket, sys, time
os.setgroups([]); os.setgid(65534); os.setuid(65534)
links = []
for _ in range(int(sys.argv[2])):
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(sys.argv[1])
    links.append(link)
print("here", flush=True)
sys.stdin.read()
"""


@needs.ROOT
def test_hundreds_of_idle_connections_of_one_user_stop_nobody_else(open_path: Path) -> None:
    patient = DoorLimits(request_timeout_s=SECONDS)
    with (
        serving(open_path, bounds=patient) as path,
        subprocess.Popen(
            [sys.executable, "-Es", "-c", AS_NOBODY, str(path), "400"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as crowd,
    ):  # fmt: skip
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == "here\n"
        for _ in range(20):
            assert ask(path, b"x") == b"0 x"
        assert doors() <= 1 + len(Lane) + LOOKUP_THREADS
        crowd.kill()


AS_A_RANGE = """
import os, socket, sys
links = []
for uid in range(2_000_000_000, 2_000_000_024):
    os.seteuid(uid)
    for _ in range(4):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.connect(sys.argv[1])
        link.send(b"slow\\n")
        links.append(link)
    os.seteuid(0)
print("here", flush=True)
sys.stdin.read()
"""
"""The uids that one user has by subuid(5): no account has them."""


@needs.ROOT
def test_a_user_with_a_range_of_uids_has_the_places_of_one_user(open_path: Path) -> None:
    answered, go_on = [], threading.Event()

    def answer(peer: Peer, line: bytes) -> bytes:
        answered.append(peer.uid)
        return b"%d" % go_on.wait(SECONDS) if line == b"slow" else line

    with (
        serving(open_path, answer, DoorLimits(answer_timeout_s=SECONDS), nobody) as path,
        subprocess.Popen(
            [sys.executable, "-Es", "-c", AS_A_RANGE, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as crowd,
    ):  # fmt: skip
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == "here\n"
        link = connect(path)
        link.sendall(b"mine\n")
        go_on.set()
        assert rest_of(link) == b"mine"
        assert len(answered) <= 6, "theirs is the turn of one user, too"
        crowd.kill()


def doors() -> int:
    return sum(thread.name.startswith("door") for thread in threading.enumerate())


def test_the_bounds_are_as_the_manual_says() -> None:
    """docs/access.md."""
    bounds = DoorLimits()
    assert (bounds.max_clients, bounds.per_user, bounds.request_timeout_s) == (64, 4, 5.0)
    assert (bounds.max_line_bytes, bounds.rest_factor) == (64 << 10, 3.0)


def test_one_user_has_so_many_places_and_the_next_one_is_told(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=DoorLimits(per_user=2), trusts=nobody) as path:
        idle = [connect(path), connect(path)]
        assert b"ask again in a moment" in ask(path, b"x")
        idle.pop().close()
        until = time.monotonic() + SECONDS
        while b"ask again" in (said := ask(path, b"x")):
            assert time.monotonic() < until
        assert said == b"%d x" % os.geteuid()
        idle.pop().close()


# fair turns


FACTS, PRICE = b'{"ask": "facts"}', b'{"ask": "price", "job": {"id": 1, "states": []}}'
CHAIN, COST = (
    b'{"ask": "chain", "about": "job", "name": "7"}',
    b'{"ask": "cost", "by": "job", "since": 1}',
)
ORDER = b'{"ask": "end", "numbers": [3]}'


def test_forecasts_and_costs_that_take_long_are_in_the_way_of_no_other_question(
    tmp_path: Path,
) -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def answer(peer: Peer, line: bytes) -> bytes:
        if line in (PRICE, COST):
            begun.release()
            go_on.wait(SECONDS)
        return line

    with serving(
        tmp_path, answer, DoorLimits(rest_factor=0.0, answer_timeout_s=2 * SECONDS), nobody
    ) as path:
        slow = [connect(path) for _ in range(3)]
        for link, line in zip(slow, (PRICE, COST, PRICE), strict=True):
            link.sendall(line + b"\n")
        assert begun.acquire(timeout=SECONDS)
        for line in (FACTS, ORDER, CHAIN, b"nonsense", FACTS):
            assert ask(path, line) == line
        go_on.set()
        assert [rest_of(link) for link in slow] == [PRICE, COST, PRICE]


def test_orders_of_the_trusted_wait_for_no_question_and_for_no_order_of_others(
    tmp_path: Path,
) -> None:
    """Slurm is asked for private facts, the site's directory for whose order it is."""
    go_on, begun = threading.Event(), threading.Semaphore(0)
    trusts = [True]

    def answer(peer: Peer, line: bytes) -> bytes:
        if line != ORDER or not trusts[0]:
            begun.release()
            go_on.wait(SECONDS)
        return line

    bounds = DoorLimits(rest_factor=0.0, answer_timeout_s=2 * SECONDS)
    with serving(tmp_path, answer, bounds, lambda peer: trusts[0]) as path:
        slow = [connect(path) for _ in range(2)]
        for link, line in zip(slow, (FACTS, CHAIN), strict=True):
            link.sendall(line + b"\n")
            assert begun.acquire(timeout=SECONDS)
        assert ask(path, ORDER) == ORDER
        go_on.set()
        assert [rest_of(link) for link in slow] == [FACTS, CHAIN]
        go_on.clear()
        trusts[0] = False
        stranger = connect(path)
        stranger.sendall(ORDER + b"\n")
        assert begun.acquire(timeout=SECONDS)
        trusts[0] = True
        assert ask(path, ORDER) == ORDER
        go_on.set()
        assert rest_of(stranger) == ORDER


def test_what_is_no_question_waits_for_nobody() -> None:
    deep = b'{"ask": "facts", "x": ' + b"[" * 30_000 + b"]" * 30_000 + b"}"
    both = b'{"ask": "facts", "ask": "price", "job": {"id": 1, "states": []}}'
    for line in (b"", b"\xff", b"[]", b'{"ask": 3}', deep, both):
        assert lane_of(line, trusted=True) is Lane.QUICK
        with pytest.raises(SlurmElasticError, match="does not know this request"):
            understood(line)


ASKING = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
links = []
for _ in range(4):
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(sys.argv[1])
    link.sendall(b"x\\n")
    links.append(link)
print("here", flush=True)
for link in links:
    while link.recv(1 << 16):
        pass
print("done", flush=True)
"""


@needs.ROOT
@pytest.mark.parametrize(("trusts", "place"), [(nobody, 1), (lambda peer: peer.uid == 0, 1)])
def test_users_have_turns_and_one_who_asks_much_waits_for_oneself(
    open_path: Path, trusts: Callable[[Peer], bool], place: int
) -> None:
    go_on, asked = threading.Event(), threading.Semaphore(0)
    served: list[int] = []

    def answer(peer: Peer, line: bytes) -> bytes:
        if line == CHAIN:
            return line
        served.append(peer.uid)
        asked.release()
        go_on.wait(SECONDS)
        return line

    bounds = DoorLimits(rest_factor=0.0, answer_timeout_s=2 * SECONDS)
    with (
        serving(open_path, answer, bounds, trusts) as path,
        subprocess.Popen(
            [sys.executable, "-Es", "-c", ASKING, str(path)], stdout=subprocess.PIPE, text=True
        ) as crowd,
    ):
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == "here\n"
        assert asked.acquire(timeout=SECONDS)
        link = connect(path)
        link.sendall(b"y\n")
        for _ in range(2):  # in another lane; that came later, so the other one has been read
            assert ask(path, CHAIN) == CHAIN
        go_on.set()
        assert rest_of(link) == b"y"
        assert crowd.stdout.readline() == "done\n"
    assert served.index(0) == place


def test_questions_of_who_has_gone_are_not_answered(tmp_path: Path) -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)
    answered: list[bytes] = []

    def answer(peer: Peer, line: bytes) -> bytes:
        if line == CHAIN:
            return line
        answered.append(line[:1])
        begun.release()
        go_on.wait(SECONDS)
        return line

    with serving(
        tmp_path, answer, DoorLimits(rest_factor=0.0, answer_timeout_s=2 * SECONDS), nobody
    ) as path:
        first = connect(path)
        first.sendall(b"x\n")
        assert begun.acquire(timeout=SECONDS)
        for _ in range(50):
            # One whose place is still that of the last ones is turned away, and its socket shut.
            with connect(path) as link, contextlib.suppress(BrokenPipeError):
                link.sendall(b"y" * 60_000 + b"\n")
        until = time.monotonic() + SECONDS
        while ask(path, CHAIN) != CHAIN:
            assert time.monotonic() < until
        go_on.set()
        assert rest_of(first) == b"x"
        assert ask(path, b"z") == b"z"
    assert answered == [b"x", b"z"]


def test_who_waits_for_too_long_is_told_to_come_again(tmp_path: Path) -> None:
    go_on = threading.Event()

    def answer(peer: Peer, line: bytes) -> bytes:
        go_on.wait(SECONDS)
        return line

    with serving(tmp_path, answer, DoorLimits(rest_factor=0.0, answer_timeout_s=0.2)) as path:
        assert b"ask again in a moment" in ask(path, b"x")
        go_on.set()
        until = time.monotonic() + SECONDS
        while ask(path, b"y") != b"y":  # which waits behind that one
            assert time.monotonic() < until


AS_MANY = """
import os, socket, sys
for uid in range(20001, 20001 + int(sys.argv[2])):
    os.setegid(65534); os.seteuid(uid)
    for _ in range(4):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.connect(sys.argv[1])
        os.dup(link.fileno())
    os.seteuid(0)
print("here", flush=True)
sys.stdin.read()
"""


@needs.ROOT
def test_silent_connections_of_a_whole_range_of_uids_keep_nobody_from_asking(
    open_path: Path,
) -> None:
    """As a user has them whose own name spaces have a range of uids (subuid(5))."""
    patient = DoorLimits(request_timeout_s=SECONDS)
    with (
        serving(open_path, bounds=patient, trusts=nobody) as path,
        subprocess.Popen(
            [sys.executable, "-Es", "-c", AS_MANY, str(path), "40"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as crowd,
    ):  # fmt: skip
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == "here\n"
        for _ in range(20):
            assert ask(path, b"x") == b"0 x"
        crowd.kill()


def test_answers_that_nobody_takes_fill_no_memory(tmp_path: Path) -> None:
    bounds = DoorLimits(delivery_timeout_s=SECONDS, rest_factor=0.0, max_unread_bytes=1 << 20)
    with serving(tmp_path, lambda _peer, line: line * (2 << 20), bounds) as path:
        stuck = connect(path)
        stuck.sendall(b"x\n")
        until = time.monotonic() + SECONDS
        while b"ask again in a moment" not in ask(path, b"y"):
            assert time.monotonic() < until
        assert rest_of(stuck) == b"x" * (2 << 20)
        assert ask(path, b"y") == b"y" * (2 << 20)


@pytest.mark.parametrize(
    ("held", "mine", "others"), [(50, True, True), (51, False, True), (101, False, False)]
)
def test_of_what_is_held_one_user_has_half(held: int, mine: bool, others: bool) -> None:
    kept = [(1, held), (2, 0)]
    assert (may_hold(1, kept, 100), may_hold(2, kept, 100)) == (mine, others)


def test_an_answer_that_fails_is_told_and_the_next_one_is_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(peer: Peer, line: bytes) -> bytes:
        if line == b"bad":
            raise ZeroDivisionError
        return line

    with serving(tmp_path, answer) as path:
        assert b"its log has the error" in ask(path, b"bad")
        assert ask(path, b"good") == b"good"
    assert "no answer at the read door" in caplog.text
