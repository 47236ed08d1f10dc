"""Without a ledger that can be written machines still end, nothing is bought, and it comes back."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import EndOnlyError, SlurmError, TransientError
from slurm_elastic.model.causes import Quoted, decoded
from slurm_elastic.model.changed_jobs import ChangedJob, JobValues
from slurm_elastic.model.cluster import Instance, LaunchSpec, Market, Offer, Pool
from slurm_elastic.model.directive import Directive, LimitChange, Pause, Word
from slurm_elastic.model.job_key import JobKey
from slurm_elastic.state.heartbeat import read_mark
from slurm_elastic.state.ledger import Ledger, Machine
from slurm_elastic.state.ledger.machines import Machines
from slurm_elastic.state.store.disk import Disk
from slurm_elastic.state.store.endurance import READ_SEGMENT_EVERY_S, READ_VIEW_EVERY_S
from slurm_elastic.state.store.journal import Journal, Position
from tests.controller.world import Killed, World

FULL = "slurm_elastic.state.store.endurance.require_room"


class EnduringWorld(World):
    """As the daemon has its ledger."""

    def make_ledger(self) -> Ledger:
        return Ledger.enduring(self.dir / "ledger.db", lambda: self.now, lambda: self.now)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of the tests last until they are let go."""
    monkeypatch.setattr("slurm_elastic.state.store.endurance.LOCK_TIMEOUT_S", 0.01)
    monkeypatch.setattr("slurm_elastic.state.store.view.BUSY_TIMEOUT", 0.1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[EnduringWorld]:
    made = EnduringWorld(tmp_path)
    yield made
    made.close()


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def launches(world: World) -> int:
    return sum(call.name == "launch" for c in world.clouds.values() for call in c.calls)


def run_one(world: World, job: int, node: str) -> None:
    world.slurm.submit(job, (node,))
    world.advance(60)
    assert "RUNNING" in world.slurm.queue()[job].states


def forget_requests(world: World) -> None:
    """slurmctld's programs could not write them: the disk is full for these, too."""
    for file in (world.dir / "requests").glob("*.json"):
        file.unlink()


def in_file(world: World) -> dict[str, tuple[float | None, str | None]]:
    """By machine: its end and why, as another process reads them from the file."""
    with closing(sqlite3.connect(world.dir / "ledger.db")) as db:
        rows = db.execute("select id, ended, cause from machines").fetchall()
    return {i: (end, cause and str(decoded(cause))) for i, end, cause in rows}


def write_out(world: World) -> None:
    """All of the ledger is in its file, and nothing beside it."""
    with closing(sqlite3.connect(world.dir / "ledger.db")) as db:
        assert db.execute("pragma wal_checkpoint(truncate)").fetchone()[0] == 0


def hold_lock(world: World) -> sqlite3.Connection:
    other = sqlite3.connect(world.dir / "ledger.db", isolation_level=None, timeout=0)
    other.execute("begin immediate")
    return other


def test_with_a_full_disk_a_suspended_node_loses_its_machine_and_nothing_is_bought(
    world: EnduringWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_one(world, 1, "pub1")
    run_one(world, 2, "pub2")
    bought = launches(world)
    with monkeypatch.context() as patched:
        patched.setattr(FULL, no_room)
        world.slurm.finish(1)
        world.advance(10)
        assert "is full" in world.ledger.end_only
        world.slurm.submit(3, ("pub3",))
        world.advance(900)
        assert world.machines_of("pub1") == []
        assert launches(world) == bought
        assert "RUNNING" in world.slurm.queue()[2].states, "what runs goes on"
        assert "No space left" in str(read_mark(world.dir))
        told = world.kinds("pub1")
    assert caplog.text.count("endurance.py") == 1, "told once"
    world.advance(60)
    assert world.ledger.end_only == ""
    assert told
    assert world.kinds("pub1")[-len(told) :] == told, "explain knows of it afterwards, too"
    ended = in_file(world)
    assert sum(end is not None for end, _ in ended.values()) == 1
    assert {why for end, why in ended.values() if end is not None} == {"suspended by Slurm"}
    world.advance(600)
    assert "RUNNING" in world.slurm.queue()[3].states, "it was bought once that could be kept"


def test_with_a_full_disk_no_machine_is_stopped_to_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the ledger next would not know of it."""
    world = EnduringWorld(tmp_path)
    burst = replace(world.config.pools[1], max_stopped=1, markets=(Market.ON_DEMAND,))
    world.config = replace(world.config, pools=(world.config.pools[0], burst))
    world.restart()
    run_one(world, 1, "pub1")
    monkeypatch.setattr(FULL, no_room)
    world.advance(10)
    world.slurm.finish(1)
    world.advance(400)
    assert world.ledger.end_only
    assert world.alive() == []
    assert "stop" not in {call.name for call in world.clouds["pub"].calls}
    world.close()


def test_a_lost_suspend_request_ends_its_machine_after_the_grace(
    world: EnduringWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_one(world, 1, "pub1")
    monkeypatch.setattr(FULL, no_room)
    world.advance(10)
    world.slurm.finish(1)
    deadline = world.now + 1200
    while world.machines_of("pub1") and world.now < deadline:
        forget_requests(world)
        world.advance(5)
    assert world.machines_of("pub1") == []


def test_what_a_list_tells_is_kept_though_the_file_fails_right_then(
    world: EnduringWorld,
) -> None:
    """A machine that its cloud had denied is back for this one list, and gone before the next."""
    run_one(world, 1, "pub1")
    (machine,) = world.alive()
    world.ledger.machines.record_end("pub", [machine.id], Quoted(text="not listed"), world.now)
    other = hold_lock(world)
    world.ledger.store._db.execute("pragma busy_timeout = 10")
    world.now += 1.0
    world.daemon.rounds["pub"].run()  # type: ignore[union-attr]
    other.close()
    (row,) = world.ledger.machines.live()
    assert (row.instance.id, row.ended_at) == (machine.id, None)


def test_what_was_taken_back_in_memory_alone_is_not_bought_again_after_a_power_cut(
    world: EnduringWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cloud had denied a machine; the disk is full as it lists it once more."""
    run_one(world, 1, "pub1")
    (machine,) = world.alive()
    world.ledger.machines.record_end("pub", [machine.id], Quoted(text="not listed"), world.now)
    with monkeypatch.context() as patched:
        patched.setattr(FULL, no_room)
        world.ledger.check()
        world.now += 1.0
        world.daemon.rounds["pub"].run()  # type: ignore[union-attr]
        (row,) = world.ledger.machines.live()
        assert (row.instance.id, row.ended_at) == (machine.id, None)
        world.stop()
    world.start()
    assert [end for end, _ in in_file(world).values() if end is None] == []
    world.clouds["pub"].fail_next(TransientError, 1, "instances")
    world.program("resume", ("pub1",), {1: ("pub1",)})
    world.slurm.set_node("pub1", "ALLOCATED", "CLOUD", "POWERING_UP")
    bought = launches(world)
    world.advance(60)
    assert launches(world) == bought


def test_a_ledger_that_is_lost_while_a_cloud_tells_its_offers_buys_nothing_before_a_list(
    world: EnduringWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_one(world, 1, "pub1")
    cloud, known = world.clouds["pub"], []
    offers, launch = cloud.offers, cloud.launch

    def lost(pool: Pool) -> Sequence[Offer]:
        monkeypatch.setattr(cloud, "offers", offers)
        with world.ledger.store.transaction(
            "machines", "complete"
        ) as db:  # nothing could be read of it
            db.execute("delete from machines")
            db.execute("delete from read_whole")
        return offers(pool)

    def bought(spec: LaunchSpec) -> Sequence[Instance]:
        known.append({m.instance.node for m in world.ledger.machines.live()})
        return launch(spec)

    monkeypatch.setattr(cloud, "offers", lost)
    monkeypatch.setattr(cloud, "launch", bought)
    world.slurm.submit(2, ("pub2",))
    world.advance(120)
    assert known == [{"pub1"}], "what the cloud has was taken in first"
    assert "RUNNING" in world.slurm.queue()[2].states


def test_waiting_jobs_are_sent_elsewhere_with_the_reason(
    world: EnduringWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FULL, no_room)
    world.advance(10)
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    assert "refused" not in world.kinds("pub1"), "it may soon be over"
    world.advance(120)
    assert "refused" in world.kinds("pub1")
    reasons = [str(d.reason) for d in world.ledger.decisions.about("pub1") if d.kind == "refused"]
    assert "end-only: the disk of" in reasons[0]
    assert "slurm-elastic:hold:" in world.slurm.node("pub2").reason
    assert launches(world) == 0


def test_the_repair_of_a_node_without_a_request_says_only_what_was_found(
    world: EnduringWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a full disk nothing is bought, so nobody can tell by that whether a request was lost."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(FULL, no_room)
    world.advance(10)
    world.slurm.submit(1, ("pub1",))
    deadline = world.now + 300
    while "refused" not in world.kinds("pub1") and world.now < deadline:
        forget_requests(world)
        world.advance(5)
    found = "Slurm waits for it, and no request, launch or machine serves it"
    repairs = {r.getMessage() for r in caplog.records if r.getMessage().startswith("repair ")}
    assert repairs == {f"repair launch subject=pub1 reason={found}"}
    assert "refused" in world.kinds("pub1")
    assert launches(world) == 0


def test_nothing_can_be_intended_meanwhile(
    world: EnduringWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FULL, no_room)
    world.ledger.check()
    pool = world.site.pools["burst"]
    offer = world.clouds["pub"].offers(pool)[0]
    spec = LaunchSpec(generation="g1", pool=pool, nodes=("pub1",), offer=offer)
    with pytest.raises(EndOnlyError, match="is full"):
        world.ledger.launches.record_intent(spec, "r", 0.0)
    assert world.ledger.launches.open() == ()


def test_what_is_told_is_what_is_wrong_now(
    world: EnduringWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(FULL, no_room)
        world.ledger.check()
        assert "is full" in world.ledger.end_only
    other = hold_lock(world)
    world.advance(30)
    assert "has locked" in world.ledger.end_only
    other.execute("rollback")
    other.close()
    world.advance(30)
    assert world.ledger.end_only == ""


def test_a_locked_ledger(world: EnduringWorld) -> None:
    run_one(world, 1, "pub1")
    bought = launches(world)
    other = hold_lock(world)
    world.ledger.store._db.execute("pragma busy_timeout = 100")
    world.slurm.finish(1)
    world.slurm.submit(2, ("pub2",))
    world.advance(900)
    assert "has locked" in world.ledger.end_only
    assert world.machines_of("pub1") == []
    assert launches(world) == bought
    other.execute("rollback")
    other.close()
    world.advance(30)
    assert world.ledger.end_only == ""
    assert [why for end, why in in_file(world).values() if end] == ["suspended by Slurm"]


def test_a_locked_ledger_at_the_start(world: EnduringWorld) -> None:
    """Nothing of it can be written; what was running goes on, what is not needed ends."""
    run_one(world, 1, "pub1")
    run_one(world, 2, "pub2")
    world.stop()
    other = hold_lock(world)
    world.slurm.finish(1)
    world.start()
    world.advance(900)
    assert world.machines_of("pub1") == []
    assert "RUNNING" in world.slurm.queue()[2].states
    other.execute("rollback")
    other.close()
    world.advance(30)
    assert world.ledger.end_only == ""
    rows = {m.instance.node: m for m in world.ledger.machines.live(ended_since=0.0)}
    assert rows["pub1"].has_ended
    assert rows["pub2"].jobs == (2,), "the file knew more of it than its tags tell"


@pytest.mark.parametrize("content", [b"not a database, but long enough\n" * 999, b"half"])
def test_a_corrupt_file_is_set_aside_and_its_machines_are_adopted(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world = EnduringWorld(tmp_path)
    run_one(world, 1, "pub1")
    run_one(world, 2, "pub2")
    world.stop()
    spoil(world.dir / "ledger.db", content)
    world.start()
    world.slurm.finish(1)
    world.slurm.submit(3, ("pub3",))
    world.advance(900)
    assert world.ledger.end_only == ""
    assert len(list(world.dir.glob("ledger.db.damaged-*"))) >= 1
    assert "was set aside as" in caplog.text
    assert world.machines_of("pub1") == []
    assert len(world.machines_of("pub2")) == 1, "neither ended nor bought twice"
    assert "RUNNING" in world.slurm.queue()[2].states
    assert {i.id for i in world.alive()} <= {m.instance.id for m in world.ledger.machines.live()}
    world.close()


def spoil(path: Path, content: bytes) -> None:
    if content == b"half":  # its pages but the first
        size = path.stat().st_size
        content = path.read_bytes()[:4096] + os.urandom(size - 4096)
    path.write_bytes(content)


def test_a_page_that_goes_bad_under_the_daemon(world: EnduringWorld) -> None:
    run_one(world, 1, "pub1")
    path = world.dir / "ledger.db"
    write_out(world)
    spoil(path, b"half")
    world.slurm.finish(1)
    world.advance(900)
    assert world.ledger.end_only == ""
    assert world.machines_of("pub1") == []
    assert list(world.dir.glob("ledger.db.damaged-*"))


def test_pages_that_nobody_asks_for_are_read_within_a_minute(world: EnduringWorld) -> None:
    run_one(world, 1, "pub1")
    world.advance(READ_VIEW_EVERY_S + 10)
    write_out(world)
    spoil(world.dir / "ledger.db", b"half")
    world.advance(READ_VIEW_EVERY_S + 10)
    assert list(world.dir.glob("ledger.db.damaged-*"))


def test_a_file_that_is_overwritten_under_the_daemon_is_noticed_within_a_minute(
    world: EnduringWorld,
) -> None:
    """sqlite answers from its cache for as long as nobody else writes."""
    run_one(world, 1, "pub1")
    for path in world.dir.glob("ledger.db*"):
        size = path.stat().st_size
        if not path.name.endswith("-shm"):
            with path.open("r+b") as file:
                file.write(os.urandom(size))
    world.advance(90)
    assert world.ledger.end_only == ""
    assert list(world.dir.glob("ledger.db.damaged-*"))
    (row,) = Ledger(world.dir / "ledger.db", read_only=True).machines.live()
    assert row.jobs == (1,), "what its own connection still had"


def test_a_file_that_is_removed_under_the_daemon_is_made_again_of_what_it_knows(
    world: EnduringWorld,
) -> None:
    run_one(world, 1, "pub1")
    for file in world.dir.glob("ledger.db*"):
        file.unlink()
    world.advance(60)
    assert world.ledger.end_only == ""
    (row,) = Ledger(world.dir / "ledger.db", read_only=True).machines.live()
    assert row.jobs == (1,)
    assert row.registered_at is not None
    run_one(world, 2, "pub2")
    assert launches(world) == 2


def test_a_ledger_that_may_not_be_written(world: EnduringWorld) -> None:
    run_one(world, 1, "pub1")
    world.ledger.store._db.execute("pragma query_only = on")  # what a read-only disk answers
    world.slurm.finish(1)
    world.advance(900)
    assert world.machines_of("pub1") == []


def test_after_a_loss_no_cloud_buys_before_all_machines_count(world: EnduringWorld) -> None:
    """limits.nodes is for all clouds together: 4, and three run in the cloud that answers late."""
    for job, node in enumerate(("op1", "op2", "pub1"), 1):
        run_one(world, job, node)
    world.stop()
    (world.dir / "ledger.db").write_bytes(b"x" * 9999)
    world.start()
    world.slurm.submit(4, ("pub2",))
    world.slurm.submit(5, ("pub3",))
    world.advance(300)
    assert len(world.alive()) <= 4


def test_doubt_ends_nothing(world: EnduringWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an answer that failed nor a node that is powered down for a moment only."""
    run_one(world, 1, "pub1")
    monkeypatch.setattr(FULL, no_room)
    world.advance(10)
    world.slurm.finish(1)
    world.slurm.broken = SlurmError(("sinfo",), 1, "Unable to contact slurm controller")
    world.advance(600)
    assert world.machines_of("pub1") != []
    world.slurm.broken = None
    world.clouds["pub"].fail_next(TransientError, 1000, "instances")
    forget_requests(world)
    world.advance(300)
    assert launches(world) == 1


def test_what_was_paid_is_known_after_the_whole_file_was_spoilt(world: EnduringWorld) -> None:
    run_one(world, 1, "pub1")
    world.slurm.finish(1)
    world.advance(READ_SEGMENT_EVERY_S + world.config.timings.suspend_time)
    ended = {id_: end for id_, (end, _) in in_file(world).items() if end is not None}
    assert len(ended) == 1
    world.advance(READ_SEGMENT_EVERY_S)
    spoil_all(world)
    world.advance(120)
    assert world.ledger.end_only == ""
    assert {id_: end for id_, (end, _) in in_file(world).items()} == ended


def spoil_all(world: World) -> None:
    """The whole file, so that nothing of it can be read."""
    path = world.dir / "ledger.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    path.write_bytes(b"\xa5" * path.stat().st_size)


@pytest.mark.parametrize("stopped", [False, True])
def test_what_was_bought_and_ended_just_now_is_known_then_too(
    world: EnduringWorld, *, stopped: bool
) -> None:
    world.advance(1)
    run_one(world, 1, "pub1")
    run_one(world, 2, "pub2")
    world.slurm.finish(1)
    off = world.now + 900
    while world.machines_of("pub1") and world.now < off:
        world.advance(5)
    world.advance(10)
    before = {m.instance.id: m for m in world.ledger.machines.live(ended_since=0.0)}
    assert [m.ended_at is None for m in before.values()] == [False, True]
    if stopped:
        world.stop()
    spoil_all(world)
    if stopped:
        world.start()
    world.advance(120)
    assert world.ledger.end_only == ""
    after = {m.instance.id: m for m in world.ledger.machines.live(ended_since=0.0)}
    assert {i: (m.ended_at, m.instance.launched, m.instance.price) for i, m in after.items()} == {
        i: (m.ended_at, m.instance.launched, m.instance.price) for i, m in before.items()
    }
    assert [m.jobs for m in after.values()] == [m.jobs for m in before.values()]


def test_what_is_bought_after_the_file_was_away_is_known_without_it(world: EnduringWorld) -> None:
    world.advance(1)
    other = hold_lock(world)
    world.advance(120)
    assert world.ledger.end_only
    other.close()
    world.advance(120)
    assert world.ledger.end_only == ""
    run_one(world, 1, "pub1")
    world.slurm.finish(1)
    off = world.now + 900
    while world.machines_of("pub1") and world.now < off:
        world.advance(5)
    (before,) = world.ledger.machines.live(ended_since=0.0)
    spoil_all(world)
    world.advance(120)
    (after,) = world.ledger.machines.live(ended_since=0.0)
    assert before.ended_at is not None
    assert (after.instance.id, after.ended_at) == (before.instance.id, before.ended_at)


def test_a_machine_that_goes_before_the_ledger_can_take_it_in_is_written_down_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paid, and lists told of it."""
    world = EnduringWorld(tmp_path)
    run_one(world, 1, "pub1")
    (machine,) = world.machines_of("pub1")
    world.stop()
    for path in (*world.dir.glob("ledger.db*"), *world.dir.glob("journal/ledger[-.]*")):
        path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Machines, "adopt", broken_disk)
        world.start()
        world.advance(60)
        assert machine not in rows(world)
        world.clouds["pub"].terminate([machine])
        world.advance(60)
        assert machine not in rows(world)
    world.advance(60)
    row = rows(world)[machine]
    assert row.ended_at is not None
    assert row.instance.launched < world.now - 180 < row.ended_at <= world.now
    assert "ended before slurm-elasticd could write its records" in str(row.cause_text)
    world.close()


@pytest.mark.parametrize("error", [ValueError("no such state"), None])
def test_a_gone_machine_that_cannot_be_taken_in_or_is_known_stops_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    world = EnduringWorld(tmp_path)
    run_one(world, 1, "pub1")
    (mine,) = world.alive()
    other = replace(mine, id="pub-x") if error else mine
    world.slurm.finish(1)
    world.clouds["pub"].terminate([mine.id])
    world.advance(300)
    ended = rows(world)[mine.id].ended_at
    assert ended is not None
    world.site.unadopted["pub", other.id] = other

    def poisoned(*_: object) -> None:
        raise error or AssertionError

    monkeypatch.setattr(Machines, "adopt", poisoned)
    world.advance(60)
    assert not world.site.unadopted
    assert {id_: row.ended_at for id_, row in rows(world).items()} == {mine.id: ended}
    assert {h.name: h.error for h in world.ledger.health.all()}["pub"] is None
    world.close()


def broken_disk(*_: object) -> None:
    raise sqlite3.OperationalError("disk I/O error")


def rows(world: World) -> dict[str, Machine]:
    return {m.instance.id: m for m in world.ledger.machines.live(ended_since=0.0)}


# A kill between a line of the journal and the view's commit, and what others than the daemon write.


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, World], None]:
    """Dies right after the line of a row that ``sql`` counts, before the view has it."""

    def arm(sql: str, world: World) -> None:
        real = Journal.append

        def append(self: Journal, *args: Any) -> Position:
            end = real(self, *args)
            disk = world.ledger.store._home._found  # type: ignore[union-attr]
            if isinstance(disk, Disk) and disk.db.execute(sql).fetchone()[0]:
                monkeypatch.setattr(Journal, "append", real)
                raise Killed
            return end

        monkeypatch.setattr(Journal, "append", append)

    return arm


STEPS = {
    "intended": "select count(*) from launches where state = 'intent'",
    "bought": "select count(*) from machines",
    "asked to end": "select count(*) from machines where suspending is not null",
    "ended": "select count(*) from machines where ended is not null",
}


def die_at(world: World, step: str, killed: Callable[[str, World], None]) -> None:
    world.advance(1)
    killed(STEPS[step], world)
    world.slurm.submit(1, ("pub1",))
    for _ in range(300):
        world.advance(5)
        if 1 in world.slurm.queue() and "RUNNING" in world.slurm.queue()[1].states:
            world.slurm.finish(1)
        if world.daemon is None:
            return
    raise AssertionError("it was not killed")


@pytest.mark.parametrize("step", STEPS)
def test_what_was_committed_right_before_a_kill_is_known_when_the_file_is_lost_soon(
    world: EnduringWorld, killed: Callable[[str, World], None], step: str
) -> None:
    die_at(world, step, killed)
    world.start()
    world.tick()
    before = {m.instance.id: m for m in world.ledger.machines.live(ended_since=0.0)}
    assert before or step == "intended"
    spoil_all(world)
    world.advance(READ_SEGMENT_EVERY_S + 2 * READ_VIEW_EVERY_S)
    after = {m.instance.id: m for m in world.ledger.machines.live(ended_since=0.0)}
    for id_, one in before.items():
        assert (after[id_].instance.launched, after[id_].instance.price) == (
            one.instance.launched, one.instance.price
        )  # fmt: skip
        if one.ended_at is not None:
            assert after[id_].ended_at == one.ended_at
    assert launches(world) <= 1
    assert in_books(world)


@pytest.mark.parametrize("how", ["spoilt", "removed"])
@pytest.mark.parametrize("step", STEPS)
def test_a_file_that_is_lost_with_the_kill_hides_no_machine(
    world: EnduringWorld, killed: Callable[[str, World], None], step: str, how: str
) -> None:
    die_at(world, step, killed)
    if how == "spoilt":
        spoil_all(world)
    else:
        for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
            (world.dir / name).unlink(missing_ok=True)
    world.start()
    world.advance(READ_SEGMENT_EVERY_S)
    assert world.ledger.end_only == ""
    assert launches(world) <= 1
    assert in_books(world)


def in_books(world: World) -> bool:
    """Each machine that was made is in the ledger as it was bought, and not for less than it
    cost.
    """
    found = rows(world)
    made = [m for a in world.accounts.values() for m in a.machines.values() if m.owner == "uuid-1"]
    return all(
        found[m.instance.id].instance.launched == m.instance.launched
        and found[m.instance.id].instance.price == m.instance.price
        for m in made
    )


@pytest.mark.parametrize("how", ["spoilt", "removed"])
def test_an_operators_word_outlives_the_file_and_one_that_was_ended_does_not_come_back(
    world: EnduringWorld, how: str
) -> None:
    """As ``slurm-elastic pause`` and ``limit`` write it, in a process of their own."""
    world.advance(1)
    with closing(Ledger(world.dir / "ledger.db")) as theirs:
        over = theirs.directives.give(order(Pause(scope="cloud:pub"), world.now))
        stays = theirs.directives.give(
            order(LimitChange(scope="", key="nodes", value=1), world.now)
        )
    world.advance(5)
    with closing(Ledger(world.dir / "ledger.db")) as theirs:
        theirs.directives.end(over.number)
    world.advance(5)
    world.stop()
    if how == "spoilt":
        spoil_all(world)
    else:
        for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
            (world.dir / name).unlink(missing_ok=True)
    world.start()
    world.advance(30)
    assert world.ledger.end_only == ""
    assert world.ledger.directives.all() == (stays,)


def order(word: Word, now: float) -> Directive:
    return Directive(word=word, who="root", since=now, starts=now, until=None, reason="")


def test_how_jobs_were_before_they_were_changed_outlives_the_file(world: EnduringWorld) -> None:
    world.advance(1)
    row = ChangedJob(
        key=JobKey(number=7), own=JobValues(partitions=("pub", "onp")),
        latest=JobValues(partitions=("onp",)),
    )  # fmt: skip
    world.ledger.changed_jobs.keep([row])
    world.ledger.requeues.lift(8, 0, world.now)
    world.stop()
    spoil_all(world)
    world.start()
    world.ledger.check()
    assert world.ledger.changed_jobs.all() == (row,)
    assert world.ledger.requeues.lifted() == ((8, 0),)


def test_a_view_that_is_gone_is_made_by_whoever_comes_first(world: EnduringWorld) -> None:
    run_one(world, 1, "pub1")
    world.stop()
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (world.dir / name).unlink(missing_ok=True)
    with closing(Ledger.followed(world.dir / "ledger.db")) as other:
        assert [m.instance.node for m in other.machines.live()] == ["pub1"]
        world.start()
        world.advance(30)
        assert other.machines.live() == world.ledger.machines.live()


@pytest.mark.parametrize("how", ["removed", "cut", "damaged"])
def test_a_journal_that_is_lost_under_the_daemon_is_begun_anew_of_the_view(
    world: EnduringWorld, how: str
) -> None:
    run_one(world, 1, "pub1")
    (row,) = world.ledger.machines.live()
    journal = world.dir / "journal" / "ledger-000001.jsonl"
    if how == "removed":
        for one in journal.parent.glob("ledger*"):
            one.unlink()
    elif how == "cut":
        os.truncate(journal, 200)
    else:
        with journal.open("r+b") as file:
            file.seek(300)
            file.write(b"xxxx")
    world.advance(READ_SEGMENT_EVERY_S + 60)
    assert world.ledger.end_only == ""
    world.stop()
    for file in world.dir.glob("ledger.db*"):
        file.unlink()
    world.start()
    (again,) = world.ledger.machines.live()
    assert (
        (again.jobs, again.registered_at)
        == (row.jobs, row.registered_at)
        == ((1,), row.registered_at)
    )
    assert launches(world) == 0, "nothing is bought again"
