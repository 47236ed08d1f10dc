"""Jobs are saved and moved also where nothing can be written down, or the ledger is away."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.heartbeat import CKPTMAN_MARK, read_mark
from slurm_elastic.state.ledger import Ledger
from tests.ckptman.world import CkptWorld

FULL = "slurm_elastic.state.store.endurance.require_room"


class EnduringWorld(CkptWorld):
    """As the two services have their files."""

    def make_ledger(self) -> Ledger:
        return Ledger.enduring(self.dir / "ledger.db", lambda: self.now, lambda: self.now)

    def make_state(self) -> CheckpointState:
        return CheckpointState.enduring(
            self.dir / "checkpoints.db", lambda: self.now, lambda: self.now
        )

    def make_followed(self) -> Ledger:
        return Ledger.followed(self.dir / "ledger.db")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_elastic.state.store.endurance.LOCK_TIMEOUT_S", 0.01)
    monkeypatch.setattr("slurm_elastic.state.store.view.BUSY_TIMEOUT", 0.1)
    monkeypatch.setattr("slurm_elastic.state.store.disk.Elsewhere.LOCK_TIMEOUT_S", 0.1)
    monkeypatch.setattr("slurm_elastic.state.store.disk.Elsewhere.RETRY_AFTER_S", 0.0)


@pytest.fixture
def world() -> Iterator[EnduringWorld]:
    made = EnduringWorld()
    yield made
    made.close()


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def lock(world: EnduringWorld, name: str) -> sqlite3.Connection:
    other = sqlite3.connect(world.dir / name, isolation_level=None, timeout=0)
    other.execute("begin immediate")
    return other


def saved_in_file(world: EnduringWorld) -> list[int]:
    with closing(sqlite3.connect(world.dir / "checkpoints.db")) as db:
        return [job for (job,) in db.execute("select job from migrations where over = 1")]


def test_a_notice_on_a_full_disk_saves_and_moves_the_job(
    world: EnduringWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.runs(1)
    with monkeypatch.context() as patched:
        patched.setattr(FULL, no_room)
        world.advance(10)
        told = read_mark(world.dir, CKPTMAN_MARK)
        assert told is not None
        assert "in memory only: the disk of" in str(told.trouble)
        assert "forgotten if slurm-elastic-ckptman ends" in str(told.trouble)
        world.interrupt("pub1")
        world.until(lambda: world.job(1).restarts == 1)
        assert world.saver.images(world.state.migrations(since=0.0)[0].run)
    world.until(lambda: world.state.disk_trouble[0] == "")
    world.until(lambda: "RUNNING" in world.job(1).states, 1200)
    world.until(lambda: saved_in_file(world) == [1])


@pytest.mark.parametrize("name", ["checkpoints.db", "ledger.db"])
def test_a_lock_keeps_no_job_from_being_saved(world: EnduringWorld, name: str) -> None:
    world.runs(1)
    other = lock(world, name)
    world.interrupt("pub1")
    world.until(lambda: world.job(1).restarts == 1)
    other.execute("rollback")
    other.close()
    world.until(lambda: saved_in_file(world) == [1], 1200)


def test_started_without_a_ledger_machines_are_known_by_their_tags(world: EnduringWorld) -> None:
    world.runs(1)
    world.stop_ckptman()
    world.stop()  # both services have died; this one comes up first, and finds no ledger it can use
    (world.dir / "ledger.db").rename(world.dir / "gone.db")
    (world.dir / "ledger.db").mkdir()
    world.start_ckptman()
    machine = world.machine("pub1")
    world.interrupt("pub1")
    world.until(lambda: world.job(1).restarts == 1)
    assert machine in {w.notice.instance for w in world.state.notices()}


def test_the_daemons_new_ledger_is_followed(world: EnduringWorld) -> None:
    world.runs(1)
    world.stop()
    for file in world.dir.glob("ledger.db*"):
        file.unlink()
    world.start()
    world.advance(200)
    assert world.ckpt.ledger.machines.live()
    world.interrupt("pub1")
    world.until(lambda: world.job(1).restarts == 1)


def test_a_damaged_state_is_set_aside_and_jobs_go_on(world: EnduringWorld) -> None:
    world.runs(1)
    world.stop_ckptman()
    for file in world.dir.glob("checkpoints.db-*"):
        file.unlink()
    (world.dir / "checkpoints.db").write_bytes(b"no database at all, but long enough\n" * 99)
    world.start_ckptman()
    world.interrupt("pub1")
    world.until(lambda: world.job(1).restarts == 1)
    assert len(list(world.dir.glob("checkpoints.db.damaged-*"))) == 1
    world.until(lambda: saved_in_file(world) == [1], 1200)


def test_a_job_that_is_on_its_way_when_the_disk_fills_up_arrives(
    world: EnduringWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.runs(1)
    world.interrupt("pub1")
    world.until(lambda: bool(world.state.migrations()))
    with monkeypatch.context() as patched:
        patched.setattr(FULL, no_room)
        world.until(lambda: world.job(1).restarts == 1)
        world.advance(30)
    world.until(lambda: saved_in_file(world) == [1], 1200)


def test_a_ledger_that_comes_later_is_read_by_whichever_thread_asks_first(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.db"
    followed = Ledger.followed(path)
    with pytest.raises(sqlite3.OperationalError, match="no ledger at the moment"):
        followed.machines.live()
    path.parent.mkdir()
    with closing(Ledger(path)) as ledger:
        ledger.health.beat("somebody", 2.0, 1)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(followed.health.heartbeat, "somebody").result() == (2.0, 1)
    followed.close()
