"""The quickstart as a person starts it: the whole story, and stopped in the middle."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pages import ROOT, shown
from patience import patience

from slurm_elastic.cli.setting_up.quickstart import verdict
from slurm_elastic.machine.local import local_processes
from slurm_elastic.sandbox.layout import MARKER

pytestmark = pytest.mark.e2e
START = [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "quickstart", "--dir"]


@pytest.fixture
def directory() -> Path:
    # Short, and open to user slurm: pytest's own directories are neither.
    return Path(f"/tmp/slurm-elastic-quickstart-{os.getpid()}")


def left_over(directory: Path) -> list[object]:
    found: list[object] = [directory] if directory.exists() else []
    return found + list(local_processes.carrying(MARKER, str(directory), {0, 64030}))


def test_ten_jobs_from_sbatch_to_the_last_machines_end(directory):
    """As the README has it, in a directory of this test's."""
    said: list[str] = []

    def typed(line: str) -> None:
        done = subprocess.run(
            ["bash", "-c", f"{line} --dir {directory}"], cwd=ROOT,
            capture_output=True, text=True, check=False, timeout=patience(500),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout.splitlines()[-1])

    shown("README.md", "./scripts/quickstart").run(typed)
    promised = shown("README.md", "11 of 11 jobs completed").text.strip()
    assert said == [promised] == [verdict([])[-1]]
    assert left_over(directory) == []


@pytest.mark.release
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["munged", "Submitted as user nobody"])
def test_stopped_in_the_middle_it_leaves_nothing(directory, number, moment):
    with subprocess.Popen([*START, directory], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert any(moment in line for line in process.stdout)
        time.sleep(1.0)  # somewhere in what follows; any moment must do
        process.send_signal(number)
        process.stdout.read()
        assert process.wait(patience(90)) == 130
    assert left_over(directory) == []
