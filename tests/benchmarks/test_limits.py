"""Work lost to time limits: what a history says, and what saves at the limit leave of it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from benchmarks.limits import Asked, Saves, asked, main, replay

HOUR = 3600.0
SAVES = Saves(save=60.0, restart=40.0, expected=60.0, slack=5.0, times=10)


def line(run: int, limit: int, status: int, procs: int = 2) -> str:
    return f"1 0 0 {run} {procs} -1 -1 -1 {limit} -1 {status} 1 1 1 1 1 -1 -1\n"


@pytest.mark.parametrize(
    ("run", "limit", "status", "cut"),
    [
        (3600, 3600, 5, True),
        (3605, 3600, 0, True),
        (3540, 3600, 0, True),
        (3605, 3600, 1, False),
        (3400, 3600, 5, False),
        (20, 60, 0, False),
    ],
)
def test_who_ended_at_its_limit(
    tmp_path: Path, run: int, limit: int, status: int, cut: bool
) -> None:
    path = tmp_path / "h.swf.gz"
    with gzip.open(path, "wt") as file:
        file.write(f"; Note: none\n{line(run, limit, status)}{line(-1, 9, 5)}{line(9, -1, 1)}")
    assert list(asked(path)) == [Asked(run=run, limit=limit, procs=2, cut=cut)]


def test_a_job_that_ends_well_before_its_limit_loses_nothing() -> None:
    found = replay(4 * HOUR, HOUR, SAVES)
    assert (found.seconds, found.finished, found.renewals) == (0.0, True, 0)


def test_each_renewal_costs_a_save_and_a_restart() -> None:
    found = replay(4 * HOUR, 6 * HOUR, SAVES)
    assert (found.seconds, found.finished, found.renewals) == (100.0, True, 1)
    found = replay(4 * HOUR, 9 * HOUR, SAVES)
    assert (found.seconds, found.renewals) == (200.0, 2)


def test_who_would_have_ended_in_its_last_minute_is_saved_too() -> None:
    found = replay(4 * HOUR, 4 * HOUR - 30, SAVES)
    assert (found.seconds, found.finished, found.renewals) == (100.0, True, 1)


def test_who_is_cut_off_after_all_renewals_has_lost_everything() -> None:
    found = replay(HOUR, 99 * HOUR, SAVES)
    assert not found.finished
    assert found.renewals == 10
    assert found.seconds > 10 * HOUR


def test_a_limit_that_leaves_no_time_for_a_save_ends_the_job() -> None:
    found = replay(100.0, 150.0, SAVES)
    assert (found.seconds, found.finished) == (100.0, False)


def test_without_histories_there_are_no_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLURM_ELASTIC_DATA", str(tmp_path))
    assert main([]).rows == ()
