"""Histories that were not at hand while the planner was built, and what is told of them."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from benchmarks import beyond, portfolio
from benchmarks.report import spread
from benchmarks.traces import VARIABLE, others


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("swf", "availability"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def test_what_is_there_beside_the_known_ones_is_listed(directory: Path) -> None:
    for name in ("b", "a", "known"):
        (directory / "swf" / f"{name}.swf.gz").touch()
    (directory / "swf" / "README").touch()
    assert others({"known"}) == ["a", "b"]


def test_without_a_directory_there_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    assert others(()) == []


def test_a_figure_over_many_has_its_least_middle_and_greatest() -> None:
    assert [(row.case, row.ours) for row in spread("wait", [3, 1, 8], "s", "sites")] == [
        ("wait, least of 3 sites", 1),
        ("wait, median of 3 sites", 3),
        ("wait, most of 3 sites", 8),
    ]
    assert spread("wait", [], "s", "sites") == []


@pytest.mark.release
def test_reservations_on_other_histories_are_counted_apart(directory: Path) -> None:
    """Sixteen weeks with a job of six hours each day."""
    lines = [
        f"{n} {86400 * n} 0 21600 8 -1 -1 8 21600 -1 1 1 1 -1 -1 -1 -1 -1" for n in range(16 * 7)
    ]
    with gzip.open(directory / "swf" / "other.swf.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    found = {row.case: row for row in portfolio.main([]).rows}
    assert f"within 3 points of the best, of 4 {portfolio.UNSEEN}" in found
    assert not any(case.endswith("of 4 cases") for case in found)


@pytest.mark.release
def test_deadlines_on_other_traces_are_counted_apart(directory: Path) -> None:
    chance = random.Random(1)
    there = [int(chance.random() < 0.8) for _ in range(2000)]
    document = {"metadata": {"gap_seconds": 600}, "data": there}
    (directory / "availability" / "2024-01_other.json").write_text(json.dumps(document))
    rows = [row.case for row in beyond.dollars(directory, seed=3)]
    assert rows
    assert all(beyond.UNSEEN in case for case in rows)
