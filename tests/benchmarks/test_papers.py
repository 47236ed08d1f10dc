"""The papers' figures that need no history."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bare_easy import bare_easy
from benchmarks.papers import exact
from benchmarks.papers import main as papers
from benchmarks.papers_elastic_site import elastic_site
from benchmarks.papers_standin import ec3_table
from benchmarks.traces import VARIABLE, data, history
from slurm_elastic.simulate.histories import swf
from slurm_elastic.simulate.queues import easy

SYNTHETIC = Path(__file__).parent.parent / "data" / "synthetic.swf"


@pytest.mark.release
def test_all_exact_rows_are_met_but_the_one_whose_input_is_only_drawn() -> None:
    (missed,) = (row.case for row in exact() if row.ok is False)
    assert "bursts end first" in missed


def test_what_cannot_fail_is_an_identity() -> None:
    """Rows that add up the paper's own sums, and machine counts that the limit of ten decides."""
    identities = {row.case.split()[0] for row in exact() if row.goal == "identity"}
    assert identities == {"1", "2", "3", "5", "19"}


def test_ten_times_the_work_needs_about_the_papers_machines_and_time() -> None:
    rows = {row.case: row for row in elastic_site()}
    assert rows["21 Elastic Site figure 12: machines at most, 240 s, 140 s"].ok
    assert rows["21 Elastic Site figure 12: last job, 240 s, 140 s"].ok


def test_free_parameters_are_varied() -> None:
    """Nobody printed when EC3's jobs come: from the shortest spacing to the longest."""
    rows = {row.case: row.ours for row in ec3_table()}
    assert rows["4 EC3 makespan, on demand (stand-in jobs): least, spacing (s) 3600"] == 21_877
    assert rows["4 EC3 makespan, on demand (stand-in jobs): most, spacing (s) 13600"] == 48_277


def test_how_often_ec3_bursts_depends_on_when_its_jobs_come() -> None:
    """Its figure 6 has three bursts. What no paper prints decides between one and four."""
    rows = {row.case: row.ours for row in ec3_table()}
    bursts = {case: ours for case, ours in rows.items() if case.startswith("fig. 6")}
    assert sorted(bursts.values()) == [1, 4]


def test_figures_7_8_and_11_of_elastic_site_are_shown() -> None:
    rows = {row.case: row for row in elastic_site()}
    assert rows["fig. 8 Elastic Site steady has least overhead, batch of 20"].ok
    assert rows["fig. 8 Elastic Site steady has least overhead, 10 jobs"].ok
    # Twenty jobs of a minute on ten machines that are always there.
    assert rows["fig. 7 Elastic Site dedicated machines, batch of 20"].ours == 120
    assert sum(case.startswith("fig. 11") for case in rows) == 2


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
