"""The loop: requests stay until they are served, and nothing of one stops the others."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from patience import eventually, patience

from slurm_elastic.controller.daemon import Daemon
from slurm_elastic.controller.notify_socket import WakeSocket
from slurm_elastic.errors import SlurmError, TransientError
from slurm_elastic.heartbeat import DAEMON
from tests.controller.world import World

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
        patched.setattr(world.ledger, "intend", full)
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
        for method in ("beat", "record", "report_health", "intend", "prune", "compact", "observe"):
            patched.setattr(world.ledger, method, full)
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


def test_while_slurm_is_dead_the_request_stays_however_long(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    world.slurm.broken = DEAD
    world.advance(300)
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
    def broken(*_: object) -> None:
        raise KeyError("bug")

    world.slurm.submit(1, ("pub1",))
    with monkeypatch.context() as patched:
        patched.setattr("slurm_elastic.controller.daemon.resume", broken)
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


def test_it_beats(world: World) -> None:
    world.advance(20)
    beat = world.ledger.heartbeat(DAEMON)
    assert beat is not None
    assert world.now - beat[0] <= 10


def test_a_stop_in_the_middle_of_a_launch_is_clean_and_loses_nothing(tmp_path: Path) -> None:
    """With real threads and real time: the cloud is busy, and the service does not wait for it."""
    world = World(tmp_path)
    stop = threading.Event()
    site = dataclasses.replace(world.site, wait=stop.wait, monotonic=time.monotonic)
    world.clouds["pub"].fail_next(TransientError, 10_000, "launch")
    with WakeSocket(tmp_path / "wake.sock") as wake:
        daemon = Daemon(site, world.spool, wake, lambda: None)
        thread = threading.Thread(target=daemon.run, args=(stop,))
        world.slurm.submit(1, ("pub1",))
        thread.start()
        eventually(lambda: launches(world) > 0)
        stop.set()
        thread.join(patience(30))
        assert not thread.is_alive()
    assert world.spool.count() == 1
    assert len(world.ledger.open_launches()) == 1
    world.clouds["pub"].heal()
    world.restart()
    world.advance(60)
    assert len(world.machines_of("pub1")) == 1
    assert world.ledger.open_launches() == ()
    world.close()


def test_the_job_of_a_refused_node_is_hurried_without_another_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real threads, and a loop that would sleep for an hour after the request came."""
    monkeypatch.setattr("slurm_elastic.controller.daemon.TICK", 3600.0)
    world = World(tmp_path)
    world.clouds["pub"].limit("*", 0)
    stop = threading.Event()
    site = dataclasses.replace(world.site, wait=stop.wait, monotonic=time.monotonic)
    with WakeSocket(tmp_path / "wake.sock") as wake:
        daemon = Daemon(site, world.spool, wake, lambda: None)
        thread = threading.Thread(target=daemon.run, args=(stop,))
        thread.start()
        try:
            eventually(lambda: not daemon._settler.busy)
            world.slurm.submit(1, ("pub1",))
            wake.ring()  # as the program's datagram does
            eventually(lambda: world.slurm.calls["start_now"])
        finally:
            stop.set()
            wake.ring()
            thread.join(patience(60))
        assert not thread.is_alive()
    world.close()
