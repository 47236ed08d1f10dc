"""The examples of code outside the package (a cloud, policies, a checkpoint method, a ranking key): installed as anybody's, found by their entry points, they pass the suites that ours pass, and are small."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
MOST_LINES = {
    "libcloud": 165, "weekend": 50, "nightly": 50, "daytime": 50, "restartfile": 120, "lowcarbon": 50,
}  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[
        "libcloud",
        "weekend",
        "nightly",
        "daytime",
        "lowcarbon",
        pytest.param("restartfile", marks=pytest.mark.release),
    ],
)
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package, beside its tests; nothing is built in the clone."""
    example = EXAMPLES / request.param
    place = tmp_path_factory.mktemp("example")
    copy = shutil.copytree(
        example, place / "source", ignore=shutil.ignore_patterns("build", "*-info")
    )
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(place / "site")]
    done = subprocess.run([*pip, *alone, str(copy)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shutil.copytree(
        example / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__")
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


COMMANDS = {
    "weekend": ("simulate", "--compare", "slurm,weekend(weekday=1)+idle(60)"),
    "daytime": ("simulate", "--compare", "slurm,on_demand+daytime(end=19)"),
    "nightly": ("plan checkpoint", "--policies", "none,first_of(on_notice, nightly(hour=4))"),
}


@pytest.mark.parametrize("installed", COMMANDS, indirect=True)
def test_the_simulator_takes_the_policy_by_its_name(installed: Path) -> None:
    (name,) = (name for name in COMMANDS if list((installed / "site").glob(f"*{name}")))
    command, option, policies = COMMANDS[name]
    history = installed / "history.swf"
    jobs = (f"{i} {60 * i} -1 600 1 -1 -1 1 900 -1 1 1 1 1 1 1 -1 -1" for i in range(1, 20))
    history.write_text("; UnixStartTime: 1732230000\n" + "\n".join(jobs) + "\n")
    program = "import sys; from slurm_elastic.cli.main import program; sys.exit(program())"
    words = ["--config", str(ROOT / "etc" / "slurm-elastic.yaml"), *command.split(), "--workload"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words, str(history), option, policies],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(installed / "site"), str(ROOT)]), "COLUMNS": "100"},
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert policies.split(",", 1)[1].strip() in done.stdout


@pytest.mark.parametrize("name", MOST_LINES)
def test_it_is_small(name: str) -> None:
    files = sorted((EXAMPLES / name / f"slurm_elastic_{name}").glob("*.py"))
    lines = sum(len(file.read_text().splitlines()) for file in files)
    print(f"outside the package, {name}: {lines} lines")
    assert 0 < lines <= MOST_LINES[name]


def test_the_product_needs_no_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "import slurm_elastic.cli.main, slurm_elastic.cli.services.daemon, slurm_elastic.controller.daemon\n"
        "from slurm_elastic.config.cloud_kinds import table\n"
        "[table().kind(name) for name in table().own_names]\n"
        "print('slurm_elastic.testing' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "False", done.stderr
