"""Sites and runs that are drawn from a seed (tests/chaos), and small forms of runs that failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

from tests.chaos.coverage import Coverage
from tests.chaos.drawn_site import drawn_config, drawn_document, steps
from tests.drawn.site_document import read

REPO = Path(__file__).parents[2]
SMALL = {"the machine of a drawn job is bought with an intent": (1, "[[], [1], []]")}
"""By what was wrong: the seed, and the parts of its run that --shrink has kept."""


def _run(*options: str) -> int:
    command = [sys.executable, "-m", "tests.chaos.run", *options]
    done = subprocess.run(command, cwd=REPO, capture_output=True, check=False, timeout=patience(60))
    return done.returncode


@pytest.mark.parametrize("seed", range(5))
def test_a_drawn_site_is_a_file_that_the_reader_accepts(seed: int) -> None:
    assert read(drawn_document(seed)) == drawn_config(seed)


def test_steps_that_are_left_out_change_nothing() -> None:
    assert drawn_document(1, ()) != drawn_document(1)
    assert drawn_document(1, range(len(steps(1)))) == drawn_document(1)


@pytest.mark.parametrize("wrong", SMALL)
def test_what_was_wrong_in_a_small_run_is_so_no_more(wrong: str) -> None:
    seed, kept = SMALL[wrong]
    assert _run("--from", str(seed), "--kept", kept) == 0


def test_a_small_run_finds_what_it_was_kept_for() -> None:
    seed, kept = SMALL["the machine of a drawn job is bought with an intent"]
    options = ("--from", str(seed), "--kept", kept)
    assert _run(*options, "--sabotage", "intents_unwritten") == 1


def test_coverage_names_pairs_that_never_met() -> None:
    coverage = Coverage()
    coverage.add(["A.x", "B.y"], {"cloud: slow": 2, "job: held": 0})
    coverage.add(["C.z"], {"job: held": 1})
    lines = list(coverage.lines(["D.w"]))
    assert "       1  A.x + B.y" in lines
    assert "never met: A.x + C.z, job: held" in lines
    assert "keys that no run had: D.w" in lines
