"""The loop: requests stay until they are served, and nothing of one stops the others."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from patience import eventually, patience

from slurm_elastic.base.errors import SlurmError, TransientError
from slurm_elastic.controller import apply
from slurm_elastic.controller.daemon import OWN_WORKERS, Daemon
from slurm_elastic.controller.extensions import Extensions
from slurm_elastic.controller.notify_socket import WakeSocket
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.controller.reconcile import Round
from slurm_elastic.features.registry import FEATURES
from slurm_elastic.state.heartbeat import DAEMON, read_mark
from slurm_elastic.testing.in_memory import Inline, Silent
from tests.controller.world import T0, World

DEAD = SlurmError(("sinfo",), 1, "Unable to contact slurm controller")


def full(*_: object, **__: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def launches(world: World, cloud: str = "pub") -> int:
    return sum(call.name == "launch" for call in world.clouds[cloud].calls)


def test_what_cannot_be_written_down_is_not_bought(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The request stays, the daemon goes on, and with room on the disk all is made up for."""
    world.slurm.submit(1, ("pub1",))
    with monkeypatch.context() as patched:
        patched.setattr(world.ledger.launches, "record_intent", full)
        world.advance(120)
        assert launches(world) == 0
        assert world.spool.count() == 1
    assert "database or disk is full" in caplog.text
    world.advance(60)
    assert "RUNNING" in world.slurm.queue()[1].states
    assert launches(world) == 1
    assert world.spool.count() == 0


def test_a_ledger_that_takes_nothing_at_all_is_complained_of_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        ledger = world.ledger
        methods = {
            ledger: ("prune", "compact"),
            ledger.health: ("beat", "report"),
            ledger.decisions: ("record",),
            ledger.launches: ("record_intent",),
            ledger.machines: ("observe",),
        }
        for part, names in methods.items():
            for name in names:
                patched.setattr(part, name, full)
        world.slurm.submit(1, ("pub1",))
        world.advance(60)
    assert caplog.text.count("state directory cannot be used") == 1
    assert world.alive() == []
    world.advance(60)
    assert "RUNNING" in world.slurm.queue()[1].states


def test_a_spool_that_cannot_be_changed_stops_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(_: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(world.spool, "remove", read_only)
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    assert len(world.alive()) == 1
    assert "RUNNING" in world.slurm.queue()[1].states


def test_while_slurm_is_dead_the_request_stays(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    world.slurm.broken = DEAD
    world.advance(240)
    assert world.spool.count() == 1
    assert world.alive() == []
    world.slurm.broken = None
    world.advance(60)
    assert "RUNNING" in world.slurm.queue()[1].states


def test_a_dead_slurm_is_not_asked_all_the_time(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    world.slurm.broken = DEAD
    world.advance(300, step=1)
    assert world.slurm.calls["nodes"] < 60


def test_a_request_that_always_fails_is_given_up_and_made_up_for(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("bug")

    world.slurm.submit(1, ("pub1",))
    with monkeypatch.context() as patched:
        patched.setattr(apply, "provision", broken)
        world.advance(60)
        assert world.spool.count() == 0
    assert "request given up" in caplog.text
    world.advance(200)
    assert "RUNNING" in world.slurm.queue()[1].states


def test_one_request_over_two_clouds_is_served_by_both(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    world.slurm.submit(2, ("op1",))
    for file in (world.dir / "requests").glob("*.json"):
        file.unlink()
    world.program("resume", ["pub1", "op1"], {1: ["pub1"], 2: ["op1"]})
    world.clouds["pub"].fail_next(TransientError, 5, "launch")
    world.advance(30)
    assert sorted(i.node for i in world.alive()) == ["op1", "pub1"]
    assert world.spool.count() == 0


def test_a_worker_that_does_not_come_back_is_told_of(world: World) -> None:
    """As when its thread hangs in the kernel, where no bound of ours ends it."""
    hung = SimpleNamespace(submit=lambda *_: Future())
    workers = {"pub": cast(Executor, hung)}
    inline = cast(Executor, Inline())
    daemon = Daemon(
        world.site, world.spool, cast(WakeSocket, Silent()), lambda name: workers.get(name, inline),
        features=FEATURES,
    )  # fmt: skip
    for _ in range(14):
        world.now += 60.0
        daemon.tick()
    assert all(one.error is None for one in world.ledger.health.all())
    for _ in range(3):
        world.now += 60.0
        daemon.tick()
    assert {one.name: one.code for one in world.ledger.health.all() if one.error} == {
        "pub": "stuck"
    }


def served_at(
    world: World, monkeypatch: pytest.MonkeyPatch, answer: object, until: float
) -> list[float]:
    """When a request was handed out, in seconds after it came; ``answer``: what came of it."""
    times: list[float] = []
    began = world.now

    def serve(*_: object, **__: object) -> bool:
        times.append(world.now - began)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    monkeypatch.setattr(Round, "serve", serve)
    world.program("resume", ["pub1"], {}, received=world.now)
    while world.now - began <= until:
        world.tick()
        world.now += 0.5
    return times


@pytest.mark.parametrize(
    ("answer", "times", "left"),
    [
        (DEAD, [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0, 91.0], 1),
        (sqlite3.OperationalError("locked"), [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0, 91.0], 1),
        (KeyError("bug"), [0.0, 1.0, 3.0], 0),
        (TransientError("pub", "Busy", "x"), [0.0, 1.0, 3.0], 0),
        (True, [0.0, 5.0, 10.0, 15.0, 20.0], 1),
        (False, [0.0], 0),
    ],
    ids=["slurm", "ledger", "bug", "cloud", "waits", "done"],
)
def test_when_a_request_is_served_again(
    world: World, monkeypatch: pytest.MonkeyPatch, answer: object, times: list[float], left: int
) -> None:
    """One, two, four and so on to thirty seconds after it failed; five after it began to wait for
    its turn.
    """
    until = 20.0 if answer is True else 100.0
    assert served_at(world, monkeypatch, answer, until) == times
    assert world.spool.count() == left


def test_it_beats_every_five_seconds(world: World) -> None:
    beats: set[float] = set()
    for _ in range(33):
        world.tick()
        beat = world.ledger.health.heartbeat(DAEMON)
        assert beat is not None
        assert beat[1] == os.getpid()
        beats.add(beat[0] - T0)
        world.now += 0.5
    assert sorted(beats) == [0.0, 5.0, 10.0, 15.0]
    mark = read_mark(world.dir)
    assert mark is not None
    assert (mark.at, mark.pid) == (T0 + 15, os.getpid())


def test_a_start_with_a_clock_far_ahead_keeps_the_costs_and_the_history(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    world.slurm.finish(1)
    world.advance(600)
    before, machines = world.now, world.ledger.machines.live(ended_since=0)
    decisions = world.kinds("pub1")
    assert machines
    assert world.alive() == []
    world.now = before + 730 * 86400.0
    world.restart()
    world.tick()
    world.now = before + 5
    world.restart()
    world.tick()
    assert world.ledger.machines.live(ended_since=0) == machines
    assert world.kinds("pub1")[: len(decisions)] == decisions


def test_what_is_older_than_thirty_days_is_forgotten_once_an_hour(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned: list[tuple[float, float]] = []
    compacted: list[float] = []
    monkeypatch.setattr(world.ledger, "prune", lambda to: pruned.append((world.now - T0, to)))
    monkeypatch.setattr(world.ledger, "compact", compacted.append)
    looked: list[float] = []
    monkeypatch.setattr(
        world.site.spool, "remove_stale_drafts", lambda: looked.append(world.now - T0)
    )
    for _ in range(150):
        world.tick()
        world.now += 60
    assert looked == [at for at, _ in pruned], "drafts of killed programs"
    assert [at for at, _ in pruned] == [0, 3600, 7200]
    assert [at + T0 - to for at, to in pruned] == [30 * 86400.0] * 3
    assert len(compacted) == 3


def test_a_state_directory_that_fails_again_is_told_of_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(world.ledger.health, "beat", full)
            world.advance(30)
        world.advance(30)
    assert caplog.text.count("state directory cannot be used") == 2


class Loop:
    """A wake socket that tells what the test says, and ends the daemon then."""

    def __init__(self, stop: threading.Event, *events: bytes) -> None:
        self.stop, self.events, self.waits = stop, events, []  # type: ignore[var-annotated]

    def wait(self, seconds: float) -> list[bytes]:
        self.waits.append(seconds)
        self.stop.set()
        return list(self.events)

    def ring(self) -> None: ...


@pytest.mark.parametrize(
    ("events", "ended"), [((b'{"event": "resume"}',), 0), ((b"x", b'{"event": "job-end"}'), 1)]
)
def test_it_tells_of_a_job_that_has_ended_and_closes_all_that_it_has(
    world: World, events: tuple[bytes, ...], ended: int
) -> None:
    closed: list[str] = []
    looked: list[str] = []

    class Worker(Inline):
        def __init__(self, name: str) -> None:
            self.name = name

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            assert wait
            assert cancel_futures
            closed.append(self.name)

    class Part:
        def __init__(self, worker: Worker) -> None:
            self.name = f"part {worker.name}"
            self.task = SiteTask(world.site, worker, self.look, self.name, period=1.0)

        def look(self) -> None:
            looked.append(self.name)

        def close(self) -> None:
            closed.append(self.name)

    jobs: list[int] = []
    stop = threading.Event()
    wake = Loop(stop, *events)
    parts = Extensions(
        parts=[("keys", Part), ("network", Part)], on_job_end=[lambda: jobs.append(1)]
    )  # type: ignore[list-item]
    daemon = Daemon(
        world.site, world.spool, wake, Worker,  # type: ignore[arg-type]
        features=[lambda _: None, lambda _: parts],
    )  # fmt: skip
    daemon.run(stop)
    assert len(jobs) == ended
    assert looked == ["part keys", "part network"], "they are looked at with the others"
    own = [*OWN_WORKERS, "keys", "network"]
    assert closed[: len(own)] == own, "what hands out work ends first"
    assert set(closed[len(own) : -2]) == {"onp", "pub"}
    assert closed[-2:] == ["part keys", "part network"]
    assert wake.waits == [1.0]


def test_it_looks_more_often_while_something_has_to_settle(world: World) -> None:
    stop = threading.Event()
    wake = Loop(stop)
    daemon = Daemon(
        world.site, world.spool, wake, lambda _: Inline(),  # type: ignore[arg-type]
        features=FEATURES,
    )  # fmt: skip
    world.slurm.set_job(7, "CONFIGURING", nodes=("pub1",))
    world.site.requeues.expect(world.slurm.queue()[7], world.now, ["pub1"])
    daemon.run(stop)
    assert wake.waits == [0.3]


def test_threads_without_anything_to_do_are_not_woken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    assert "RUNNING" in world.slurm.queue()[1].states
    woken: list[str] = []

    class Worker(Inline):
        def __init__(self, name: str) -> None:
            self.name = name

        def submit(self, *of: Any, **more: Any) -> Future[Any]:
            if self.name in ("overdue", "settle"):
                woken.append(self.name)
            return super().submit(*of, **more)

    world.daemon = Daemon(
        world.site, world.spool, Silent(), Worker,  # type: ignore[arg-type]
        features=FEATURES,
    )  # fmt: skip
    world.advance(60)
    woken.clear()
    world.advance(60)
    assert woken == []
    world.slurm.submit(2, ("pub2",))
    world.advance(5)
    assert set(woken) == {"overdue"}, "a machine boots, and no node is held"
    world.advance(60)
    woken.clear()
    world.advance(60)
    assert woken == []


def test_a_round_that_runs_is_not_begun_again(world: World) -> None:
    begun: dict[str, list[Future[bool]]] = {}

    class Slow(Inline):
        def __init__(self, name: str) -> None:
            self.rounds = begun.setdefault(name, [])

        def submit(self, *_: object, **__: object) -> Future[bool]:  # type: ignore[override]
            self.rounds.append(Future())
            return self.rounds[-1]

    daemon = Daemon(
        world.site, world.spool, Silent(), Slow,  # type: ignore[arg-type]
        features=FEATURES,
    )  # fmt: skip
    for _ in range(3):
        daemon.tick()
        world.now += world.config.timings.reconcile_interval - 1
        daemon.tick()
        world.now += 1
    assert len(begun["pub"]) == len(begun["onp"]) == 1
    begun["pub"][0].set_result(True)
    daemon.tick()
    assert (len(begun["pub"]), len(begun["onp"])) == (2, 1)


def test_a_request_stays_until_each_cloud_is_done_with_its_part(world: World) -> None:
    """And the daemon waits for none of them."""
    parts: list[Callable[[], None]] = []

    class Slow(Inline):
        def submit(self, work: Any, *rest: Any, **more: Any) -> Future[Any]:
            if work.__name__ != "serve":
                return super().submit(work, *rest, **more)
            parts.append(lambda: work(*rest, **more))
            return Future()

    daemon = Daemon(
        world.site, world.spool, Silent(), lambda _: Slow(),  # type: ignore[arg-type]
        features=FEATURES,
    )  # fmt: skip
    world.program("resume", ["pub1", "op1"], {1: ["pub1"], 2: ["op1"]})
    for part in (0, 1):
        daemon.tick()
        assert (len(parts), world.spool.count()) == (2, 1)
        parts[part]()
    daemon.tick()
    assert (len(parts), world.spool.count()) == (2, 0)


def test_it_beats(world: World) -> None:
    world.advance(20)
    beat = world.ledger.health.heartbeat(DAEMON)
    assert beat is not None
    assert world.now - beat[0] <= 10


def test_a_stop_in_the_middle_of_a_launch_is_clean_and_loses_nothing(tmp_path: Path) -> None:
    """With real threads and real time: the cloud is busy, and the service does not wait for it."""
    world = World(tmp_path)
    stop = threading.Event()
    site = dataclasses.replace(world.site, wait=stop.wait, monotonic=time.monotonic)
    world.clouds["pub"].fail_next(TransientError, 10_000, "launch")
    with WakeSocket(tmp_path / "wake.sock") as wake:
        daemon = Daemon(site, world.spool, wake, features=FEATURES)
        thread = threading.Thread(target=daemon.run, args=(stop,))
        world.slurm.submit(1, ("pub1",))
        thread.start()
        eventually(lambda: launches(world) > 0)
        stop.set()
        thread.join(patience(30))
        assert not thread.is_alive()
    assert len(world.ledger.launches.open()) == 1
    world.clouds["pub"].heal()
    world.restart()
    world.advance(60)
    assert len(world.machines_of("pub1")) == 1
    assert world.ledger.launches.open() == ()
    world.close()


def test_the_job_of_a_refused_node_is_hurried_without_another_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real threads, and a loop that would sleep for an hour after the request came."""
    monkeypatch.setattr("slurm_elastic.controller.daemon.TICK_S", 3600.0)
    world = World(tmp_path)
    world.clouds["pub"].limit("*", 0)
    stop = threading.Event()
    site = dataclasses.replace(world.site, wait=stop.wait, monotonic=time.monotonic)
    with WakeSocket(tmp_path / "wake.sock") as wake:
        daemon = Daemon(site, world.spool, wake, features=FEATURES)
        thread = threading.Thread(target=daemon.run, args=(stop,))
        thread.start()
        try:
            eventually(lambda: not daemon.settler.is_busy)
            world.slurm.submit(1, ("pub1",))
            wake.ring()  # as the program's datagram does
            eventually(lambda: world.slurm.calls["start_now"])
        finally:
            stop.set()
            wake.ring()
            thread.join(patience(60))
        assert not thread.is_alive()
    world.close()
