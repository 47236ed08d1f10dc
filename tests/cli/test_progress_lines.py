"""Lines about the progress of a long simulation."""

from __future__ import annotations

import pytest

from slurm_elastic.cli.operate.history import (
    LINE_EVERY_S,
    MIN_JOBS_FOR_BAR,
    ProgressLines,
    progress,
)


def test_a_line_comes_each_half_minute_and_says_how_long_it_takes() -> None:
    now, lines = [0.0], list[str]()
    shown = ProgressLines(100_000, lines.append, lambda: now[0])
    for _ in range(9):
        now[0] += LINE_EVERY_S / 3
        shown.advance(10_000)
    assert lines == [
        "simulated 30,000 of about 100,000 jobs; about 1m 10s left",
        "simulated 60,000 of about 100,000 jobs; about 40s left",
        "simulated 90,000 of about 100,000 jobs; about 10s left",
    ]


def test_a_short_simulation_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(MIN_JOBS_FOR_BAR - 1) as advance:
        assert advance is None
    with progress(MIN_JOBS_FOR_BAR) as advance:
        assert advance is not None
        advance(1)
    assert "simulated" not in capsys.readouterr().err, "it did not take half a minute"
