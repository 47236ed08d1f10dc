"""Builds make the same wheel each time and a spec that rpm reads, and name no registry anywhere."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from patience import patience

REPO = Path(__file__).parents[2]


@pytest.mark.skipif(os.geteuid() != 0, reason="scripts/package wants root")
def test_a_wheel_has_its_data_files_and_is_the_same_bytes_each_time(tmp_path):
    one, other = (wheel(tmp_path / name) for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    names = zipfile.ZipFile(one).namelist()
    for wanted in (
        "slurm_elastic/slurm/hooks/job_submit.lua", "slurm_elastic/py.typed", "share/man/man1/slurm-elastic-cost.1",
        "share/bash-completion/completions/slurm-elastic", "share/zsh/site-functions/_slurm-elastic",
    ):  # fmt: skip
        assert any(name.endswith(wanted) for name in names), wanted
    assert any(
        name.startswith("slurm_elastic/sandbox/") and name.endswith(".csv") for name in names
    )


def wheel(directory: Path) -> Path:
    done = subprocess.run(
        [REPO / "scripts" / "package", "wheel", "--output", directory],
        capture_output=True, text=True, check=False, timeout=patience(200),
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.splitlines()[-1])


def test_rpm_reads_the_spec():
    spec = REPO / "packaging" / "slurm-elastic.spec"
    done = subprocess.run(
        ["rpmspec", "-P", spec], capture_output=True, text=True, check=False, timeout=patience(60)
    )
    assert done.returncode == 0, done.stderr
    assert "%{" not in done.stdout.replace("%{nil}", "")
    assert "/opt/slurm-elastic" in done.stdout
