"""scripts/test: its exit status and its last line, with the tools that it runs in their places."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "test"
LIBRARY = """\
set -euo pipefail
SIDE_BY_SIDE=(-n 2)
say() { printf '==> %s\\n' "$*"; }
die() { printf '%s: %s\\n' "${0##*/}" "$*" >&2; exit 1; }
need_root() { :; }
set_up_tests() { :; }
"""
SUMMARY = "==== 3 passed in 0.01s ===="
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs scripts/test; ruff, mypy and so on are programs with the exit status that is given."""
    scripts, tools = tmp_path / "scripts", tmp_path / "bin"
    scripts.mkdir()
    tools.mkdir()
    shutil.copy(SCRIPT, scripts / "test")
    (scripts / "lib.sh").write_text(LIBRARY)

    def start(**status: int) -> subprocess.CompletedProcess[str]:
        says = {"pytest": SUMMARY, "mypy": "a.py:1: error: not so"}
        for name in ("ruff", "lint-imports", "mypy", "pytest"):
            lines = ["#!/bin/sh", f"echo '{says.get(name, name)}'", f"exit {status.get(name, 0)}"]
            (tools / name).write_text("\n".join([*lines, ""]))
            (tools / name).chmod(0o755)
        return subprocess.run(
            [scripts / "test"],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": f"{tools}:/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        )  # fmt: skip

    return start


def test_when_all_is_green_it_exits_with_0_and_ends_with_pytests_summary(
    run: Run, tmp_path: Path
) -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == SUMMARY
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "scripts"]


@pytest.mark.parametrize("status", [1, 2, 5])
def test_it_exits_with_pytests_status(run: Run, status: int) -> None:
    done = run(pytest=status)
    assert (done.returncode, done.stderr) == (status, "")


def test_a_type_error_fails_the_run_and_is_told_after_the_tests(run: Run) -> None:
    done = run(mypy=1)
    assert done.returncode == 1
    assert done.stderr == "test: failed: mypy\na.py:1: error: not so\n"
    assert done.stdout.splitlines()[-1] == SUMMARY


def test_after_a_failed_check_no_test_runs(run: Run) -> None:
    done = run(ruff=1)
    assert done.returncode == 1
    assert "no test was run" in done.stderr
    assert SUMMARY not in done.stdout
