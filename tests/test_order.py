"""Which tests a run takes, and in which order their files start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from order import longest_first
from patience import patience

REPO = Path(__file__).parents[1]


class Item:
    def __init__(self, nodeid: str, *marks: pytest.Mark) -> None:
        self.nodeid = nodeid
        self.path = Path(nodeid.partition("::")[0])
        self.marks = {mark.name: mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)


E2E = pytest.mark.e2e.mark
LONG = pytest.mark.timeout(3600).mark


def test_files_that_take_longest_start_first_and_keep_the_order_of_their_tests():
    items = [
        Item("a.py::test_1"),
        Item("b.py::test_light"),
        Item("b.py::test_real", E2E),
        Item("c.py::test_chaos"),
        Item("d.py::test_1"),
        Item("e.py::test_1", E2E, LONG),
    ]
    longest_first(items)
    assert [item.nodeid for item in items] == [
        "e.py::test_1",
        "b.py::test_light",
        "b.py::test_real",
        "c.py::test_chaos",
        "a.py::test_1",
        "d.py::test_1",
    ]


def test_the_fast_run_leaves_out_what_needs_slurmctld_or_an_engine():
    choice = next(
        line for line in (REPO / "scripts/test").read_text().splitlines() if "not e2e" in line
    ).split('"')[3]
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", choice,
         "tests/e2e/test_burst.py", "tests/realcloud/docker/test_ssh.py", "tests/test_docs.py"],
        cwd=REPO, capture_output=True, text=True, check=True, timeout=patience(300),
    ).stdout  # fmt: skip
    assert "tests/test_docs.py::" in collected
    assert "tests/e2e" not in collected
    assert "tests/realcloud" not in collected
