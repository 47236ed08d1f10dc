"""The quickstart as a person starts it: the whole story, and stopped in the middle."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import patience

from slurm_elastic.cli.quickstart import verdict
from slurm_elastic.machine import nodeproc
from slurm_elastic.sandbox.layout import MARKER

pytestmark = pytest.mark.e2e
START = [sys.executable, "-m", "slurm_elastic.cli.main", "quickstart", "--dir"]


@pytest.fixture
def directory() -> Path:
    # Short, and open to user slurm: pytest's own directories are neither.
    return Path(f"/tmp/slurm-elastic-quickstart-{os.getpid()}")


def left_over(directory: Path) -> list[object]:
    found: list[object] = [directory] if directory.exists() else []
    return found + list(nodeproc.carrying(MARKER, str(directory), {0, 64030}))


def test_ten_jobs_from_sbatch_to_the_last_machines_end(directory):
    done = subprocess.run(
        [*START, directory], capture_output=True, text=True, check=False, timeout=patience(500)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == verdict([])[-1]
    assert "11 of 11 jobs completed, 0 instances left" in done.stdout
    assert left_over(directory) == []


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
