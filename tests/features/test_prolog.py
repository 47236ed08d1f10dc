"""The daemon's side of waiting prologs."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from patience import awake, patience, stretched

from benchmarks.small_slurm import wait_until
from slurm_elastic.base.errors import SlurmError
from slurm_elastic.features.power import prolog
from slurm_elastic.features.power.prolog import PrologServer, PrologTimes, QueueWatch, Waiter
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.slurm.client import fake
from slurm_elastic.slurm.client.fake import FakeSlurm
from tests.controller.world import World

pytestmark = pytest.mark.usefixtures("guarded")

COMING = ("ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING")
UP = ("ALLOCATED", "CLOUD")
BROKEN = SlurmError(("sinfo",), 1, "Unable to contact slurm controller")


class Client:
    """A prolog, as far as the daemon sees it."""

    def __init__(self, path: Path) -> None:
        self.link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.link.settimeout(60)
        self.link.connect(str(path))
        self.text = b""

    def hello(self, job: int, nodes: str) -> None:
        line = json.dumps({"job": job, "nodes": nodes, "partition": "cloud"})
        self.link.sendall(line.encode() + b"\n")

    def answer(self) -> str:
        """All that comes until the daemon closes, but for signs of life: a busy machine has time
        for one anywhere.
        """
        while part := self.link.recv(4096):
            self.text += part
        self.link.close()
        return self.text.decode().replace(".\n", "")


Connect = Callable[..., Client]
Serve = Callable[..., PrologServer]


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prolog.sock"


@pytest.fixture
def serve(path: Path, slurm: FakeSlurm) -> Iterator[Serve]:
    servers: list[PrologServer] = []

    def start(**patience: float) -> PrologServer:
        server = PrologServer(path, slurm, threading.Event(), PrologTimes(**patience))
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def connect(path: Path) -> Iterator[Connect]:
    clients: list[Client] = []

    def start(job: int | None = None, nodes: str = "") -> Client:
        client = Client(path)
        clients.append(client)
        if job is not None:
            client.hello(job, nodes)
        return client

    yield start
    for client in clients:
        client.link.close()


def starting(slurm: FakeSlurm, job: int, *nodes: str) -> None:
    """A job that waits for nodes that come up."""
    slurm.set_job(job, "CONFIGURING", nodes=nodes)
    for node in nodes:
        slurm.set_node(node, *COMING)


def test_says_why(serve: Serve, connect: Connect, slurm: FakeSlurm) -> None:
    starting(slurm, 7, "pub1", "pub2")
    server = serve()
    client = connect(7, "pub[1-2]")
    wait_until(lambda: server.waiting() == (7,))
    slurm.set_node("pub1", *UP)
    slurm.set_node("pub2", *UP)
    assert client.answer() == "go nodes are up\n"
    assert server.waiting() == ()


def test_it_notes_when_a_job_starts(
    serve: Serve, connect: Connect, slurm: FakeSlurm, tmp_path: Path
) -> None:
    world = World(tmp_path / "site")
    try:
        starting(slurm, 7, "pub1")
        serve().join(world.site)
        client = connect(7, "pub1")
        assert not world.site.job_starts.are_due(math.inf)
        slurm.set_node("pub1", *UP)
        assert client.answer() == "go nodes are up\n"
        assert world.site.job_starts.are_due(math.inf)
    finally:
        world.close()


def test_signs_of_life(serve: Serve, connect: Connect, slurm: FakeSlurm) -> None:
    starting(slurm, 7, "pub1")
    serve(sign=0.02)
    client = connect(7, "pub1")
    while client.text.count(b".\n") < 3:
        client.text += client.link.recv(4096)
    slurm.remove_job(7)
    assert client.answer().endswith("go job is gone\n")


def test_signs_of_life_do_not_depend_on_slurms_speed(
    serve: Serve, connect: Connect, slurm: FakeSlurm
) -> None:
    starting(slurm, 7, "pub1")
    slurm.latency = slow = stretched(1.5)
    serve(sign=0.02)
    client = connect(7, "pub1")
    with awake() as took:
        while client.text.count(b".\n") < 10:
            client.text += client.link.recv(4096)
        assert took() < slow


def test_nobody_waits_nobody_asks(serve: Serve, connect: Connect, slurm: FakeSlurm) -> None:
    starting(slurm, 7, "pub1")
    serve()
    idle = connect()
    slurm.set_node("pub1", *UP)
    assert connect(7, "pub1").answer() == "go nodes are up\n"
    asked = slurm.calls.copy()
    assert asked["nodes"] == asked["jobs"] <= 2, "it also asked while nobody waited"
    idle.link.settimeout(1.0)
    with pytest.raises(TimeoutError):
        idle.link.recv(1)
    assert slurm.calls == asked


def test_hundreds_cost_no_more_than_one(serve: Serve, connect: Connect, slurm: FakeSlurm) -> None:
    many = 500
    for number in range(many):
        starting(slurm, number, f"n{number}")
    server = serve()
    began = time.monotonic()
    clients = [connect(number, f"n{number}") for number in range(many)]
    wait_until(lambda: len(server.waiting()) == many)
    for number in range(many):
        slurm.set_node(f"n{number}", *UP)
    assert {client.answer() for client in clients} == {"go nodes are up\n"}
    rounds = (time.monotonic() - began) / PrologTimes().poll + 2
    assert slurm.calls["nodes"] <= rounds
    assert slurm.calls["jobs"] <= rounds


def test_more_than_the_usual_limit_of_descriptors(serve: Serve) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        serve()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 16384)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"{}\n",
        b'{"job": "seven", "nodes": "a"}\n',
        b'{"job": 7, "nodes": "a["}\n',
        b'{"job": 7, "nodes": ""}\n',
        b"\xff\xff\n",
        b"\n",
        b"x" * (5 << 20),
    ],
    ids=["text", "empty", "types", "hostlist", "no nodes", "bytes", "no line", "endless"],
)
def test_a_malformed_hello_is_turned_away(
    serve: Serve, connect: Connect, slurm: FakeSlurm, line: bytes
) -> None:
    server = serve()
    client = connect()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.link.sendall(line)
        assert client.answer() == ""
    assert server.waiting() == ()
    starting(slurm, 8, "pub1")
    slurm.set_node("pub1", *UP)
    assert connect(8, "pub1").answer() == "go nodes are up\n"


def test_a_hello_in_pieces(serve: Serve, connect: Connect, slurm: FakeSlurm) -> None:
    slurm.set_job(7, "CONFIGURING")
    slurm.set_node("pub1", *UP)
    serve()
    client = connect()
    for byte in b'{"job": 7, "nodes": "pub1"}\n':
        client.link.sendall(bytes([byte]))
    assert client.answer() == "go nodes are up\n"


def test_who_says_nothing_is_dropped(serve: Serve, connect: Connect) -> None:
    serve(hello=0.1, sign=0.05)
    assert connect().answer().strip(".\n") == ""


def test_a_killed_hook_is_forgotten(serve: Serve, connect: Connect, slurm: FakeSlurm) -> None:
    starting(slurm, 7, "pub1")
    server = serve()
    client = connect(7, "pub1")
    wait_until(lambda: server.waiting() == (7,))
    client.link.close()
    wait_until(lambda: server.waiting() == ())


def test_slurm_that_fails_for_a_while_does_not_let_go(
    serve: Serve, connect: Connect, slurm: FakeSlurm
) -> None:
    starting(slurm, 7, "pub1")
    slurm.fail_next.extend([BROKEN, OSError("what nobody foresaw"), BROKEN])
    server = serve(slow_poll=0.05, poll=0.05)
    client = connect(7, "pub1")
    wait_until(lambda: slurm.calls["nodes"] > 3)
    assert server.waiting() == (7,)
    slurm.set_node("pub1", *UP)
    assert client.answer() == "go nodes are up\n"


@pytest.mark.parametrize("latency", [0.0, 5.0], ids=["fails", "hangs"])
def test_all_are_let_go_when_slurm_cannot_be_read(
    serve: Serve, connect: Connect, slurm: FakeSlurm, latency: float
) -> None:
    starting(slurm, 7, "pub1")
    starting(slurm, 8, "pub2")
    slurm.broken = BROKEN
    slurm.latency = latency
    serve(unreadable=0.3, sign=0.1)
    for client in [connect(7, "pub1"), connect(8, "pub2")]:
        assert client.answer().endswith("go Slurm cannot be read\n")


class Later:
    """The clock, ``by`` so many seconds."""

    by = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.by


def test_an_idle_daemon_does_not_take_its_silence_for_slurms(
    serve: Serve, connect: Connect, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting(slurm, 7, "pub1")
    later = Later()
    monkeypatch.setattr(prolog, "time", later)
    server = serve(unreadable=600.0, sign=0.02)
    later.by = 3600.0
    client = connect(7, "pub1")
    wait_until(lambda: slurm.calls["nodes"] > 2)
    assert server.waiting() == (7,)
    slurm.remove_job(7)
    assert client.answer().endswith("go job is gone\n")


def test_stopping_lets_all_go(path: Path, slurm: FakeSlurm, connect: Connect) -> None:
    starting(slurm, 7, "pub1")
    stop = threading.Event()
    server = PrologServer(path, slurm, stop)
    server.start()
    client = connect(7, "pub1")
    wait_until(lambda: server.waiting() == (7,))
    stop.set()
    assert client.answer() == "go the daemon stops\n"
    wait_until(lambda: not path.exists())
    server.close()
    server.close()


def test_who_can_serve_no_more_lets_all_go_and_stops_the_daemon(
    path: Path, slurm: FakeSlurm, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting(slurm, 7, "pub1")
    stop = threading.Event()
    server = PrologServer(path, slurm, stop)
    server.start()
    client = connect(7, "pub1")
    wait_until(lambda: server.waiting() == (7,))
    monkeypatch.setattr(prolog, "unreadable", None)
    assert client.answer() == "go the daemon stops\n"
    assert stop.wait(patience(60))
    assert server.failed
    server.close()


def test_closing_does_not_wait_for_slurm(path: Path, slurm: FakeSlurm, connect: Connect) -> None:
    starting(slurm, 7, "pub1")
    slurm.latency = slow = stretched(2.5)
    server = PrologServer(path, slurm, threading.Event())
    server.start()
    client = connect(7, "pub1")
    wait_until(lambda: slurm.calls["jobs"] > 0)
    with awake() as took:
        server.close()
        assert client.answer() == "go the daemon stops\n"
        assert took() < slow


def test_a_nudge_reads_the_queue_at_once(serve: Serve, connect: Connect, slurm: FakeSlurm) -> None:
    starting(slurm, 7, "pub1")
    server = serve(poll=0.01, slow_poll=600)
    client = connect(7, "pub1")
    wait_until(lambda: server.waiting() == (7,) and slurm.calls["nodes"] > 0)
    slurm.remove_job(7)
    server.nudge()
    assert client.answer() == "go job is gone\n"


def test_a_newcomer_does_not_wait_out_a_slow_pause(
    serve: Serve, connect: Connect, slurm: FakeSlurm
) -> None:
    starting(slurm, 7, "pub1")
    slurm.fail_next.append(BROKEN)  # after which the next look is due in ten minutes
    serve(poll=0.01, slow_poll=600)
    connect(7, "pub1")
    wait_until(lambda: not slurm.fail_next)
    slurm.set_job(8, "CONFIGURING", nodes=("pub2",))
    slurm.set_node("pub2", *UP)
    assert connect(8, "pub2").answer() == "go nodes are up\n"


def test_a_newcomer_brings_no_look_sooner_than_the_quickest_pace(
    serve: Serve, connect: Connect, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    nodes = slurm.nodes

    def seen(names: Sequence[str] | None = None) -> Mapping[str, SlurmNode]:
        looks.append(time.monotonic())
        return nodes(names)

    monkeypatch.setattr(slurm, "nodes", seen)
    poll = 0.2
    serve(poll=poll, slow_poll=poll)
    for job in range(4):
        starting(slurm, job, f"n{job}")
        connect(job, f"n{job}")
        wait_until(lambda many=job: len(looks) > many)
    assert all(later - one >= poll for one, later in pairwise(looks))


def test_a_nudge_ends_a_slow_pause(serve: Serve, connect: Connect, slurm: FakeSlurm) -> None:
    starting(slurm, 7, "pub1")
    slurm.fail_next.append(BROKEN)
    server = serve(poll=0.01, slow_poll=600)
    client = connect(7, "pub1")
    wait_until(lambda: not slurm.fail_next)
    slurm.remove_job(7)
    server.nudge()
    assert client.answer() == "go job is gone\n"


def test_nothing_waits_for_the_clock(
    path: Path, slurm: FakeSlurm, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a hello nor an answer nor the end: each wakes the thread that it is for."""
    monkeypatch.setattr(prolog, "_TICK_S", 3600.0)
    starting(slurm, 7, "pub1")
    server = PrologServer(
        path, slurm, threading.Event(), PrologTimes(sign=3600.0, poll=0.01, slow_poll=0.01)
    )
    server.start()
    first = connect(7, "pub1")
    wait_until(lambda: slurm.calls["nodes"] > 1)
    slurm.set_node("pub1", *UP)
    assert first.answer() == "go nodes are up\n"
    assert connect(8, "pub1").answer() == "go job is gone\n"
    server.end()
    server.wait(patience(60))
    assert not path.exists()


@pytest.mark.parametrize(
    ("seconds", "silence", "stays"),
    [(3600.0, 30.0, True), (3600.0, 30.5, False), (5.0, 3600.0, True), (5.5, 3600.0, False)],
)
def test_how_long_one_waits_for_a_slurm_that_does_not_answer(
    seconds: float, silence: float, stays: bool
) -> None:
    now = 10_000.0
    one = waiter(7, "pub1", now - seconds)
    let_go = prolog.unreadable([one], now - silence, PrologTimes(), now)
    assert let_go == ([] if stays else [(one, "Slurm cannot be read")])


def test_a_prolog_that_does_not_read_is_forgotten(
    serve: Serve, connect: Connect, slurm: FakeSlurm
) -> None:
    starting(slurm, 7, "pub1")
    server = serve(sign=0.001)
    connect(7, "pub1")
    wait_until(lambda: server.waiting() == (7,))
    wait_until(lambda: server.waiting() == ())


def test_what_is_let_go_or_turned_away_or_not_readable_is_in_the_log(
    serve: Serve, connect: Connect, slurm: FakeSlurm, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    slurm.fail_next.extend([BROKEN, OSError("what nobody foresaw")])
    serve(slow_poll=0.05, poll=0.05)
    bad = connect()
    bad.link.sendall(b'{"job": "' + b"x" * 300 + b'"}\n')
    assert bad.answer() == ""
    deep = connect()
    deep.link.sendall(b'{"x": ' + b"[" * 20_000 + b"\n")
    assert deep.answer() == ""
    assert "a client could not be served" not in caplog.text
    assert connect(7, "pub1").answer() == "go job is gone\n"
    assert "prolog turned away reason=Expected `int`" in caplog.text
    assert f'line=b\'{{"job": "{"x" * 191}\'' in caplog.text, "200 bytes of it are enough"
    assert "Slurm cannot be read waiting=1 reason=" in caplog.text
    assert "watching for prologs failed waiting=1" in caplog.text
    assert "what nobody foresaw" in caplog.text
    assert re.search(r"prolog released job=7 waited=\d+\.\d\d reason=job is gone", caplog.text)


@pytest.mark.parametrize(
    ("soft", "hard", "set_to"),
    [
        (1024, 65536, (16384, 65536)),
        (1024, 4096, (4096, 4096)),
        (1024, resource.RLIM_INFINITY, (16384, resource.RLIM_INFINITY)),
        (16384, 65536, None),
        (20000, 65536, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_the_limit_of_descriptors_is_raised_and_never_lowered(
    path: Path, monkeypatch: pytest.MonkeyPatch,
    soft: int, hard: int, set_to: tuple[int, int] | None,
) -> None:  # fmt: skip
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: done.append(limits))
    server = PrologServer(path, FakeSlurm(), threading.Event())
    server.start()
    server.close()
    assert done == ([set_to] if set_to else [])


# The watch: what is read, and when.


def waiter(job: int, node: str, since: float | None = None) -> Waiter:
    since = time.monotonic() if since is None else since
    return Waiter(id=job, job=job, nodes=(node,), since=since)


class Clock:
    """In the place of the module ``time``: goes on by what is slept on it."""

    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Slurm alone takes time: not the machine, which may be busy."""
    made = Clock(1000.0)
    for module in (prolog, fake):
        monkeypatch.setattr(module, "time", made)
    return made


class LateQueue(FakeSlurm):
    """A job comes, and its prolog says so, right after the queue was read."""

    late: Waiter | None = None
    slow = 0.0

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.ticks = clock

    def jobs(self, *, ended: bool = False) -> Sequence[SlurmJob]:
        self.ticks.sleep(self.slow)
        answer = super().jobs(ended=ended)
        if self.late is None:
            self.ticks.sleep(0.001)
            self.late = waiter(8, "pub2", self.ticks.now)
            self.set_job(8, "CONFIGURING")
            self.set_node("pub2", *UP)
        return answer


def test_a_newcomer_is_not_judged_by_an_older_queue(clock: Clock) -> None:
    slurm = LateQueue(clock)
    starting(slurm, 7, "pub1")
    watch = QueueWatch(slurm, PrologTimes())
    assert watch.round([waiter(7, "pub1", clock.now - 1)]) == []
    assert slurm.late is not None
    clock.sleep(1.0)
    slurm.slow = 0.5
    watch.round([], queue=True)  # a slow queue is not read again for a while ...
    slurm.slow = 0.0
    newest = waiter(8, "pub2", clock.now)
    assert watch.round([newest]) == []  # ... so nothing is known of the newest yet,
    assert watch.round([slurm.late]) == [(slurm.late, "nodes are up")]  # but of this one,
    clock.sleep(1.0)
    assert watch.round([newest]) == [(newest, "nodes are up")]  # and at last of it


def test_two_commands_a_round_at_most() -> None:
    slurm = FakeSlurm()
    for number in range(50):
        starting(slurm, number, f"n{number}")
    watch = QueueWatch(slurm, PrologTimes())
    watch.round([waiter(number, f"n{number}") for number in range(50)])
    assert (slurm.calls["nodes"], slurm.calls["jobs"]) == (1, 1)


def test_a_slow_slurm_is_asked_less_often(clock: Clock) -> None:
    slurm = FakeSlurm()
    starting(slurm, 7, "pub1")
    watch = QueueWatch(slurm, PrologTimes())
    watch.round([waiter(7, "pub1", clock.now)])
    assert watch.pause == PrologTimes().poll
    slurm.latency = 0.3
    watch.round([waiter(7, "pub1", clock.now)], queue=True)
    assert watch.pause == PrologTimes().slow_poll


def test_a_long_wait_is_looked_at_less_often(clock: Clock) -> None:
    slurm = FakeSlurm()
    starting(slurm, 7, "pub1")
    watch = QueueWatch(slurm, PrologTimes())
    watch.round([waiter(7, "pub1", clock.now - 20)])
    assert 0.4 < watch.pause < 0.6
    watch.round([waiter(7, "pub1", clock.now - 600)])
    assert watch.pause == PrologTimes().slow_poll


def test_a_slow_queue_is_not_read_with_every_round(clock: Clock) -> None:
    slurm = FakeSlurm()
    starting(slurm, 7, "pub1")
    watch = QueueWatch(slurm, PrologTimes())
    first = waiter(7, "pub1", clock.now - 1)
    slurm.latency = 0.1
    watch.round([first])
    slurm.latency = 0.0
    for _ in range(5):
        watch.round([first])
    assert (slurm.calls["nodes"], slurm.calls["jobs"]) == (6, 1)


class SlowSlurm(FakeSlurm):
    """Whose answers take so many seconds by that clock."""

    def __init__(self, clock: Clock, **takes: float) -> None:
        super().__init__()
        self._clock, self._takes = clock, takes

    def jobs(self, **of: bool) -> Sequence[SlurmJob]:
        self._clock.now += self._takes.get("jobs", 0.0)
        return super().jobs(**of)

    def nodes(self, names: Sequence[str] | None = None) -> Mapping[str, SlurmNode]:
        self._clock.now += self._takes.get("nodes", 0.0)
        return super().nodes(names)


@pytest.mark.parametrize(
    ("since", "now", "due"),
    [
        (90.0, 119.5, False),
        (90.0, 120.0, True),
        (100.0, 101.5, False),
        (100.0, 102.0, True),
        (99.0, 102.0, False),
    ],
    ids=["old", "older", "new", "newer", "came before"],
)
def test_a_queue_that_took_a_second_is_read_in_two_for_a_newcomer_and_in_twenty_else(
    monkeypatch: pytest.MonkeyPatch, since: float, now: float, due: bool
) -> None:
    clock = Clock(100.0)
    monkeypatch.setattr(prolog, "time", clock)
    slurm = SlowSlurm(clock, jobs=1.0)
    watch = QueueWatch(slurm, PrologTimes())
    watch.round([])
    clock.now = now
    watch.round([waiter(7, "pub1", since)])
    assert slurm.calls["jobs"] == 1 + due


def test_one_who_came_at_the_very_reading_of_the_queue_is_left_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(100.0)
    monkeypatch.setattr(prolog, "time", clock)
    watch = QueueWatch(SlowSlurm(clock, jobs=10.0), PrologTimes())
    watch.round([])
    clock.now = 101.0
    before, there = waiter(7, "pub1", 99.0), waiter(8, "pub1", 100.0)
    assert watch.round([before, there]) == [(before, "job is gone")]


@pytest.mark.parametrize(
    ("took", "waited", "pause"),
    [(0.0, 0.0, 0.25), (0.2, 10.0, 0.4), (0.2, 20.0, 0.5), (0.4, 20.0, 0.8), (0.6, 0.0, 1.0)],
)
def test_a_pause_is_twice_the_reading_or_a_fortieth_of_the_wait_within_its_bounds(
    monkeypatch: pytest.MonkeyPatch, took: float, waited: float, pause: float
) -> None:
    clock = Clock(1000.0)
    monkeypatch.setattr(prolog, "time", clock)
    watch = QueueWatch(SlowSlurm(clock, nodes=took), PrologTimes())

    def pause_after(*waiters: Waiter) -> float:
        clock.now = 1000.0 - took
        watch.round(waiters)
        return watch.pause

    old, newest = waiter(7, "pub1", 0.0), waiter(8, "pub1", 1000.0 - waited)
    assert pause_after(old, newest) == pytest.approx(pause)
    assert pause_after() == pytest.approx(max(2 * took, 0.25) if took < 0.5 else 1.0)


def test_a_node_that_slurm_does_not_show_counts_as_not_up() -> None:
    slurm = FakeSlurm(nodes=[SlurmNode(name="other", states=frozenset(UP))])
    slurm.set_job(7, "CONFIGURING")
    assert QueueWatch(slurm, PrologTimes()).round([waiter(7, "hidden")]) == []
