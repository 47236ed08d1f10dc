"""The example of a cloud outside the package: installed as anybody's, found by its entry point, it
passes the suite that ours pass, and is small.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "libcloud"
MOST_LINES = 150


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package, beside its tests; nothing is built in the clone."""
    place = tmp_path_factory.mktemp("example")
    copy = shutil.copytree(
        EXAMPLE, place / "source", ignore=shutil.ignore_patterns("build", "*-info")
    )
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(place / "site")]
    done = subprocess.run([*pip, *alone, str(copy)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shutil.copytree(
        EXAMPLE / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__")
    )
    return place


def test_it_passes_the_suite(installed: Path) -> None:
    where = os.pathsep.join([str(installed / "site"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=installed / "tests", env={**os.environ, "PYTHONPATH": where, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    print(done.stdout.splitlines()[-1])
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_it_is_small() -> None:
    files = sorted((EXAMPLE / "slurm_elastic_libcloud").glob("*.py"))
    lines = sum(len(file.read_text().splitlines()) for file in files)
    print(f"a cloud outside the package, by libcloud: {lines} lines")
    assert 0 < lines <= MOST_LINES


def test_the_product_needs_no_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "import slurm_elastic.cli.main, slurm_elastic.cli.daemon, slurm_elastic.controller.daemon\n"
        "from slurm_elastic.config.cloud_kinds import table\n"
        "[table().kind(name) for name in table().own]\n"
        "print('slurm_elastic.testing' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "False", done.stderr
