"""The ledger shortens what is over, and forgets it in the end; it keeps what lives as it is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ledger_cases import T0, instance, offer, spec
from msgspec.structs import replace

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, LaunchSpec
from slurm_elastic.model.memory import MACHINE_JOBS, ChargedRun, Drained
from slurm_elastic.state.ledger import Decision, Ledger, retention
from slurm_elastic.state.store import disk

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
    ledger.launches.record_intent(ask(name), "r", at)
    ledger.machines.record_launch(name, [machine(name, at)], at + 1)
    if lasts is not None:
        ledger.machines.record_end("aws", [f"i-{name}"], Quoted(text="idle"), at + lasts)


def count(ledger: Ledger, table: str) -> int:
    return int(ledger.store.select(f"select count(*) from {table}")[0][0])


def test_a_finished_launch_keeps_the_offer_that_was_bought_and_its_first_jobs(
    ledger: Ledger,
) -> None:
    launch(ledger, "g1", T0)
    whole = ledger.launches.get("g1")
    ledger.compact(T0 + DAY)
    assert ledger.launches.get("g1") == whole, "for a day all of it"
    ledger.compact(T0 + DAY + 2)
    kept = ledger.launches.get("g1")
    assert kept is not None
    assert kept.offers == (OFFERS[3],)
    assert kept.jobs == JOBS[:MACHINE_JOBS]
    assert whole == replace(kept, offer=OFFERS[0], alternatives=OFFERS[1:], jobs=JOBS)


def test_of_a_launch_without_machines_the_dearest_offer_is_kept(ledger: Ledger) -> None:
    """A machine that is found after all is never counted too low."""
    ledger.launches.record_intent(ask("g1"), "r", T0)
    ledger.launches.record_failure("g1", "no capacity", T0 + 1)
    whole = ledger.launches.get("g1")
    ledger.compact(T0 + retention.FAILED_SHORTENED_AFTER + 1)
    assert ledger.launches.get("g1") == whole
    ledger.compact(T0 + retention.FAILED_SHORTENED_AFTER + 2)
    kept = ledger.launches.get("g1")
    assert kept is not None
    assert (kept.offers, kept.jobs) == ((OFFERS[-1],), JOBS[:MACHINE_JOBS])
    late = ledger.machines.adopt(machine("g1", T0), "burst", T0 + 2 * DAY)
    assert late is None
    (found,) = ledger.machines.live()
    assert found.worst_price == OFFERS[-1].worst_price
    assert found.jobs == JOBS[:MACHINE_JOBS]


def test_an_open_launch_and_that_of_a_running_machine_are_kept_however_old(
    ledger: Ledger,
) -> None:
    ledger.launches.record_intent(ask("open", "pub2"), "r", T0)
    launch(ledger, "runs", T0, lasts=None)
    (intent,) = ledger.launches.open()
    (running,) = ledger.machines.live()
    ledger.compact(T0 + 4000 * DAY)
    assert ledger.launches.open() == (intent,)
    assert ledger.machines.live() == (running,)
    assert ledger.launches.get("runs") is not None


def test_launches_go_when_no_budget_counts_their_machines_and_machines_later(
    ledger: Ledger,
) -> None:
    launch(ledger, "g1", T0, lasts=5 * DAY)
    ledger.launches.record_intent(ask("g2"), "r", T0)
    ledger.launches.record_failure("g2", "no capacity", T0 + 1)
    end = T0 + 5 * DAY
    ledger.compact(end + 40 * DAY)
    assert (ledger.launches.get("g1") is not None, ledger.launches.get("g2")) == (True, None)
    ledger.compact(end + 40 * DAY + 1)
    assert ledger.launches.get("g1") is None
    ledger.compact(end + 400 * DAY)
    assert [m.instance.id for m in ledger.machines.live(ended_since=0)] == ["i-g1"]
    ledger.compact(end + 400 * DAY + 1)
    assert ledger.machines.live(ended_since=0) == ()


def test_a_failed_launch_is_kept_for_as_long_as_its_machines_may_still_be_listed(
    ledger: Ledger,
) -> None:
    for name in ("g1", "g2"):
        ledger.launches.record_intent(ask(name), "r", T0)
        ledger.launches.record_failure(name, "no capacity", T0)
    ledger.machines.record_launch("g2", [machine("g2", T0)], T0)
    ledger.compact(T0 + retention.FAILED_LAUNCHES_KEPT)
    assert ledger.launches.get("g1") is not None
    ledger.compact(T0 + retention.FAILED_LAUNCHES_KEPT + 1)
    assert ledger.launches.get("g1") is None
    assert ledger.launches.get("g2") is not None, "its machine exists after all"


def test_of_runs_of_jobs_the_latest_are_kept(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOST_RUNS", 2)
    ledger.usage.write([ChargedRun(job=n, begin=T0, end=T0 + n) for n in (3, 1, 2, 4)])
    ledger.usage.write([ChargedRun(job=5, begin=T0)])
    ledger.compact(T0 + 60)
    assert [r.job for r in ledger.usage.runs(0, T0 + 60)] == [3, 4, 5]


def test_runs_and_drains_are_forgotten_with_the_machines_of_their_time(ledger: Ledger) -> None:
    over = Drained(node="n1", begin=T0, end=T0 + 5)
    ledger.usage.write([ChargedRun(job=1, begin=T0, end=T0 + 5)], [over])
    ledger.compact(T0 + 5 + retention.MACHINES_KEPT)
    assert (len(ledger.usage.runs(0, T0 + 60)), ledger.usage.drains(0, T0 + 60)) == (1, (over,))
    ledger.compact(T0 + 6 + retention.MACHINES_KEPT)
    assert (ledger.usage.runs(0, T0 + 60), ledger.usage.drains(0, T0 + 60)) == ((), ())


def test_a_machine_of_a_forgotten_launch_is_adopted_at_its_price(ledger: Ledger) -> None:
    launch(ledger, "g1", T0)
    later = T0 + retention.MACHINES_KEPT + 2 * DAY
    ledger.compact(later)
    ledger.machines.adopt(machine("g1", T0), "burst", later, worst=0.5)
    (found,) = ledger.machines.live()
    assert (found.instance.id, found.worst_price) == ("i-g1", 0.5)


def in_file(path: Path, sql: str) -> None:
    """As another process does."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(sql)


def test_a_backlog_of_launches_takes_a_kilobyte_each_and_the_disk_has_the_rest(
    ledger: Ledger, path: Path
) -> None:
    number = 2 * retention.LAUNCHES_PER_TRANSACTION + 7
    with ledger.together():
        for n in range(number):
            launch(ledger, f"g{n}", T0 + n)
    in_file(path, "pragma wal_checkpoint(truncate)")
    before = path.stat().st_size
    ledger.compact(T0 + 2 * DAY)
    assert before / number > 4000
    assert path.stat().st_size / number < 1600
    assert count(ledger, "launches") == count(ledger, "machines") == number
    ledger.compact(T0 + 2 * DAY + retention.LAUNCHES_KEPT)
    assert (count(ledger, "launches"), count(ledger, "machines")) == (0, number)


def test_a_launch_that_cannot_be_read_stays_as_it_is_and_keeps_no_other_long(
    ledger: Ledger, path: Path
) -> None:
    launch(ledger, "g1", T0)
    launch(ledger, "g2", T0)
    in_file(path, "update launches set offer = '[broken' where generation = 'g1'")
    ledger.compact(T0 + 2 * DAY)
    (broken,) = ledger.store.select("select offer from launches where generation = 'g1'")
    assert broken[0] == "[broken"
    kept = ledger.launches.get("g2")
    assert kept is not None
    assert kept.offers == (OFFERS[3],)


def test_launches_that_cannot_be_read_never_fill_the_turn_of_the_others(
    ledger: Ledger, path: Path
) -> None:
    with ledger.together():
        for n in range(retention.LAUNCHES_PER_TRANSACTION):
            launch(ledger, f"broken{n}", T0)
        launch(ledger, "whole", T0 + 1)
    in_file(path, "update launches set offer = '[broken' where generation != 'whole'")
    ledger.compact(T0 + 2 * DAY)
    kept = ledger.launches.get("whole")
    assert kept is not None
    assert kept.offers == (OFFERS[3],)


def test_after_a_year_the_file_is_as_large_as_what_is_kept(ledger: Ledger, path: Path) -> None:
    """Three launches a day, and one machine that runs all the time."""
    launch(ledger, "first", T0, lasts=None)
    for day in range(1, 366):
        with ledger.together():
            for n in range(3):
                launch(ledger, f"g{day}-{n}", T0 + day * DAY + n)
        ledger.compact(T0 + day * DAY + 3600)
    in_file(path, "pragma wal_checkpoint(truncate)")
    assert count(ledger, "launches") <= 3 * 41 + 1
    assert count(ledger, "machines") == 3 * 365 + 1
    assert path.stat().st_size < 1_000_000
    (running,) = ledger.machines.live()
    kept = ledger.launches.get(running.instance.generation)
    assert kept is not None
    assert kept.offers == (OFFERS[3],)


def test_the_next_segment_of_the_journal_lacks_what_is_forgotten_and_no_charge(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "SEGMENT_BYTES", 0)
    monkeypatch.setattr(disk, "BYTES_PER_FIRST_ROW", 0)
    launch(ledger, "old", T0)
    launch(ledger, "new", T0 + 50 * DAY)
    ledger.decisions.record(
        Decision(
            at=T0, correlation="c", kind="k", subjects=("pub1",), cause=Quoted(text="long ago")
        )
    )
    spent = ledger.books.dollars("aws", T0, T0 + 60 * DAY)
    ledger.prune(T0 + 1)
    ledger.compact(T0 + 60 * DAY)
    newest = max((path.parent / "journal").glob("ledger-*.jsonl"))
    assert newest.name == "ledger-000002.jsonl"
    assert "long ago" not in newest.read_text()
    ledger.machines.record_end("aws", ["i-new"], Quoted(text="why"), T0)
    ledger.close()
    path.unlink()
    with closing(Ledger(path)) as again:
        assert again.books.dollars("aws", T0, T0 + 60 * DAY) == spent > 0
        assert (again.launches.get("old"), again.decisions.about("pub1")) == (None, ())
        assert again.launches.get("new") is not None


def test_a_clock_far_ahead_deletes_nothing(ledger: Ledger) -> None:
    launch(ledger, "g1", T0)
    ledger.decisions.record(
        Decision(at=T0, correlation="r", kind="x", subjects=("pub1",), cause=Quoted(text="x"))
    )
    for start in range(5):
        ahead = T0 + 730 * DAY + start
        ledger.compact(ledger.record_time(ahead))
        assert ledger.prune(ledger.record_time(ahead) - 30 * DAY) == 0
    assert len(ledger.machines.live(ended_since=0)) == 1
    assert ledger.record_time(T0 + DAY) <= T0 + DAY


def test_the_records_time_follows_the_clock(ledger: Ledger) -> None:
    launch(ledger, "g1", T0)
    hours = range(24 * 40)
    times = [ledger.record_time(T0 + 3600.0 * hour) for hour in hours]
    assert times == [T0 + 3600.0 * hour for hour in hours]


def test_the_records_time_catches_up_with_a_pause_and_with_a_clock_that_was_ahead(
    path: Path, ledger: Ledger
) -> None:
    launch(ledger, "g1", T0)
    resumed_at = T0 + 10 * DAY
    times = [ledger.record_time(resumed_at + 3600.0 * hour) for hour in range(24 * 11)]
    assert times[0] < T0 + DAY
    assert times[-1] == resumed_at + 3600.0 * (24 * 11 - 1)
    ledger.record_time(resumed_at + 900 * DAY)
    ledger.close()
    with closing(Ledger(path)) as opened:
        assert opened.record_time(resumed_at) == resumed_at, "the record never exceeds the clock"


def test_an_empty_record_begins_with_the_clock(ledger: Ledger) -> None:
    assert ledger.record_time(T0) == T0
