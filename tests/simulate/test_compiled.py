"""The simulator's inner modules compiled: the very same sources, the same results to the byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
LIMIT = 900
"""Seconds; it takes twenty on an idle machine."""
CHECK = """
from slurm_elastic.simulate import engine
from tests.simulate.test_same import EXPECTED, JOBS, SCENARIOS, digest
assert engine.__file__.endswith(".so"), engine.__file__
for name, scenario in SCENARIOS.items():
    found = digest(engine.simulate(JOBS, scenario))
    assert found == EXPECTED[name], (name, found)
"""


def _missing() -> str | None:
    if shutil.which("gcc") is None:
        return "no gcc"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "no Python.h"
    for name in ("mypyc", "setuptools"):
        done = subprocess.run(
            [sys.executable, "-c", f"import {name}"],
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
        if done.returncode:
            return f"no {name}"
    return None


def _run(place: Path, *arguments: str) -> None:
    env = os.environ | {"PYTHONPATH": str(place), "SLURM_ELASTIC_COMPILED": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_compiled_modules_give_the_same_results(tmp_path: Path) -> None:
    missing = _missing()
    if missing:
        pytest.skip(f"the modules cannot be compiled here: {missing}")
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("slurm_elastic", "tests"):
        shutil.copytree(REPO / name, tmp_path / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(REPO / name, tmp_path)
    _run(tmp_path, "setup.py", "-q", "build_ext", "--inplace")
    _run(tmp_path, "-c", CHECK)
