"""``join.wipe`` asks a real slurmctld which jobs of a user have not ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import ROOT
from patience import patience

from benchmarks.small_slurm import SmallSlurm
from slurm_elastic.providers.base.joining import wiping

pytestmark = [pytest.mark.e2e, ROOT]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SmallSlurm]:
    with SmallSlurm(static=1, cloud=1, boot=3600, prolog=False) as running:
        yield running


def test_the_files_of_a_job_that_is_configuring_stay(cluster: SmallSlurm, tmp_path: Path) -> None:
    """Its files are copied while it is, and it would start without them."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
    mine = scratch / "input"
    mine.write_text("copied for the job")
    shutil.chown(mine, "nobody")
    program = tmp_path / "wipe"
    program.write_text(wiping([str(scratch)], 600.0))
    job = cluster.submit("-p", "cloud", "--uid=nobody", "-o", "/dev/null", "--chdir=/")
    shown = ("squeue", "--noheader", f"--jobs={job}", "--format=%T %N")
    deadline = time.monotonic() + patience(60)
    while (state := cluster.command(*shown).split())[:1] != ["CONFIGURING"]:
        assert time.monotonic() < deadline, state
    environment = cluster.environment() | {
        "SLURM_JOB_UID": str(mine.stat().st_uid), "SLURM_JOB_ID": str(job + 1000),
        "SLURMD_NODENAME": state[1],
    }  # fmt: skip
    wipe = ["/usr/bin/python3", "-IS", str(program)]
    subprocess.run(wipe, env=environment, check=True, timeout=patience(60))
    assert mine.exists()
    cluster.command("scancel", str(job))
    while cluster.command(*shown).split()[:1] not in ([], ["COMPLETING"], ["CANCELLED"]):
        assert time.monotonic() < deadline
    subprocess.run(wipe, env=environment, check=True, timeout=patience(60))
    assert not mine.exists()
    assert os.listdir(scratch) == []
