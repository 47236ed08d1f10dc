"""The read door's socket: bounded, whoever comes, and never in the daemon's way."""

from __future__ import annotations

import contextlib
import itertools
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
from slurm_elastic.watch.door.answers import Peer
from slurm_elastic.watch.door.asks import Lane, lane_of, understood
from slurm_elastic.watch.door.server import MAX_REQUEST, Bounds, Door, Turns, _Client, _Question

pytestmark = pytest.mark.usefixtures("guarded")

NOBODY = 65534
SECONDS = 60.0
QUICK = Bounds(request=0.3, answer=5.0, taking=0.5, rest=0.0)


def echo(peer: Peer, line: bytes) -> bytes:
    return b"%d %s" % (peer.uid, line)


def nobody(peer: Peer) -> bool:
    """Trusted."""
    return False


@contextlib.contextmanager
def serving(
    place: Path,
    answer: Callable[[Peer, bytes], bytes] = echo,
    bounds: Bounds | None = None,
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


def test_the_kernel_says_who_asks(tmp_path: Path) -> None:
    seen: list[Peer] = []

    def answer(peer: Peer, line: bytes) -> bytes:
        seen.append(peer)
        return line

    with serving(tmp_path, answer) as path:
        assert ask(path, b"hello") == b"hello"
    assert seen[0].uid == os.geteuid()
    assert {os.getegid(), *os.getgroups()} <= seen[0].groups


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
    patient = Bounds(request=SECONDS)
    with (
        serving(open_path, bounds=patient) as path,
        subprocess.Popen(
            [sys.executable, "-Es", "-c", AS_NOBODY, str(path), "400"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as crowd,
    ):  # fmt: skip
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == "here\n"
        threads = doors()
        for _ in range(20):
            assert ask(path, b"x") == b"0 x"
        assert doors() == threads == 1 + len(Lane)
        crowd.kill()


def doors() -> int:
    return sum(thread.name.startswith("door") for thread in threading.enumerate())


def test_one_user_has_so_many_places_and_the_next_one_is_told(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(each=2), trusts=nobody) as path:
        idle = [connect(path), connect(path)]
        assert b"ask again in a moment" in ask(path, b"x")
        idle.pop().close()
        until = time.monotonic() + SECONDS
        while b"ask again" in (said := ask(path, b"x")):
            assert time.monotonic() < until
        assert said == b"%d x" % os.geteuid()
        idle.pop().close()


def test_who_is_trusted_has_places_of_its_own(tmp_path: Path) -> None:
    bounds = Bounds(clients=1, each=1, kept=2)
    with serving(tmp_path, bounds=bounds, trusts=lambda peer: peer.uid == os.geteuid()) as path:
        idle = [connect(path) for _ in range(2)]
        assert ask(path, b"x") == b"%d x" % os.geteuid()
        for one in idle:
            one.close()


def test_who_asks_nothing_is_sent_away(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=QUICK) as path:
        silent, slow = connect(path), connect(path)
        slow.send(b"half a requ")
        assert rest_of(silent) == rest_of(slow) == b""


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

    with serving(tmp_path, answer, Bounds(rest=0.0, answer=2 * SECONDS), nobody) as path:
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

    bounds = Bounds(rest=0.0, answer=2 * SECONDS)
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
        with pytest.raises(SlurmElasticError, match="none of this release's"):
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

    bounds = Bounds(rest=0.0, answer=2 * SECONDS)
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


def test_in_a_lane_one_of_each_user_is_next_and_of_the_trusted_first() -> None:
    turns = Turns()
    for number, (uid, trusted) in enumerate(
        [(1, False), (1, False), (2, False), (1, False), (3, False), (0, True), (2, False)]
    ):
        turns.add(_Question(number, Peer(uid=uid), trusted, b""))
    found = [one.client for one in iter(turns.take, None)]
    assert found == [5, 0, 2, 4, 1, 6, 3]
    assert turns.take() is None


def test_who_comes_while_another_one_is_answered_is_next() -> None:
    """Else one who asks for what takes long would have two turns before anybody's first."""
    turns = Turns()
    first, second, third = (_Question(n, Peer(uid=1), False, b"") for n in range(3))
    other = _Question(9, Peer(uid=2), False, b"")
    turns.add(first)
    turns.add(second)
    assert turns.take() is first
    turns.add(third)
    turns.add(other)
    turns.withdraw(1, 1)
    assert list(iter(turns.take, None)) == [other, third]


def test_who_takes_a_question_back_keeps_the_turn_and_gains_none() -> None:
    turns = Turns()
    mine, gone, other, late = (
        _Question(n, Peer(uid=uid), False, b"") for n, uid in enumerate((1, 1, 2, 1))
    )
    for one in (gone, mine, other):
        turns.add(one)
    turns.withdraw(1, gone.client)
    assert turns.take() is mine
    turns.add(gone)
    turns.withdraw(1, gone.client)
    turns.add(late)
    assert list(iter(turns.take, None)) == [other, late]


def test_who_asks_while_oneself_is_answered_is_after_who_comes_then() -> None:
    turns = Turns()
    first, gone, late, other = (
        _Question(n, Peer(uid=uid), False, b"") for n, uid in enumerate((1, 1, 1, 2))
    )
    turns.add(first)
    turns.add(gone)
    assert turns.take() is first
    turns.withdraw(1, gone.client)
    turns.add(late)
    turns.add(other)
    assert list(iter(turns.take, None)) == [other, late]


def test_questions_of_who_has_gone_fill_no_memory(tmp_path: Path) -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def answer(peer: Peer, line: bytes) -> bytes:
        if line == CHAIN:
            return line
        begun.release()
        go_on.wait(SECONDS)
        return line

    door = Door(tmp_path / "read.sock", answer, nobody, Bounds(rest=0.0, answer=2 * SECONDS))
    door.start()
    first = connect(tmp_path / "read.sock")
    first.sendall(b"x\n")
    assert begun.acquire(timeout=SECONDS)
    for _ in range(50):
        # One whose place is still that of the last ones is turned away, which shuts its socket.
        with connect(tmp_path / "read.sock") as link, contextlib.suppress(BrokenPipeError):
            link.sendall(b"y" * 60_000 + b"\n")
    until = time.monotonic() + SECONDS
    while (said := ask(tmp_path / "read.sock", CHAIN)) != CHAIN or len(door._clients) > 1:
        assert said == CHAIN or b"ask again" in said
        assert time.monotonic() < until
    assert door._asked[Lane.QUICK].take() is None
    go_on.set()
    assert rest_of(first) == b"x"
    door.close()


def test_who_waits_for_too_long_is_told_to_come_again(tmp_path: Path) -> None:
    go_on = threading.Event()

    def answer(peer: Peer, line: bytes) -> bytes:
        go_on.wait(SECONDS)
        return line

    with serving(tmp_path, answer, Bounds(rest=0.0, answer=0.2)) as path:
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
    patient = Bounds(request=SECONDS)
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


def test_one_that_has_asked_keeps_its_place(tmp_path: Path) -> None:
    answering = threading.Event()

    def slowly(peer: Peer, line: bytes) -> bytes:
        answering.wait(SECONDS)
        return echo(peer, line)

    bounds = Bounds(clients=1, request=SECONDS, answer=SECONDS)
    with serving(tmp_path, slowly, bounds, nobody) as path:
        first = connect(path)
        first.sendall(b"x\n")
        assert b"ask again in a moment" in rest_of(connect(path))
        answering.set()
        assert rest_of(first) == b"%d x" % os.geteuid()


def test_the_thread_with_the_connections_rests_by_what_a_round_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who connects, drips or asks in a loop gets a part of a processor, and not the daemon's."""
    rests: list[float | None] = []

    class Noted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            rests.append(timeout)
            return super().wait(timeout)

    took = itertools.count(step=0.01)
    monkeypatch.setattr(time, "thread_time", lambda: next(took))
    door = Door(tmp_path / "read.sock", echo, nobody, Bounds(rest=3.0))
    door._closing = Noted()
    door.start()
    assert ask(tmp_path / "read.sock", b"x") == b"%d x" % os.geteuid()
    door.close()
    assert pytest.approx(0.03) in rests


def test_who_asks_without_an_end_is_sent_away(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(request=SECONDS)) as path:
        link = connect(path)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            link.sendall(b"x" * (2 * MAX_REQUEST))
        assert rest_of(link) == b""
        assert ask(path, b"x") == b"%d x" % os.geteuid()


def test_who_does_not_take_the_answer_is_sent_away_and_others_are_served(tmp_path: Path) -> None:
    # Not too soon: who takes the answer may be kept from it for a moment, too.
    bounds = Bounds(request=SECONDS, taking=3.0, rest=0.0)
    with serving(tmp_path, lambda _peer, line: line * (8 << 20), bounds) as path:
        stuck = connect(path)
        stuck.sendall(b"x\n")
        assert len(ask(path, b"y")) == 8 << 20
        until = time.monotonic() + SECONDS
        while is_open(stuck):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert len(rest_of(stuck)) < 8 << 20


def test_answers_that_nobody_takes_fill_no_memory(tmp_path: Path) -> None:
    bounds = Bounds(taking=SECONDS, rest=0.0, held=1 << 20)
    with serving(tmp_path, lambda _peer, line: line * (2 << 20), bounds) as path:
        stuck = connect(path)
        stuck.sendall(b"x\n")
        until = time.monotonic() + SECONDS
        while b"ask again in a moment" not in ask(path, b"y"):
            assert time.monotonic() < until
        assert rest_of(stuck) == b"x" * (2 << 20)
        assert ask(path, b"y") == b"y" * (2 << 20)


def test_of_what_is_held_one_user_has_half(tmp_path: Path) -> None:
    door = Door(tmp_path / "read.sock", echo, nobody, Bounds(held=100))
    mine, other = (
        _Client(socket.socket(), number, Peer(uid=number), 0.0, trusted=False) for number in (1, 2)
    )
    door._clients = {1: mine, 2: other}
    for held, may in ((50, (True, True)), (51, (False, True)), (101, (False, False))):
        mine.rest = memoryview(bytes(held))
        assert (door._may_hold(mine), door._may_hold(other)) == may
    for one in (mine, other):
        one.link.close()


def is_open(link: socket.socket) -> bool:
    """Whether the other end may still send: a write fails once it is gone."""
    try:
        link.send(b"")
        link.send(b"x", socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def test_an_answer_that_fails_is_told_and_the_next_one_is_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(peer: Peer, line: bytes) -> bytes:
        if line == b"bad":
            raise ZeroDivisionError
        return line

    with serving(tmp_path, answer) as path:
        assert b"its log says why" in ask(path, b"bad")
        assert ask(path, b"good") == b"good"
    assert "no answer at the read door" in caplog.text


def test_a_socket_left_by_a_crash_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as old:
        old.bind(str(tmp_path / "read.sock"))
    with serving(tmp_path) as path:
        assert ask(path, b"x") == b"%d x" % os.geteuid()
