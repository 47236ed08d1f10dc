"""The simulator's speed beside its peers: what they are given, and what is said without them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from needs import unless

from benchmarks import accasim_peer, environments, simulate
from benchmarks.bare_c import bare_easy_in_c
from benchmarks.report import at_least
from slurm_elastic.simulate.histories import swf
from slurm_elastic.simulate.histories.jobs import Jobs

SYNTHETIC = Path(__file__).parent.parent / "data" / "synthetic.swf"
HISTORIES = (("a", 1), ("b", 5), ("c", 3))
OPTIONS = argparse.Namespace(rounds=1, peer_jobs=None, no_peer=False)


@pytest.fixture
def jobs() -> Jobs:
    return swf.load(SYNTHETIC).jobs


def test_the_peer_gets_the_very_same_jobs(jobs: Jobs) -> None:
    again = swf.read(accasim_peer.history_lines(jobs), swf.History())
    assert again.complaints.sentences() == []
    assert [list(column) for column in again.jobs.columns[:5]] == [
        list(column) for column in jobs.columns[:5]
    ]


def test_a_peer_that_cannot_be_installed_is_left_out_with_a_sentence(
    jobs: Jobs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(environments, "_cache", lambda: tmp_path)
    monkeypatch.setattr(environments.sys, "executable", str(tmp_path / "no-python"))
    assert simulate.beside_accasim("synthetic", jobs, 16, OPTIONS) == ()
    assert "AccaSim cannot be installed" in capsys.readouterr().err


def test_a_peer_that_fails_is_left_out_with_its_last_words(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho it broke >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(accasim_peer, "environment", lambda *_: python)
    assert accasim_peer.rows("synthetic", jobs, 16, 1) == "AccaSim failed (it broke)"


def test_both_are_shown_with_their_goals(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho \'{{"jobs": {len(jobs)}, "seconds": 9e9, "wait": 1e9}}\'\n')
    python.chmod(0o755)
    monkeypatch.setattr(accasim_peer, "environment", lambda *_: python)
    speed, wait = simulate.beside_accasim("synthetic", jobs, 16, OPTIONS)
    assert (speed.goal, speed.ok) == ("ratio >= 100", True)
    assert (wait.goal, wait.ok) == ("ratio 1 +- 0.02", False)


def test_the_static_easy_starts_each_job_when_the_bare_loop_does(jobs: Jobs) -> None:
    row = simulate.agreed("synthetic", jobs, max(jobs.procs))
    assert (row.ours, row.ok, row.unit) == (0, True, f"of {len(jobs)}")


@unless("gcc")
def test_the_loop_in_c_starts_each_job_when_the_loop_in_python_does(jobs: Jobs) -> None:
    in_c = bare_easy_in_c()
    assert in_c is not None
    nodes = max(jobs.procs)
    assert list(in_c(jobs.submit, jobs.run, jobs.limit, jobs.procs, nodes)) == list(
        simulate.bare(jobs, nodes)
    )


@unless("gcc")
def test_the_defaults_of_a_site_are_measured_beside_the_loop_in_c(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "SHORT", 100)
    rows = simulate.beside_c("synthetic", jobs, max(jobs.procs), 1, OPTIONS)
    goals = {row.case: row.goal for row in rows}
    assert goals["synthetic static: to the loop in C"] == "ratio >= 0.3"
    assert goals["synthetic packing: to the loop in C"] == "ratio >= 0.3"
    assert goals["synthetic semi packing: to the loop in C"] == "ratio >= 0.1"
    assert rows[-1].ok


def test_what_is_compared_on_each_history_has_its_range() -> None:
    rows = [at_least(f"{name} elastic, spot", ours, 10, "jobs/s", 0.1) for name, ours in HISTORIES]
    found = {row.case: row.ours for row in simulate.spreads(rows, "histories")}
    title = "elastic, spot"
    assert found == {
        f"{title}, least of 3 histories": 0.1,
        f"{title}, median of 3 histories": 0.3,
        f"{title}, most of 3 histories": 0.5,
    }
    assert simulate.spreads(rows[:1], "histories") == []
