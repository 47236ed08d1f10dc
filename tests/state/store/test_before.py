"""The files of the last release without a journal are taken over, with machines running."""

from __future__ import annotations

import math
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from ledger_cases import T0, instance, spec

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.model.exclusion import DOUBT
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import MigrationStep
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.store import view

DATA = Path(__file__).parents[2] / "data"


def before(path: Path) -> Path:
    """The file as that release left it."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript((DATA / f"{path.stem}-before-journal.sql").read_text())
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return before(tmp_path / "ledger.db")


def test_a_ledger_with_machines_an_open_launch_and_operators_words_goes_on(path: Path) -> None:
    with closing(Ledger.enduring(path)) as ledger:
        assert ledger.check().end_only == ""
        one, two = ledger.machines.live()
        assert (one.instance.id, one.jobs, one.accounts) == ("i-1", (7,), {"physics": 2})
        assert (one.registered_at, one.instance.address) == (T0 + 60, "10.9.0.2")
        assert (two.instance.id, two.registered_at) == ("i-2", None)
        (open_launch,) = ledger.launches.open()
        assert (open_launch.generation, open_launch.nodes) == ("g2", ("pub3",))
        (ended,) = (m for m in ledger.machines.live(ended_since=0.0) if m.has_ended)
        assert (ended.instance.id, str(ended.cause_text)) == ("i-0", "suspended by Slurm")
        assert [str(d.reason) for d in ledger.decisions.about("pub1")] == ["cheapest", "it is up"]
        assert [str(d.reason) for d in ledger.decisions.about("job:7")] == ["cheapest"]
        (doubt,) = (e for e in ledger.exclusions.all() if e.kind == DOUBT)
        assert doubt.until == math.inf
        assert [d.number for d in ledger.directives.all()] == [1800000000]
        assert (ledger.requeues.lifted(), ledger.usage.settled()) == (((7, 0),), T0)
        assert [(a.job, a.account) for a in ledger.deferred.jobs()] == [(9, "physics")]
        assert (len(ledger.usage.open_runs()), len(ledger.tunnels.all())) == (1, 1)
        assert ledger.usage.counters()["a"] == 1.5
        ledger.machines.record_launch("g2", [instance("i-3", "pub3", "g2")], T0 + 130)
        ledger.machines.observe("aws", [instance("i-1", state=InstanceState.RUNNING)], T0 + 200)
        ledger.machines.record_end("aws", ["i-1"], Quoted(text="idle"), T0 + 300)
    path.unlink()
    with closing(Ledger(path)) as again:
        assert again.launches.open() == ()
        assert [m.instance.id for m in again.machines.live()] == ["i-2", "i-3"]
    aside = path.with_name("ledger.db.before-journal")
    with closing(sqlite3.connect(aside)) as db:
        assert db.execute("select count(*) from machines").fetchone() == (3,)


def test_a_job_that_was_saved_goes_on_from_its_image(tmp_path: Path) -> None:
    with closing(CheckpointState(before(tmp_path / "checkpoints.db"))) as state:
        (move,) = state.migrations()
        assert (move.run.job, move.step, move.image) == (7, MigrationStep.SAVED, state.images(7)[0])
        assert [one.key for one in state.notices()] == ["k1"]
        assert (list(state.suspensions()), list(state.unsavable())) == ([8], [9])
        assert state.interruptions(0.0) == {"aws/c6i.xlarge/eu-west-1a/spot": 1}


def test_a_file_of_checkpoints_of_before_suspended_jobs_is_taken_over(tmp_path: Path) -> None:
    path = before(tmp_path / "checkpoints.db")
    with closing(sqlite3.connect(path)) as db:
        db.execute("drop table suspensions")
        db.execute("pragma user_version = 3")
    with closing(CheckpointState(path)) as state:
        (move,) = state.migrations()
        assert (move.step, move.image, state.suspensions()) == (
            MigrationStep.SAVED,
            state.images(7)[0],
            {},
        )


def test_one_without_the_later_columns_and_tables(path: Path) -> None:
    later = {
        "launches": ("owner", "recipe"),
        "machines": ("stopping", "stopped", "born", "tunnel_key"),
    }
    with closing(sqlite3.connect(path)) as db:
        db.execute("drop index machines_stopped")
        db.execute("drop table tunnels")
        for table, columns in later.items():
            for column in columns:
                db.execute(f"alter table {table} drop column {column}")
        db.execute("pragma user_version = 12")
    with closing(Ledger(path)) as ledger:
        assert [m.is_off for m in ledger.machines.live()] == [False, False]
        assert [launch.recipe for launch in ledger.launches.open()] == [""]
        assert list(ledger.tunnels.all()) == []


@pytest.mark.parametrize(
    ("name", "memory"), [("ledger.db", Ledger), ("checkpoints.db", CheckpointState)]
)
def test_a_file_of_today_is_none_of_before(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    memory: type[Ledger] | type[CheckpointState],
) -> None:
    memory(tmp_path / name).close()
    monkeypatch.setattr(view, "boot", lambda: "another")
    memory(tmp_path / name).close()
    assert list(tmp_path.glob("*.before-journal")) == []


def test_a_file_of_before_is_taken_over_whatever_the_clock_says(path: Path) -> None:
    later = time.time() + 3600
    os.utime(path, (later, later))
    with closing(Ledger(path)) as ledger:
        assert len(ledger.machines.live()) == 2


def test_a_crash_between_both_steps_is_made_up_for(path: Path) -> None:
    """The journal has the rows, and the file is still at its old place."""
    old = path.read_bytes()
    Ledger(path).close()
    path.write_bytes(old)
    path.with_name("ledger.db.before-journal").unlink()
    with closing(Ledger(path)) as ledger:
        assert len(ledger.machines.live()) == 2
    assert path.with_name("ledger.db.before-journal").exists()


def test_one_of_a_still_earlier_release_is_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma user_version = 9")
    was = path.read_bytes()
    with pytest.raises(ConfigError, match="has schema 9, this release takes over schemas from 12"):
        Ledger(path)
    assert path.read_bytes() == was


def test_another_database_is_no_ledger(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        db.execute("create table precious (x)")
    with pytest.raises(sqlite3.DatabaseError, match="is a database, and no ledger"):
        Ledger(tmp_path / "ledger.db")


def test_what_was_intended_before_is_not_intended_again(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec("g2", nodes=("pub3",), jobs=(8,)), "r2", T0 + 100)
        assert len(ledger.launches.open()) == 1
