"""The papers' figures that need no history."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bare_easy import bare_easy
from benchmarks.papers import exact
from benchmarks.papers import main as papers
from benchmarks.traces import VARIABLE, data, history
from slurm_elastic.simulate import easy, swf

SYNTHETIC = Path(__file__).parent.parent / "data" / "synthetic.swf"


@pytest.mark.release
def test_all_exact_rows_are_met_but_the_one_whose_input_is_only_drawn() -> None:
    (missed,) = (row.case for row in exact() if not row.ok)
    assert "bursts end first" in missed


def test_rows_without_their_history_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert data() == tmp_path
    assert papers(["--only", "sec"]).rows == ()
    assert "not at hand" in capsys.readouterr().err


def test_the_bare_loop_starts_jobs_when_the_fast_path_does() -> None:
    jobs = swf.load(SYNTHETIC).jobs
    starts = bare_easy(jobs.submit, jobs.run, jobs.limit, jobs.procs, 16)
    assert starts == list(easy.starts(jobs, 16))


@pytest.mark.release
def test_plain_easy_on_sdsc_sp2_is_within_two_percent_of_accasim() -> None:
    if history("SDSC-SP2-1998-4.2-cln") is None:
        pytest.skip(f"SDSC-SP2-1998-4.2-cln is not at hand (${VARIABLE})")
    assert all(row.ok for row in papers(["--only", "easy"]).rows)
