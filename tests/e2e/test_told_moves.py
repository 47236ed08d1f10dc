"""On real Slurm: a job without a checkpoint starts over, and its output and a mail say why."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.ckpt import SITE, announce, kinds, node_of
from tests.e2e.world import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.release]
SCRIPT = """#!/bin/bash
#SBATCH --partition=aws --mail-type=REQUEUE
echo "run ${SLURM_RESTART_COUNT:-0}"
sleep 300
"""
MAILER = """#!/bin/sh
{ printf '%s\\n' "$@"; cat; } > "$0.mail"
"""


@pytest.fixture(scope="module")
def mailer() -> Iterator[Path]:
    """Where SlurmUser may write."""
    with tempfile.TemporaryDirectory(prefix="se-mailer-", dir="/tmp") as place:
        Path(place).chmod(0o777)
        path = Path(place) / "mail"
        path.write_text(MAILER)
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox], mailer: Path) -> Sandbox:
    settings: dict[str, Any] = {
        **SITE,
        "elastic": SITE["elastic"] | {"notify": {"users": True, "mail_program": str(mailer)}},
    }
    return sandbox(**settings)


def test_a_job_without_a_checkpoint_says_that_it_starts_over(site: Sandbox, mailer: Path) -> None:
    job = site.submit(SCRIPT)
    site.wait_job(job, "RUNNING")
    output = site.work / f"slurm-{job}.out"
    site.wait_for(lambda: output.exists() and "run 0" in output.read_text(), PATIENCE, "it runs")
    announce(site, node_of(site, job))
    site.wait_for(lambda: "ckpt-back" in kinds(site, f"job:{job}"), PATIENCE, "it runs again")
    site.wait_for(
        lambda: "slurm-elastic: it starts over on " in output.read_text(), PATIENCE, "it says so"
    )
    text = output.read_text()
    assert "run 1" in text
    assert "run 0" not in text, "slurmstepd has truncated the file before"
    assert "slurm-elastic: this job was requeued at " in text
    assert ": nothing had been saved" in text
    assert "ckpt-not-told" not in kinds(site, f"job:{job}")

    letter = mailer.with_name("mail.mail")
    site.wait_for(
        lambda: letter.exists() and "explain" in letter.read_text(), PATIENCE, "its user gets mail"
    )
    _, subject, address, *lines = letter.read_text().splitlines()
    assert subject.endswith(f"job {job} lost its work and started over")
    assert address == "nobody"
    assert any("from its start" in line for line in lines)
    site.run(["scancel", str(job)])
