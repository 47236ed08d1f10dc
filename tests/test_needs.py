"""A test that lacks a program is skipped with its package's name; after scripts/test that is a failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from needs import PACKAGES, SET_UP, missing

REPO = Path(__file__).parents[1]
TESTS = """
import pytest
from needs import missing, not_installed, unless

@unless("sshd-of-nobody")
def test_marked(): ...

def test_asked():
    pytest.skip(missing("sshd-of-nobody", "sh"))

def test_kernel():
    pytest.skip("KVM starts no guests here")
"""
MODULE = """
import pytest
from needs import not_installed
pytest.importorskip("nobodys_sdk", reason=not_installed("nobodys_sdk"))
"""


def outcome(place: Path, **env: str) -> str:
    (place / "test_lacking.py").write_text(TESTS)
    (place / "test_module.py").write_text(MODULE)
    kept = {k: v for k, v in os.environ.items() if k != SET_UP and not k.startswith("PYTEST")}
    paths = os.pathsep.join((str(REPO / "tests"), str(REPO)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "needs", "-p", "no:cacheprovider", "-ra",
         "--continue-on-collection-errors", "."],
        cwd=place, env=kept | env | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout


def test_a_machine_that_lacks_a_program_skips_its_tests(tmp_path: Path) -> None:
    said = outcome(tmp_path)
    assert "4 skipped" in said.splitlines()[-1]
    assert said.count("not installed: sshd-of-nobody") == 2


def test_after_scripts_test_it_fails_them_and_no_others(tmp_path: Path) -> None:
    said = outcome(tmp_path, **{SET_UP: "1"})
    assert re.search(r"\b1 failed, 1 skipped, 2 errors\b", said.splitlines()[-1]), said
    assert "not installed: sshd-of-nobody: set_up_tests in scripts/lib.sh should" in said
    assert "not installed: nobodys_sdk: set_up_tests" in said
    assert "KVM starts no guests here" in said


def test_the_package_is_named() -> None:
    assert missing("sh") == ""
    assert missing("no-program", "sh", "another") == "not installed: another, no-program"


@pytest.mark.parametrize("program", sorted(PACKAGES))
def test_scripts_test_looks_for_each_program_and_installs_its_package(program: str) -> None:
    """Whether it does is not told by another program of the same purpose that is there already."""
    text = (REPO / "scripts" / "lib.sh").read_text()
    packages = re.findall(r"^PACKAGES=\(([^)]*)\)", text, re.MULTILINE)[0].split()
    if PACKAGES[program] in packages:  # dpkg is asked for each
        return
    looked_for = {
        name for line in re.findall(r"\bthere ([a-z0-9_. -]+)", text) for name in line.split()
    }
    gcc = {"gcc"}  # beside the header files that it needs
    assert program in looked_for | gcc
    assert any(
        PACKAGES[program] in line.split() for line in re.findall(r"install_packages (.*)", text)
    )
