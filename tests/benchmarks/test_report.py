"""The shared form of benchmark results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.report import bounded, compared, identity, noted, quantile, ranged, report

ROWS = (
    compared("faster", 1.0, 10.0, "s", at_most=0.2),
    compared("informs", 3.0, 2.0, "s"),
    bounded("calls", 5, 5, "calls"),
    noted("jobs", 12, "jobs"),
)


def test_written_rows_have_the_agreed_keys(tmp_path: Path) -> None:
    report("some", ROWS).write(tmp_path / "out.json")
    written = json.loads((tmp_path / "out.json").read_text())
    assert list(written) == ["name", "machine", "rows"]
    assert written["rows"][0] == {
        "case": "faster",
        "ours": 1.0,
        "reference": 10.0,
        "unit": "s",
        "ratio": 0.1,
        "goal": "ratio <= 0.2",
        "ok": True,
    }
    assert [row["ok"] for row in written["rows"]] == [True, None, True, None]


def test_a_missed_goal_shows() -> None:
    bad = report("some", [compared("slow", 3.0, 10.0, "s", at_most=0.2), *ROWS])
    assert not bad.ok
    assert report("some", ROWS).ok
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    bad.show(console)
    text = console.export_text()
    assert "NO" in text
    assert "slow" in text
    console.file.close()


def test_without_a_reference_no_goal_is_met() -> None:
    assert compared("broken", 1.0, 0.0, "s", at_most=2).ok is False


def test_an_identity_is_no_goal_that_was_met_but_a_difference_is_missed() -> None:
    assert [identity("sum", ours, 5, "$").ok for ours in (5, 6)] == [None, False]


def test_a_range_is_the_least_and_the_most_with_the_parameter_of_each() -> None:
    low, high = ranged("end", "boot", {1: 30, 2: 10, 3: 20}, "s", 20)
    assert (low.case, low.ours, low.ratio) == ("end: least, boot 2", 10, 0.5)
    assert (high.case, high.ours, high.ok) == ("end: most, boot 1", 30, None)


@pytest.mark.parametrize(("fraction", "value"), [(0.0, 1), (0.5, 2), (0.95, 4), (1.0, 4)])
def test_quantiles_are_values_that_occurred(fraction: float, value: float) -> None:
    assert quantile([4, 2, 1, 3], fraction) == value


def test_the_command_lists_what_there_is_and_refuses_the_rest() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "benchmarks"]
    listed = subprocess.run([*command, "-h"], cwd=root, capture_output=True, text=True, check=True)
    assert "start_delay" in listed.stdout
    assert "small_slurm" not in listed.stdout
    unknown = subprocess.run([*command, "x"], cwd=root, capture_output=True, text=True, check=False)
    assert unknown.returncode == 2
    assert "invalid choice: 'x'" in unknown.stderr
