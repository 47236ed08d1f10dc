"""``drain``, ``replace`` and ``migrate``: what will be done and what it costs is said first."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from machine_cases import changed
from msgspec.structs import replace
from status_cases import NOW, busy_ledger, config, config_file

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.main import main
from slurm_elastic.cli.orders import departure_orders, migrate, other_cloud
from slurm_elastic.config import Config
from slurm_elastic.config.sections.checkpoint import PoolCheckpoint
from slurm_elastic.model.directive import Departure, Directive, Pause
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.watch.door.questions import DirectAsk
from slurm_elastic.watch.door.records import read_facts
from slurm_elastic.watch.view import Facts
from slurm_elastic.watch.view.checkpoints import CheckpointFacts


@pytest.fixture
def site(tmp_path: Path) -> Config:
    busy_ledger(tmp_path / "ledger.db").close()
    plain = config(tmp_path)
    saved = PoolCheckpoint(method="signal")
    return replace(plain, pools=(plain.pools[0], replace(plain.pools[1], checkpoint=saved)))


def job(number: int, node: str, **fields: object) -> SlurmJob:
    given = {"start": NOW - 7200, "limit": 10800, "user": "erin"} | fields
    return SlurmJob(id=number, states=frozenset({"RUNNING"}), nodes=(node,), **given)  # type: ignore[arg-type]


def facts(site: Config, *jobs: SlurmJob, ckptman: bool = True) -> Facts:
    told = replace(read_facts(site, NOW), jobs=jobs, nodes={})
    there = CheckpointFacts(
        heartbeat=(NOW, 7), process_found=True, images=(), warned=(), migrations=()
    )  # fmt: skip
    return replace(told, checkpoints=there if ckptman else None)


def said(site: Config, found: Facts, verb: str, subject: str, **fields: object) -> list[str]:
    word = replace(departure_orders.departure(site, verb, subject), **fields)
    return list(departure_orders.preview(site, found, word, NOW))


def test_an_ordered_drain_says_who_is_waited_for_how_long_and_at_which_cost(site: Config) -> None:
    found = facts(site, job(41, "op1"))
    over = f"By their time limits the last one ends at {departure_orders.clock(NOW + 3600)}"
    assert said(site, found, "drain", "rack") == [
        "Drain pool rack: 2 machines at $0.02/h leave, after their jobs.",
        "Nothing new starts there (2 nodes) until `slurm-elastic resume pool:rack`.",
        "1 machine without a job: at once.",
        "1 job ends first: 41.",
        f"{over}, at most $0.01 from now.",
    ]
    word = departure_orders.departure(site, "drain", "rack")
    later, *_ = departure_orders.preview(site, found, word, NOW + 60)
    assert later.startswith(f"From {departure_orders.clock(NOW + 60)} on: drain pool rack: ")
    endless = facts(site, job(41, "op1", limit=None))
    assert "Some have no time limit" in said(site, endless, "drain", "rack")[-1]
    resumed = facts(site, job(41, "op1", limit_ends_at=NOW + 5400))
    later_end = f"the last one ends at {departure_orders.clock(NOW + 5400)}"
    assert later_end in said(site, resumed, "drain", "rack")[-1]


def test_stopped_machines_are_told_of_too(site: Config) -> None:
    found = facts(site)
    kept = [changed(m, stopped=NOW) for m in found.machines if m.instance.node == "op1"]
    live = [m for m in found.machines if m not in kept and m.instance.node != "op1"]
    both = replace(found, machines=live, stopped=kept)
    assert said(site, both, "drain", "rack")[:2] == [
        "Drain pool rack: 1 machine at $0.01/h leaves, after its jobs.",
        "1 stopped machine at $0.01/h is ended.",
    ]
    alone = replace(found, machines=(), stopped=kept)
    assert said(site, alone, "drain", "rack") == [
        "Drain pool rack: 1 stopped machine at $0.01/h is ended.",
        "Nothing new starts there (2 nodes) until `slurm-elastic resume pool:rack`.",
    ]


def test_an_aggressive_one_says_what_is_saved_lost_and_waited_for(site: Config) -> None:
    found = facts(
        site, job(41, "pub1"), job(42, "op1"), job(43, "op2", batch=False),
        job(44, "pub2", comment="ckpt=none"),
    )  # fmt: skip
    lines = said(site, found, "drain", "op[1-2],pub[1-2]", aggressive=True)
    assert "1 job is saved by signal, to continue elsewhere: 41." in lines
    assert any("start over, 4.0 node-hours of work are LOST: 42, 44." in line for line in lines)
    assert "1 job runs to the end, interactive or not to be requeued: 43." in lines
    begun = facts(site, job(42, "op1", start=NOW - 60))
    lines = said(site, begun, "drain", "op1", aggressive=True)
    assert "1 job without a method starts over: 42." in lines, "nothing to speak of is lost"
    lines = said(site, facts(site, job(41, "pub1"), ckptman=False), "drain", "aws", aggressive=True)
    assert "slurm-elastic-ckptman has never run here: nothing can be saved." in lines
    assert any("2.0 node-hours of work are LOST: 41." in line for line in lines)


def test_a_migration_says_what_it_costs_there_and_whether_the_cap_allows_it(site: Config) -> None:
    lines = said(site, facts(site), "migrate", "cloud:onprem", aggressive=True, to="aws")
    assert (
        "Jobs go to partition burst, 0 waiting jobs at once; 2 machines there: $0.24/h on"
        in (lines[-1])
    )
    tight = replace(site.clouds[1], limits=replace(site.clouds[1].limits, dollars_per_hour=0.5))
    site = replace(site, clouds=(site.clouds[0], tight))
    lines = said(site, facts(site), "migrate", "cloud:onprem", aggressive=True, to="aws")
    assert lines[-1].startswith("Its cap is $0.50/h, of which $0.")


def test_stopped_machines_there_count_in_its_cap(site: Config) -> None:
    tight = replace(site.clouds[1], limits=replace(site.clouds[1].limits, dollars_per_hour=0.3))
    site, found = replace(site, clouds=(site.clouds[0], tight)), facts(site)
    there = [m for m in found.machines if m.instance.cloud == "aws"]
    stopped = [changed(m, stopped=NOW) for m in there[:1]]
    stopped = [replace(m, instance=replace(m.instance, price=0.2)) for m in stopped]
    live = [m for m in found.machines if m not in there]
    kept = replace(found, machines=live, stopped=stopped, open_launches=())
    lines = said(site, kept, "migrate", "cloud:onprem", aggressive=True, to="aws")
    assert lines[-1].startswith("Its cap is $0.30/h, of which $0.20/h are used: ")


def test_nothing_is_moved_while_the_mover_does_not_run(site: Config) -> None:
    found = facts(site, job(41, "pub1"))
    assert found.checkpoints
    away = replace(found.checkpoints, process_found=False)
    lines = said(site, replace(found, checkpoints=away), "drain", "aws", aggressive=True)
    assert (
        "slurm-elastic-ckptman does NOT RUN: no job is saved or moved until it does; "
        "do: systemctl start slurm-elastic-ckptman"
    ) in lines
    assert not any("NOT RUN" in line for line in said(site, found, "drain", "aws", aggressive=True))


def paused(found: Facts, **fields: object) -> Facts:
    pause = Directive(word=Pause(scope="cloud:onprem"), who="ann", since=NOW, starts=NOW, **fields)  # type: ignore[arg-type]
    return replace(found, directives=(pause,))


def test_no_job_is_moved_to_a_cloud_that_is_paused(site: Config) -> None:
    found = paused(facts(site, job(41, "pub1")), until=NOW + 60)
    with pytest.raises(ConfigError, match=(
        r"^cloud onprem is paused by ann until .*: the jobs would WAIT there; "
        r"end that first: slurm-elastic resume cloud:onprem$"
    )):  # fmt: skip
        other_cloud.require_open(site, found, "onprem", NOW)
    other_cloud.require_open(site, found, "onprem", NOW + 60)
    other_cloud.require_open(site, found, "aws", NOW)


@pytest.mark.parametrize(("elsewhere", "room"), [((), None), (("op1",), 1), (("op1", "op2"), 0)])
def test_a_migration_says_for_how_many_there_is_room(
    site: Config, elsewhere: tuple[str, ...], room: int | None
) -> None:
    there = [job(50 + n, node) for n, node in enumerate(elsewhere)]
    found = facts(site, job(41, "pub1"), job(42, "pub2"), *there)
    lines = said(site, found, "migrate", "cloud:aws", aggressive=True, to="onprem")
    which = "the other" if room else "all"
    said_ = f"Cloud onprem has room for {room} of 2 machines: {which} jobs WAIT there."
    assert lines[-1:] == [said_] if room is not None else "WAIT" not in lines[-1]


def test_a_migration_after_the_jobs_says_what_starts_there_at_once(site: Config) -> None:
    waits = SlurmJob(id=50, states=frozenset({"PENDING"}), partitions=("onprem",))
    found = facts(site, job(41, "op1"), waits)
    lines = said(site, found, "migrate", "op1", to="aws", start_replacements=True)
    assert lines[0] == "Empty op1: 1 machine at $0.01/h leaves, after its jobs."
    assert "1 job ends first: 41." in lines
    assert any(
        line.startswith("Jobs may also start in partition burst, 1 waiting job at once; ")
        for line in lines
    )
    assert "1 replacement starts at once at $0.12/h, kept without a job for 1h at most." in lines
    none = replace(site.clouds[1], limits=replace(site.clouds[1].limits, nodes=0))
    closed = replace(site, clouds=(site.clouds[0], none))
    lines = said(closed, found, "migrate", "op1", to="aws", start_replacements=True)
    assert "1 of 1 get none: the limits leave no room." in lines


def test_a_migration_within_one_cloud_is_refused(site: Config) -> None:
    args = argparse.Namespace(
        subject="op1", to="onprem", after_jobs=True, start_replacements=False, at=None,
        seconds=None, reason="", unavailable=None, yes=True,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="must name a different cloud"):
        migrate.plan(args, site, facts(site))
    args.to = "aws"
    ask = migrate.plan(args, site, facts(site)).ask
    assert isinstance(ask, DirectAsk)
    assert isinstance(ask.word, Departure)
    assert (ask.word.aggressive, ask.word.nodes, ask.word.to) == (False, ("op1",), "aws")


def test_ten_thousand_jobs_are_counted_not_listed(site: Config) -> None:
    many = facts(site, *(job(n, "op1") for n in range(10_000)))
    lines = said(site, many, "drain", "rack")
    assert any("and 9988 more" in line for line in lines)
    assert max(map(len, lines)) < 160


@pytest.mark.parametrize(
    ("subject", "said_"),
    [
        ("static7", "'static7' is no pool, cloud or node of a pool; there are pools: rack "),
        ("op1,static7", "static7: no pool of the configuration has it"),
        ("cluster", "'cluster': name nodes, a pool or a cloud; there are pools: rack "),
    ],
)
def test_what_is_not_ours_is_refused(site: Config, subject: str, said_: str) -> None:
    with pytest.raises(ConfigError, match=said_):
        departure_orders.departure(site, "drain", subject)


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Set the zone of this host, and its local time."""

    def set_clock(zone: str, local: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        now = datetime.fromisoformat(local).timestamp()
        monkeypatch.setattr(time, "time", lambda: now)

    yield set_clock
    monkeypatch.undo()
    time.tzset()


BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("now", "typed", "begins"),
    [
        ("2026-11-30T10:00", "22:00", "2026-11-30T22:00+01:00"),
        ("2026-11-30T22:00", "22:00", "2026-12-01T22:00+01:00"),
        ("2026-11-30T10:00", "22:00:30", "2026-11-30T22:00:30+01:00"),
        # The clocks change between the command and the time, on the same day and on the next one.
        ("2026-10-25T00:30", "22:00", "2026-10-25T22:00+01:00"),
        ("2026-03-28T23:00", "05:00", "2026-03-29T05:00+02:00"),
        ("2026-10-24T23:00", "22:00", "2026-10-25T22:00+01:00"),
        ("2026-10-24T12:00", "2026-11-30T22:00", "2026-11-30T22:00+01:00"),
        ("2026-11-30T10:00", "2026-11-30T22:00Z", "2026-11-30T23:00+01:00"),
        ("2026-11-30T10:00", "2026-12-01", "2026-12-01T00:00+01:00"),
        ("2026-11-30T10:00:40", "2026-11-30T10:00", "2026-11-30T10:00+01:00"),
        ("2026-11-30T10:00", "now+2h", "2026-11-30T12:00+01:00"),
    ],
)
def test_a_departure_begins_at_the_typed_time(
    in_zone: Callable[[str, str], None], now: str, typed: str, begins: str
) -> None:
    in_zone(BERLIN, now)
    assert departure_orders.moment(typed) == datetime.fromisoformat(begins).timestamp()


@pytest.mark.parametrize(
    ("zone", "typed", "message"),
    [
        (BERLIN, "soon", "'soon' is no time such as 22:00, 2026-11-30T22:00 "),
        (BERLIN, "", "'' is no time such as"),
        (BERLIN, "25:00", "'25:00' is no time such as"),
        (BERLIN, "now+x", "'x' is not a duration"),
        (BERLIN, "2026", "'2026' is no time such as"),
        (BERLIN, "22", "'22' is no time such as"),
        (BERLIN, "22:00Z", "'22:00Z' is no time such as"),
        (BERLIN, "22:00+00:00", "is no time such as"),
        (BERLIN, "2025-11-30T22:00", "is in the past: it is 2026-11-30 10:00 CET now"),
        (BERLIN, "2026-11-30T09:58", "is in the past"),
        (BERLIN, "2027-12-02T10:00", "is more than 366d from now"),
        (BERLIN, "0001-01-01T00:00", "is no time such as"),
        (BERLIN, "9999-12-31T23:59", "is no time such as|is more than 366d from now"),
        ("America/New_York", "9999-12-31T23:59", "is no time such as"),
    ],
)
def test_another_time_is_refused(
    in_zone: Callable[[str, str], None], zone: str, typed: str, message: str
) -> None:
    in_zone(zone, "2026-11-30T10:00")
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        departure_orders.moment(typed)


def test_a_wrong_time_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["drain", "x"], ["replace", "x"], ["migrate", "x", "--to", "y"]):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--at", "2025-11-30T22:00"])
        assert ended.value.code == 2
        assert "--at: '2025-11-30T22:00' is in the past: it is " in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="root may")
@pytest.mark.parametrize("words", [("drain", "rack"), ("replace", "rack"), ("migrate", "onprem", "--to", "x")])  # fmt: skip
def test_without_slurm_nothing_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    ledger = busy_ledger(tmp_path / "ledger.db")
    assert main([*words, "--config", str(config_file(tmp_path))]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert error.startswith("slurm-elastic: nothing was ordered: Slurm does not answer: ")
    assert error.endswith("; do: systemctl status slurmctld; its log says why it stopped or hangs")
    assert ledger.directives.all() == ()
    ledger.close()


def test_a_question_comes_before_work_is_lost_or_a_cloud_is_emptied(site: Config) -> None:
    def asked(found: Facts, verb: str, subject: str, **fields: object) -> str:
        word = replace(departure_orders.departure(site, verb, subject), **fields)
        return departure_orders.question(site, found, word, NOW)

    unsaved = facts(site, job(42, "op1"))
    saved = facts(site, job(41, "pub1"))
    assert asked(unsaved, "drain", "rack", aggressive=True) == "1 job loses all work. Do it?"
    assert asked(unsaved, "drain", "rack") == ""
    assert asked(unsaved, "replace", "rack", aggressive=True) == "1 job loses all work. Do it?"
    assert asked(saved, "drain", "pub[1-2]", aggressive=True) == ""
    assert asked(saved, "drain", "cloud:aws") == "This empties cloud aws. Do it?"
    assert asked(facts(site), "migrate", "cloud:onprem", aggressive=True, to="aws") == (
        "This empties cloud onprem. Do it?"
    )
    assert asked(saved, "replace", "cloud:aws") == "", "others start in their place"
