"""Fault points: they kill only where and when they are asked to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import slurm_elastic
from slurm_elastic.base.faults import POINTS

SCRIPT = "from slurm_elastic.base.faults import reach; reach({!r}); print('alive')"


def reach(point: str, **env: str) -> int:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(point)], env=env, capture_output=True, check=False
    )
    return run.returncode


def test_nothing_happens_unless_it_is_asked_for() -> None:
    assert reach(POINTS[0]) == 0
    assert reach(POINTS[0], SLURM_ELASTIC_FAULT=POINTS[1]) == 0


def test_it_dies_as_a_crash_would_have_it() -> None:
    assert reach(POINTS[0], SLURM_ELASTIC_FAULT=POINTS[0]) == -signal.SIGKILL


def test_it_dies_once(tmp_path: Path) -> None:
    env = {"SLURM_ELASTIC_FAULT": POINTS[0], "SLURM_ELASTIC_FAULT_ONCE": str(tmp_path / "died")}
    assert reach(POINTS[0], **env) == -signal.SIGKILL
    assert reach(POINTS[0], **env) == 0


def test_it_stands_still_until_it_may_go_on() -> None:
    env = {"SLURM_ELASTIC_FAULT": POINTS[0], "SLURM_ELASTIC_FAULT_SIGNAL": "STOP"}
    command = [sys.executable, "-c", SCRIPT.format(POINTS[0])]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as stands:
        _, status = os.waitpid(stands.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        stands.send_signal(signal.SIGCONT)
        assert stands.communicate()[0] == b"alive\n"


@pytest.mark.parametrize("point", POINTS)
def test_each_point_stands_once_in_the_code(point: str) -> None:
    package = Path(slurm_elastic.__file__).parent
    parts = (
        "controller/**/*.py",
        "features/**/*.py",
        "ckptman/**/*.py",
        "slurm/client/commands/requeue_setting.py",
    )
    sources = [path for part in parts for path in package.glob(part)]
    found = re.findall(re.escape(f'reach("{point}")'), "".join(p.read_text() for p in sources))
    assert len(found) == 1
