"""The guard's memory survives a restart."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.model.memory import Purchase, UnhelpedJob
from slurm_elastic.state.ledger import Ledger

ROW = Purchase(
    first_node="pub1", at=5.0, open=frozenset({"pub1", "pub2"}), came_up={"pub2": 7.0},
    jobs={7: "1|2|a", 8: ""},
)  # fmt: skip
JOB = UnhelpedJob(job=7, asks="1|2|a", since=9.0, nodes=("pub1", "pub2"), reason="Resources")


def test_purchases_and_jobs_are_known_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with contextlib.closing(Ledger(path)) as ledger:
        other = replace(ROW, first_node="pub3")
        ledger.growth_guard.watch([ROW, other])
        ledger.growth_guard.watch([replace(ROW, unused=frozenset({"pub1"}))])
        ledger.growth_guard.judge(other, [JOB, replace(JOB, job=8, strikes=2)])
    with contextlib.closing(Ledger(path)) as ledger:
        assert ledger.growth_guard.purchases() == (replace(ROW, unused=frozenset({"pub1"})),)
        assert ledger.growth_guard.rows() == (JOB, replace(JOB, job=8, strikes=2))
        assert ledger.growth_guard.count_again([7, 99]) == 1
        assert [row.job for row in ledger.growth_guard.rows()] == [8]


@pytest.mark.parametrize(("strikes", "hours"), [(1, 2), (2, 4), (4, 16), (5, 24), (5000, 24)])
def test_a_job_counts_again_after_a_pause_that_doubles(
    tmp_path: Path, strikes: int, hours: int
) -> None:
    """A wrong verdict, as after a clock that was set, must not keep a job for ever."""
    row = replace(JOB, strikes=strikes)
    with contextlib.closing(Ledger(tmp_path / "ledger.db")) as ledger:
        ledger.growth_guard.judge(ROW, [row])
        assert ledger.growth_guard.jobs(row.since + hours * 3600 - 1) == (row,)
        assert ledger.growth_guard.jobs(row.since + hours * 3600) == ()
        assert ledger.growth_guard.rows() == (row,)
