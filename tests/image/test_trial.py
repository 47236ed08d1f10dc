"""The inside of a check, without a machine: which job has run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.image.trial import BootTrial, TrialOrder

ORDER = TrialOrder(
    image="", cloud="ec2", accel="tcg", tree="", heartbeat=1.0, timeout=1.0, saves=False
)


class Answers:
    """A head whose job has ended so."""

    def __init__(self, **job: str) -> None:
        self._told = {"job": job, "node": {"Version": "22.05.8", "OS": "Linux"}}

    def submit(self, script: str) -> str:
        return "1"

    def shown(self, kind: str, _name: str) -> dict[str, str]:
        return self._told[kind]


def ended(place: Path, **job: str) -> str:
    trial: Any = BootTrial(place, ORDER)
    trial._head = Answers(**job)
    said: str = trial._job()
    return said


def test_a_job_that_slurmd_could_not_start_has_not_run(tmp_path: Path) -> None:
    """slurmctld 22.05 has it as completed."""
    with pytest.raises(SlurmElasticError, match=r"job 1 is COMPLETED, exit 0:0 \(0: it never"):
        ended(tmp_path, JobState="COMPLETED", ExitCode="0:0")


def test_a_job_that_ran_says_so_by_its_exit_code(tmp_path: Path) -> None:
    assert ended(tmp_path, JobState="FAILED", ExitCode="42:0").startswith("check1, Slurm 22.05.8")
    with pytest.raises(SlurmElasticError, match="3: users reach the metadata service"):
        ended(tmp_path, JobState="FAILED", ExitCode="3:0")
