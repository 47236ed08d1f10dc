"""Defects that were mended once and are put back on purpose: the test of each must find it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

from tests.chaos.defects.all_rooms import ATTACKS
from tests.chaos.sabotage_table import DRAWINGS, lines

REPO = Path(__file__).parents[2]
FIRST = (
    "a_growth_that_a_bound_cuts_serves_all_jobs", "a_stopped_machine_runs_on_beside_another",
    "deletions_go_by_the_clock", "disks_on_reserved_capacity_are_not_billed",
    "images_that_cannot_be_listed_are_none", "one_off_of_a_bmc_ends_a_machine",
    "two_heads_end_each_others_machines", "two_reservations_of_a_type_have_one_key",
)  # fmt: skip
"""Those of the first tier: cheap tests, of several rooms."""


def attacks(*names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.chaos.attacks", *names]
    return subprocess.run(
        command, cwd=REPO, capture_output=True, text=True, check=False, timeout=patience(1200)
    )


def test_the_tests_of_the_table_exist() -> None:
    for name, tests in ATTACKS.items():
        for test in tests:
            path, _, function = test.partition("::")
            text = "\n".join(source.read_text() for source in sources(path))
            function = function.split("::")[-1].partition("[")[0]
            assert re.search(rf"def {function}\(", text), f"{name}: {test}"


def sources(path: str) -> list[Path]:
    """The file of a test, and the contracts that it may inherit the test from."""
    return [
        REPO / path,
        *(REPO / "slurm_elastic" / "testing").glob("*.py"),
        REPO / "tests/slurm/contract.py",
    ]


def test_the_table_has_each_defect_once() -> None:
    table = "\n".join(lines())
    for name in (*ATTACKS, *DRAWINGS):
        assert table.count(f"| {name} |") == 1


def test_each_defect_still_fits_the_code() -> None:
    """A defect replaces words of the product: who changes these words changes the defect, too."""
    done = attacks("--fit")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_defect_put_back_is_found_by_its_test() -> None:
    done = attacks(*FIRST)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.release
@pytest.mark.parametrize("name", sorted(set(ATTACKS) - set(FIRST)))
def test_each_defect_put_back_is_found_by_its_test(name: str) -> None:
    done = attacks(name)
    assert done.returncode == 0, done.stdout + done.stderr
