"""Rows of copied files: no read grows with the jobs of the week that is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.model.copying import CopyState, JobCopy
from slurm_elastic.state.ledger import Ledger, copies


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.db")
    yield made
    made.close()


def row(job: int, state: CopyState, since: float = 1000.0) -> JobCopy:
    return JobCopy(
        job=job, restarts=0, node="n1", machine="m1", uid=1001, directory="/home/a",
        outputs={"/home/a/out": 5}, state=state, since=since,
    )  # fmt: skip


def test_only_the_rows_that_are_asked_for_are_read(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of each copy reads rows while it has the ledger's lock."""
    for job in range(100):
        ledger.copies.put(row(job, CopyState.BACK))
    there, unsent = row(100, CopyState.THERE), row(101, CopyState.UNSENT)
    owed = row(102, CopyState.OWED)
    for one in (there, unsent, owed):
        ledger.copies.put(one)
    read, made = [], copies._copy_from
    monkeypatch.setattr(copies, "_copy_from", lambda found: read.append(found) or made(found))
    assert ledger.copies.of(7) == (row(7, CopyState.BACK),)
    assert ledger.copies.unsent() == (unsent,)
    assert len(read) == 2


def test_open_rows_are_those_for_which_something_happens_yet(ledger: Ledger) -> None:
    assert ledger.copies.is_empty()
    for job, state in enumerate(CopyState):
        ledger.copies.put(row(job, state))
    assert {one.state for one in ledger.copies.open()} == {s for s in CopyState if not s.is_over}
    assert [one.state for one in ledger.copies.owing()] == [CopyState.OWED]
    assert not ledger.copies.is_empty()


@pytest.mark.parametrize(("now", "are_left"), [(1500.0, 2), (2200.0, 1), (1e12, 1)])
def test_old_rows_go_by_the_newest_row_if_the_clock_is_ahead(
    ledger: Ledger, now: float, are_left: int
) -> None:
    ledger.copies.forget(now, 1000.0)
    ledger.copies.put(row(1, CopyState.BACK, since=1000.0))
    ledger.copies.put(row(2, CopyState.BACK, since=2100.0))
    ledger.copies.forget(now, 1000.0)
    assert len(ledger.copies.of(1)) + len(ledger.copies.of(2)) == are_left
