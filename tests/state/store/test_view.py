"""The view by itself: its connections, and what is read and written through them."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from held import held
from ledger_cases import T0

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.ledger.schema import LEDGER
from slurm_elastic.state.store import view


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_a_file_that_cannot_be_written_is_let_go(path: Path) -> None:
    path.write_bytes(b"no database" * 500)
    with pytest.raises(sqlite3.DatabaseError) as refused:
        view.open_writer(path)
    assert held(path.parent) == [], refused.value


def test_what_is_written_to_a_view_waits_for_no_disk(path: Path) -> None:
    """Its journal has waited already."""
    Ledger(path).close()
    with closing(view.open_writer(path)) as db:
        assert db.execute("pragma synchronous").fetchone()[0] == 0


@pytest.mark.parametrize(
    ("number", "told"), [(0, 0), (5, 5), (2**31 - 1, 2**31 - 1), (2**31, 0), (2**31 + 5, 5)]
)
def test_the_number_of_the_last_line_is_kept_as_far_as_there_is_room(
    number: int, told: int
) -> None:
    with closing(view.open_memory(LEDGER)) as db:
        view.set_number(db, number)
        assert view.number_of(db) == told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_file_that_cannot_be_read_alone_is_let_go(open_path: Path) -> None:
    """Its log stands beside it, and is another user's."""
    path = open_path / "ledger.db"
    with closing(Ledger(path)) as ledger:
        ledger.requeues.lift(7, 0, T0)
    path.chmod(0o644)
    path.with_name("ledger.db-wal").write_bytes(b"x" * 64)
    path.with_name("ledger.db-wal").chmod(0o600)
    os.seteuid(65534)
    try:
        with pytest.raises(sqlite3.OperationalError) as refused:
            view.open_reader(path, LEDGER)
    finally:
        os.seteuid(0)
    assert held(open_path) == [], refused.value


def test_a_file_of_a_later_release_is_let_go(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma user_version = 99")
    with pytest.raises(ConfigError, match="has schema 99") as refused:
        view.open_reader(path, LEDGER)
    assert held(path.parent) == [], refused.value


@pytest.mark.parametrize("is_empty", [False, True], ids=["another program's", "empty"])
def test_a_file_without_our_tables_is_begun_only_if_it_is_empty(path: Path, is_empty: bool) -> None:
    file = path.with_name("other.db")
    with closing(sqlite3.connect(file)) as db:
        db.execute("create table precious (x)")
        if is_empty:
            db.execute("drop table precious")
    if is_empty:
        Ledger(file).close()
        return
    with pytest.raises(sqlite3.DatabaseError, match="is a database, and no ledger"):
        Ledger(file)
