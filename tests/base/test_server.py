"""What every server of ours promises, whatever it answers: who may ask, for how long, how much."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import needs
import pytest
from patience import eventually, patience

from slurm_elastic.base.processes import server as module
from slurm_elastic.base.processes.bounded import Exceeded
from slurm_elastic.base.processes.server import Resting, Server, ServerBounds, ServerClient
from slurm_elastic.base.processes.unixsocket import Peer

SECONDS = 60.0
ME = os.geteuid()
LINKS: list[socket.socket] = []


class Echo(Server):
    """Answers each line by itself; ``bad`` breaks it, ``wait`` is answered when it may be."""

    busy_message = b"busy\n"
    parting_message = b"farewell\n"

    def __init__(
        self,
        place: Path | tuple[str, int],
        *,
        strangers: tuple[int, ...] = (),
        trusted: tuple[int, ...] = (),
        seconds: float = SECONDS,
        mode: int = 0o600,
        owner: int = -1,
        **bounds: float,
    ) -> None:
        super().__init__(
            "echo",
            place,
            ServerBounds(**{"max_clients": 8, "max_line_bytes": 100, **bounds}),
            mode=mode,
            owner=owner,
        )
        self.strangers, self.trusted, self.seconds = strangers, trusted, seconds
        self.peers: list[Peer] = []
        self.go_on, self.gone = threading.Event(), threading.Event()
        self.trouble: Exception | None = None
        self.ending = threading.Event()

    def refusal(self, peer: Peer) -> bytes:
        return b"no\n" if peer.uid in self.strangers else b""

    def trusts(self, peer: Peer) -> bool:
        return peer.uid in self.trusted

    async def attend(self, client: ServerClient) -> None:
        self.peers.append(client.peer)
        hands = self.start_threads("hands")
        while True:
            try:
                line = await client.read_line(self.seconds)
            except Exceeded:
                await client.send(b"too long\n", SECONDS)
                return
            if line == b"bad":
                raise ZeroDivisionError
            if line == b"wait":
                waiting = asyncio.ensure_future(hands.call(self.go_on.wait, SECONDS))
                try:
                    await client.wait_for(waiting, self.seconds)
                except module.Gone:
                    self.gone.set()
                    raise
                except TimeoutError:
                    line = b"later"
            await client.send(line * (8 << 20) if line == b"much" else line + b"\n", self.seconds)

    async def run_beside(self) -> None:
        while not self.ending.is_set():
            await asyncio.sleep(0.01)
            if self.trouble:
                raise self.trouble


@contextlib.contextmanager
def serving(one: Echo) -> Iterator[Echo]:
    one.start()
    try:
        yield one
    finally:
        one.go_on.set()
        one.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "echo.sock"


@pytest.fixture(autouse=True)
def links_are_closed() -> Iterator[None]:
    yield
    while LINKS:
        LINKS.pop().close()


def connect(path: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(patience(SECONDS))
    LINKS.append(link)
    link.connect(str(path))
    return link


def said(link: socket.socket, line: bytes = b"") -> bytes:
    """The next line."""
    with contextlib.suppress(BrokenPipeError):
        link.sendall(line)
    return link.makefile("rb").readline()


def is_served(path: Path) -> bool:
    with connect(path) as link:
        return said(link, b"x\n") == b"x\n"


def test_the_kernel_says_who_asks(path: Path) -> None:
    with serving(Echo(path)) as one, connect(path) as link:
        assert said(link, b"hello\n") == b"hello\n"
        assert said(link, b"again\n") == b"again\n"
    (peer,) = one.peers
    assert (peer.uid, peer.address) == (ME, "")
    assert {os.getegid(), *os.getgroups()} <= peer.groups


def test_at_a_port_who_asks_is_known_by_the_address() -> None:
    port = 0
    for _ in range(2):  # the second one takes the place of the first at once (tcp(7), TIME_WAIT)
        with serving(Echo(("127.0.0.1", port))) as one:
            port = one.port
            with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as link:
                assert said(link, b"hello\n") == b"hello\n"
        assert one.peers == [Peer(address="127.0.0.1")]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS)


def test_it_listens_before_the_host_has_the_address() -> None:
    with serving(Echo(("192.0.2.77", 0))) as one:
        assert one.port


def test_who_may_not_ask_is_told_so_before_a_word_and_costs_nothing(path: Path) -> None:
    with serving(Echo(path, strangers=(ME,), max_clients=1)) as one:
        links = [connect(path) for _ in range(50)]
        assert {said(link) for link in links} == {b"no\n"}
        assert one.peers == []


def test_so_many_are_served_at_once_and_a_place_is_given_back(path: Path) -> None:
    with serving(Echo(path, max_clients=2)):
        links = [connect(path), connect(path)]
        assert [said(link, b"x\n") for link in links] == [b"x\n", b"x\n"]
        assert said(connect(path)) == b"busy\n"
        links.pop().close()
        eventually(lambda: is_served(path))


def test_of_one_user_so_many_and_more_for_who_is_trusted(path: Path) -> None:
    with serving(Echo(path, per_user=1)), connect(path) as first:
        assert said(first, b"x\n") == b"x\n"
        assert said(connect(path)) == b"busy\n"
    with serving(Echo(path, max_clients=1, per_user=1, reserved_places=1, trusted=(ME,))):
        links = [connect(path), connect(path)]
        assert [said(link, b"x\n") for link in links] == [b"x\n", b"x\n"]
        assert said(connect(path)) == b"busy\n"


def test_a_directory_server_that_hangs_gives_nobody_more_places(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOKUP_TIMEOUT_S", 0.1)
    with serving(Echo(path, per_user=1)) as one:
        one._users._has_account = lambda _uid: one.go_on.wait(SECONDS)
        with connect(path) as first:
            assert said(first, b"x\n") == b"x\n"
            assert said(connect(path)) == b"busy\n"


def test_who_asks_nothing_gives_room_and_who_has_asked_does_not(path: Path) -> None:
    with serving(Echo(path, max_clients=2)) as one, connect(path) as busy, connect(path) as silent:
        silent.sendall(b"half a requ")
        busy.sendall(b"wait\n")
        eventually(lambda: len(one.peers) == 2)
        with connect(path) as late:
            assert said(late, b"x\n") == b"x\n"
            assert silent.recv(1) == b""
            assert said(connect(path)) == b"busy\n"
            one.go_on.set()
            assert said(busy) == b"wait\n"


def test_a_request_has_so_many_bytes_and_seconds(path: Path) -> None:
    with serving(Echo(path, max_line_bytes=10)):
        for length, answer in ((9, b"x" * 9 + b"\n"), (10, b"too long\n"), (5000, b"too long\n")):
            assert said(connect(path), b"x" * length + b"\n") == answer
        assert said(connect(path), b"x" * 11) == b"too long\n"
    with serving(Echo(path, seconds=0.3)), connect(path) as slow:
        with contextlib.suppress(BrokenPipeError):
            while True:
                slow.send(b"x")
                time.sleep(0.1)
        assert slow.recv(1) == b"", "each byte is in time, the line is not"


def test_a_request_in_pieces_and_two_in_one(path: Path) -> None:
    with serving(Echo(path)), connect(path) as link:
        for byte in b"hell":
            link.sendall(bytes([byte]))
        reader = link.makefile("rb")
        link.sendall(b"o\nagain\n")
        assert [reader.readline(), reader.readline()] == [b"hello\n", b"again\n"]
        link.sendall(b"last\n")
        link.shutdown(socket.SHUT_WR)
        assert [reader.readline(), reader.readline()] == [b"last\n", b""]


@pytest.mark.parametrize("how", ["talks", "leaves", "shuts"])
def test_who_talks_on_or_leaves_is_not_waited_for(path: Path, how: str) -> None:
    with serving(Echo(path)) as one:
        link = connect(path)
        link.sendall(b"wait\n")
        eventually(lambda: one.peers)
        time.sleep(0.1)
        if how == "talks":
            link.sendall(b"more")
        elif how == "leaves":
            link.close()
        else:
            link.shutdown(socket.SHUT_WR)
        assert one.gone.wait(patience(SECONDS))
        link.close()


def test_what_takes_too_long_is_told_so(path: Path) -> None:
    with serving(Echo(path, seconds=0.2)), connect(path) as link:
        assert said(link, b"wait\n") == b"later\n"


def test_who_takes_no_answer_is_sent_away_and_others_are_served(path: Path) -> None:
    with serving(Echo(path, seconds=1.0)) as one, connect(path) as stuck:
        stuck.sendall(b"much\n")
        eventually(lambda: one.clients)
        (client,) = one.clients
        while client in one.clients:
            assert is_served(path)
            time.sleep(0.05)
        assert len(stuck.makefile("rb").read()) < 4 * (8 << 20)


def test_what_fails_for_one_is_in_the_log_and_others_are_served(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Echo(path)) as one:
        assert said(connect(path), b"bad\n") == b""
        assert is_served(path)
        assert not one.failed
    assert "echo: a client could not be served" in caplog.text


def test_a_thread_that_would_end_tells_its_caller_and_serves_the_next() -> None:
    """Else the caller waits for ever, and one of few threads is gone."""

    async def ask() -> str:
        hands = module.Hands("hands", 1)
        with pytest.raises(RuntimeError, match="SystemExit: 3"):
            await asyncio.wait_for(hands.call(sys.exit, 3), patience(SECONDS))
        answer = await asyncio.wait_for(hands.call(str, 5), patience(SECONDS))
        hands.close()
        return answer

    assert asyncio.run(ask()) == "5"


def test_without_descriptors_one_waits_until_there_are_some(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serving(Echo(path)) as one,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link,
    ):
        link.settimeout(patience(SECONDS))
        with no_descriptor_left():
            link.connect(str(path))
            eventually(lambda: "echo: new clients must wait: " in caplog.text)
        assert said(link, b"x\n") == b"x\n"
        assert not one.failed
    assert os.strerror(errno.EMFILE) in caplog.text


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """This process can open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = os.dup(0)
    os.close(first)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# its file, and its end


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_the_file_has_its_mode_and_what_a_dead_process_left_is_replaced(
    path: Path, mode: int
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as old:
        old.bind(str(path))
    with serving(Echo(path, mode=mode)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert is_served(path)
    assert not path.exists()


@needs.ROOT
def test_the_file_is_its_owners(path: Path) -> None:
    with serving(Echo(path, owner=12345)):
        assert path.stat().st_uid == 12345


def test_where_it_cannot_listen_nothing_is_left(path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    path.write_text("precious")
    with pytest.raises(FileExistsError):
        Echo(path).start()
    with pytest.raises(FileNotFoundError):
        Echo(path.parent / "absent" / "s").start()
    one = Echo(path)
    one.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert path.read_text() == "precious"


def test_at_the_end_all_are_told_who_is_in_the_queue_too_and_nothing_is_left(path: Path) -> None:
    before, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    with serving(Echo(path, seconds=600.0)) as one:
        silent, busy = connect(path), connect(path)
        busy.sendall(b"wait\n")
        eventually(lambda: len(one.peers) == 2)
        held = threading.Event()
        one.call(held.wait, patience(SECONDS))  # its thread is at something else
        queued = connect(path)
        closing = threading.Thread(target=one.close)
        closing.start()
        held.set()
        links = (silent, busy, queued)
        assert [said(link) for link in links] == [b"farewell\n"] * 3
        closing.join(patience(SECONDS))
        assert not path.exists()
        one.close()
        for link in links:
            link.close()
    eventually(lambda: threading.active_count() == threads)
    assert set(os.listdir("/proc/self/fd")) == before


def test_who_ends_it_before_it_starts_need_not_do_so_again(path: Path) -> None:
    one = Echo(path)
    one.call(pytest.fail, "there is no thread that could call it")
    one.end()
    one.start()
    one.wait(patience(SECONDS))
    assert not path.exists()


def test_an_answer_that_is_being_made_is_not_waited_for(path: Path) -> None:
    one = Echo(path)
    one.start()
    link = connect(path)
    link.sendall(b"wait\n")
    eventually(lambda: one.peers)
    one.close()
    assert not one.go_on.is_set()
    assert said(link) == b"farewell\n"
    one.go_on.set()


def test_it_ends_by_what_is_beside_and_fails_by_it(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Echo(path)) as one, connect(path) as link:
        one.ending.set()
        assert said(link) == b"farewell\n"
        one.wait(patience(SECONDS))
        assert not one.failed
    with serving(Echo(path)) as one, connect(path) as link:
        one.trouble = RuntimeError("nobody thought of that")
        assert said(link) == b"farewell\n"
        one.wait(patience(SECONDS))
        assert one.failed
        assert not path.exists()
    assert "echo: an error has ended the server" in caplog.text
    assert "nobody thought of that" in caplog.text


def test_threads_are_as_many_as_are_needed_and_may_be(path: Path) -> None:
    class Slow(Echo):
        async def attend(self, client: ServerClient) -> None:
            line = await client.read_line(SECONDS)
            begun = time.monotonic()
            await hands[0].call(self.go_on.wait, SECONDS)
            await client.send(line + b"%d\n" % (time.monotonic() > begun), SECONDS)

    one = Slow(path)
    hands = [one.start_threads("hand", 2)]
    with serving(one):
        links = [connect(path) for _ in range(4)]
        for count, link in enumerate(links, 1):
            link.sendall(b"x\n")
            eventually(lambda: len(one.clients) == len(links))
            eventually(lambda count=count: hands_now() == min(count, 2))
        one.go_on.set()
        assert [said(link) for link in links] == [b"x1\n"] * 4
    eventually(lambda: not hands_now())


def test_a_library_that_wants_to_exit_ends_no_hand_and_nobody_waits_for_ever(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def leave() -> None:
        raise SystemExit(3)

    class Leaving(Echo):
        async def attend(self, client: ServerClient) -> None:
            await client.read_line(SECONDS)
            with pytest.raises(RuntimeError, match="hand: SystemExit: 3"):
                await hands[0].call(leave)
            await client.send(b"%d\n" % await hands[0].call(lambda: 7), SECONDS)

    one = Leaving(path)
    hands = [one.start_threads("hand")]
    with serving(one):
        link = connect(path)
        link.sendall(b"x\n")
        assert said(link) == b"7\n"
    assert "hand: a library tried to end the thread" in caplog.text


def hands_now() -> int:
    return sum(thread.name == "hand" for thread in threading.enumerate())


def test_it_rests_by_what_its_rounds_took_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who connects, drips or asks in a loop gets a part of a processor, and not the daemon's."""
    slept: list[float] = []
    used = iter([0.0, 0.01, 1.0, 1.0001, 2.0, 3.0, 3.0, 9.0, 99.0])
    monkeypatch.setattr(module.time, "sleep", slept.append)
    monkeypatch.setattr(module.time, "thread_time", lambda: next(used))
    with Resting(3.0) as selector:
        for _ in range(4):  # used from round to round: 0.01, 0.0001, 1.0
            assert selector.select(0) == []
    assert slept == [pytest.approx(0.03), 0.5]
    with Resting(0.0) as never:
        assert never.select(0) == never.select(0) == []
    assert len(slept) == 2
