"""Drawn sites on real daemons: ``scripts/chaos --real`` runs as many as one likes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from needs import missing
from patience import patience

from benchmarks.traces import data
from tests.real.place import DEBIAN, PROGRAMS, REPO

pytestmark = [pytest.mark.e2e, pytest.mark.release]
NEWER = "25.11"
SITES, FIRST = 4, 4


def why_not(release: str) -> str | None:
    """Why this machine cannot run such a site; None if it can."""
    if os.getuid() != 0:
        return "slurmds and namespaces are root's"
    if release != DEBIAN and not ((place := data()) and (place / f"slurm-{release}").is_dir()):
        return f"no Slurm {release} was built for this machine"
    return missing(*PROGRAMS) or None


@pytest.mark.parametrize("release", [DEBIAN, NEWER])
def test_nothing_is_lost_doubled_or_left_on_a_real_slurmctld(release: str) -> None:
    if reason := why_not(release):
        pytest.skip(reason)
    options = ("--slurm", release, "--seeds", str(SITES), "--from", str(FIRST), "--jobs", "2")
    done = subprocess.run(
        [sys.executable, "-m", "tests.real.run", *options],
        cwd=REPO, capture_output=True, text=True, check=False, timeout=patience(1500),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SITES} sites on Slurm {release}" in done.stdout
    assert "failing seeds: none" in done.stdout
