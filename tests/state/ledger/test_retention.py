"""The ledger shortens what is over, and forgets it in the end; it keeps what lives as it is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from ledger_cases import T0, instance, offer, spec
from msgspec.structs import replace

from slurm_elastic.model.cluster import Instance, LaunchSpec
from slurm_elastic.model.memory import MACHINE_JOBS, Run
from slurm_elastic.state.ledger import Ledger, retention
from slurm_elastic.state.ledger import schema as ledger_schema
from slurm_elastic.state.store.files import open_memory

DAY = 86400.0
OFFERS = tuple(offer(zone=f"z{n}", price=0.01 * (n + 1), on_demand=0.2 + n) for n in range(12))
JOBS = tuple(range(100_000, 100_200))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    opened = Ledger(path)
    yield opened
    opened.close()


def ask(name: str, node: str = "pub1") -> LaunchSpec:
    return replace(spec(name, (node,), jobs=JOBS, bought=OFFERS[0]), alternatives=OFFERS[1:])


def machine(name: str, at: float) -> Instance:
    return instance(f"i-{name}", "pub1", name, launched=at, bought=OFFERS[3])


def launch(ledger: Ledger, name: str, at: float, lasts: float | None = 3600.0) -> None:
    """One machine; it ends after ``lasts`` seconds, if at all."""
    ledger.intend(ask(name), "r", at)
    ledger.launched(name, [machine(name, at)], at + 1)
    if lasts is not None:
        ledger.ended("aws", [f"i-{name}"], "idle", at + lasts)


def count(ledger: Ledger, table: str) -> int:
    return int(ledger._select(f"select count(*) from {table}")[0][0])


def test_a_finished_launch_keeps_the_offer_that_was_bought_and_its_first_jobs(
    ledger: Ledger,
) -> None:
    launch(ledger, "g1", T0)
    whole = ledger.launch("g1")
    ledger.compact(T0 + DAY)
    assert ledger.launch("g1") == whole, "for a day all of it"
    ledger.compact(T0 + DAY + 2)
    kept = ledger.launch("g1")
    assert kept is not None
    assert kept.offers == (OFFERS[3],)
    assert kept.jobs == JOBS[:MACHINE_JOBS]
    assert whole == replace(kept, offer=OFFERS[0], alternatives=OFFERS[1:], jobs=JOBS)


def test_of_a_launch_without_machines_the_dearest_offer_is_kept(ledger: Ledger) -> None:
    """A machine that is found after all is never counted too low."""
    ledger.intend(ask("g1"), "r", T0)
    ledger.failed("g1", "no capacity", T0 + 1)
    ledger.compact(T0 + 2 * DAY)
    late = ledger.adopt(machine("g1", T0), "burst", T0 + 2 * DAY)
    assert late is None
    (found,) = ledger.machines()
    assert found.worst_price == OFFERS[-1].worst_price
    assert found.jobs == JOBS[:MACHINE_JOBS]


def test_an_open_launch_and_that_of_a_running_machine_are_kept_however_old(
    ledger: Ledger,
) -> None:
    ledger.intend(ask("open", "pub2"), "r", T0)
    launch(ledger, "runs", T0, lasts=None)
    (intent,) = ledger.open_launches()
    (running,) = ledger.machines()
    ledger.compact(T0 + 4000 * DAY)
    assert ledger.open_launches() == (intent,)
    assert ledger.machines() == (running,)
    assert ledger.launch("runs") is not None


def test_launches_go_when_no_budget_counts_their_machines_and_machines_later(
    ledger: Ledger,
) -> None:
    launch(ledger, "g1", T0, lasts=5 * DAY)
    ledger.intend(ask("g2"), "r", T0)
    ledger.failed("g2", "no capacity", T0 + 1)
    end = T0 + 5 * DAY
    ledger.compact(end + 40 * DAY)
    assert (ledger.launch("g1") is not None, ledger.launch("g2")) == (True, None)
    ledger.compact(end + 40 * DAY + 1)
    assert ledger.launch("g1") is None
    ledger.compact(end + 400 * DAY)
    assert [m.instance.id for m in ledger.machines(ended_since=0)] == ["i-g1"]
    ledger.compact(end + 400 * DAY + 1)
    assert ledger.machines(ended_since=0) == ()


def test_of_runs_of_jobs_the_latest_are_kept(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOST_RUNS", 2)
    ledger.write_runs([Run(job=n, begin=T0, end=T0 + n) for n in (3, 1, 2, 4)])
    ledger.write_runs([Run(job=5, begin=T0)])
    ledger.compact(T0 + 60)
    assert [r.job for r in ledger.runs(0, T0 + 60)] == [3, 4, 5]


def test_a_machine_of_a_forgotten_launch_is_adopted_at_its_price(ledger: Ledger) -> None:
    launch(ledger, "g1", T0)
    later = T0 + retention.MACHINES_KEPT + 2 * DAY
    ledger.compact(later)
    ledger.adopt(machine("g1", T0), "burst", later, worst=0.5)
    (found,) = ledger.machines()
    assert (found.instance.id, found.worst_price) == ("i-g1", 0.5)


def test_a_backlog_of_launches_takes_a_kilobyte_each_and_the_disk_has_the_rest(
    ledger: Ledger, path: Path
) -> None:
    number = 2 * retention.PART + 7
    with ledger.together():
        for n in range(number):
            launch(ledger, f"g{n}", T0 + n)
    ledger._db.execute("pragma wal_checkpoint(truncate)")
    before = path.stat().st_size
    ledger.compact(T0 + 2 * DAY)
    assert before / number > 4000
    assert path.stat().st_size / number < 1600
    assert count(ledger, "launches") == count(ledger, "machines") == number
    ledger.compact(T0 + 2 * DAY + retention.LAUNCHES_KEPT)
    assert (count(ledger, "launches"), count(ledger, "machines")) == (0, number)


def test_no_room_is_given_back_while_a_launch_is_open(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "FREE", 0)
    with ledger.together():
        for n in range(50):
            launch(ledger, f"g{n}", T0)
    ledger.intend(ask("open"), "r", T0)
    ledger.compact(T0 + 2 * DAY)
    pages = ledger._select("pragma freelist_count")[0][0]
    assert pages > 0
    ledger.failed("open", "no", T0 + 1)
    ledger.compact(T0 + 2 * DAY)
    assert ledger._select("pragma freelist_count")[0][0] == 0


@pytest.mark.parametrize(("kilobytes", "back"), [(900, False), (1200, True)])
def test_a_file_is_made_anew_for_a_megabyte_and_not_for_less(
    ledger: Ledger, kilobytes: int, back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    db = ledger._db
    db.execute("create table bulk (one blob)")
    db.execute("insert into bulk values (zeroblob(?))", (kilobytes * 1024,))
    db.execute("drop table bulk")
    assert retention.give_back(db) is back
    assert caplog.messages == (["the ledger gave 1 MB back"] if back else [])


def bulk(db: sqlite3.Connection, free: int, used: int) -> int:
    """Pages of a file that are free and used, besides a few; the bytes that are free."""
    for name, pages in (("one", free), ("two", used)):
        db.execute(f"create table {name} (one blob)")
        db.execute(f"insert into {name} values (zeroblob(?))", (pages * 4096,))
    db.execute("drop table one")
    return int(db.execute("pragma freelist_count").fetchone()[0]) * 4096


@pytest.mark.parametrize(("free", "used", "back"), [(400, 600, False), (600, 400, True)])
def test_a_file_is_made_anew_of_which_more_than_half_is_free(
    ledger: Ledger, free: int, used: int, back: bool
) -> None:
    bulk(ledger._db, free, used)
    assert retention.give_back(ledger._db) is back


@pytest.mark.parametrize(("less", "back"), [(0, True), (1, False)])
def test_it_is_made_anew_from_so_much_on_that_is_free(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, less: int, back: bool
) -> None:
    found = bulk(ledger._db, 600, 100)
    monkeypatch.setattr(retention, "FREE", found + less)
    assert retention.give_back(ledger._db) is back


@pytest.mark.parametrize(("less", "back"), [(0, True), (1, False)])
def test_a_file_is_made_anew_where_the_disk_takes_it_three_times(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, less: int, back: bool
) -> None:
    bulk(ledger._db, 600, 100)
    pages = int(ledger._db.execute("pragma page_count").fetchone()[0])
    left = SimpleNamespace(f_bavail=3 * pages - less, f_frsize=4096)
    monkeypatch.setattr(retention, "os", SimpleNamespace(statvfs=lambda _: left))
    assert retention.give_back(ledger._db) is back


def test_a_disk_that_does_not_say_what_it_has_is_left_alone(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(_: str) -> None:
        raise OSError("stale")

    caplog.set_level("INFO")
    bulk(ledger._db, 600, 100)
    monkeypatch.setattr(retention, "os", SimpleNamespace(statvfs=away))
    assert not retention.give_back(ledger._db)
    assert caplog.messages == ["the ledger keeps its free 2 MB for now: stale"]


def test_what_is_in_memory_alone_has_nothing_to_give_back() -> None:
    with closing(open_memory(ledger_schema.LEDGER)) as db:
        bulk(db, 600, 100)
        assert not retention.give_back(db)


def test_a_launch_that_cannot_be_read_stays_as_it_is_and_keeps_no_other_long(
    ledger: Ledger,
) -> None:
    launch(ledger, "g1", T0)
    launch(ledger, "g2", T0)
    ledger._db.execute("update launches set offer = '[broken' where generation = 'g1'")
    ledger.compact(T0 + 2 * DAY)
    (broken,) = ledger._select("select offer from launches where generation = 'g1'")
    assert broken[0] == "[broken"
    kept = ledger.launch("g2")
    assert kept is not None
    assert kept.offers == (OFFERS[3],)


def test_a_locked_file_keeps_its_free_room_and_all_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "FREE", 0)
    with closing(Ledger(path)) as ledger, closing(sqlite3.connect(path)) as other:
        with ledger.together():
            for n in range(50):
                launch(ledger, f"g{n}", T0)
        with ledger.together() as _:
            ledger._db.execute("delete from launches")
        other.execute("begin immediate")
        ledger._db.execute("pragma busy_timeout = 1")
        assert not retention.give_back(ledger._db)
        other.execute("rollback")
        assert retention.give_back(ledger._db)
        assert count(ledger, "machines") == 50


def test_after_a_year_the_file_is_as_large_as_what_is_kept(ledger: Ledger, path: Path) -> None:
    """Three launches a day, and one machine that runs all the time."""
    launch(ledger, "first", T0, lasts=None)
    for day in range(1, 366):
        with ledger.together():
            for n in range(3):
                launch(ledger, f"g{day}-{n}", T0 + day * DAY + n)
        ledger.compact(T0 + day * DAY + 3600)
    ledger._db.execute("pragma wal_checkpoint(truncate)")
    assert count(ledger, "launches") <= 3 * 41 + 1
    assert count(ledger, "machines") == 3 * 365 + 1
    assert path.stat().st_size < 1_000_000
    (running,) = ledger.machines()
    kept = ledger.launch(running.instance.generation)
    assert kept is not None
    assert kept.offers == (OFFERS[3],)


@pytest.mark.parametrize("schema", range(1, len(ledger_schema.MIGRATIONS)))
def test_a_ledger_of_an_earlier_release_is_compacted_with_its_machines_running(
    path: Path, monkeypatch: pytest.MonkeyPatch, schema: int
) -> None:
    with monkeypatch.context() as patched:
        earlier = ledger_schema.MIGRATIONS[:schema]
        first = msgspec.structs.replace(ledger_schema.LEDGER, migrations=earlier)
        patched.setattr(ledger_schema, "LEDGER", first)
        Ledger(path).close()
    offers = msgspec.json.encode(OFFERS).decode()
    machine_columns = (
        "id, cloud, node, generation, instance_type, zone, market, price, state, launched, pool, "
        "jobs, last_seen, misses, worst_price"
    )
    with closing(sqlite3.connect(path)) as db, db:
        least = [row[1] for row in db.execute("pragma table_info(launches)") if row[1] == "minimum"]
        names = ["generation", "request", "pool", "cloud", "nodes", "jobs", "offer", "state",
                 "created", "finished", *least]  # fmt: skip
        values = ["g1", "r", "burst", "aws", '["pub1"]', "[7]", offers, "done", T0, T0, 1]
        marks = ", ".join("?" * len(names))
        db.execute(
            f"insert into launches ({', '.join(names)}) values ({marks})", values[: len(names)]
        )
        values = ["i-1", "aws", "pub1", "g1", OFFERS[3].instance_type, OFFERS[3].zone, "spot",
                  0.1, "running", T0, "burst", "[7]", T0, 0, 0.3]  # fmt: skip
        db.execute(f"insert into machines ({machine_columns}) values ({'?, ' * 14}?)", values)
    with closing(Ledger(path)) as ledger:
        ledger.compact(T0 + 500 * DAY)
        (running,) = ledger.machines()
        kept = ledger.launch("g1")
        assert (running.instance.id, running.worst_price) == ("i-1", 0.3)
        assert kept is not None
        assert kept.offers == (OFFERS[3],)
