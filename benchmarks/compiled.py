"""The simulator's inner modules compiled by mypyc, as ``setup.py`` does when it is asked to.

They are built in a copy of the package, so that the pure ones stay what everything else runs.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
_LIMIT = 900.0
"""Seconds; building takes twenty on an idle machine."""


class CompileError(Exception):
    """The last words of what went wrong."""


def missing() -> str | None:
    """The tools that this machine lacks to compile them."""
    if shutil.which("gcc") is None:
        return "no gcc"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "no Python.h"
    lacking = [name for name in ("mypyc", "setuptools") if importlib.util.find_spec(name) is None]
    return f"no {' and no '.join(lacking)}" if lacking else None


def build(place: Path) -> None:
    """A copy of the package in ``place``, its inner modules compiled. CompileError if not."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(REPO / "slurm_elastic", place / "slurm_elastic", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(REPO / name, place)
    run(place, ["setup.py", "-q", "build_ext", "--inplace"])


def run(place: Path, arguments: Sequence[str], *paths: Path) -> str:
    """The output of a Python that imports the copy, then ``paths``. CompileError if it fails."""
    path = os.pathsep.join(map(str, (place, *paths)))
    env = os.environ | {"PYTHONPATH": path, "SLURM_ELASTIC_COMPILED": "1"}
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(
            command, cwd=place, env=env, capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(str(error)) from error
    if done.returncode:
        raise CompileError((done.stdout + done.stderr).strip()[-2000:])
    return done.stdout
