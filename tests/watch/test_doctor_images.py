"""``doctor`` on images of jobs that slurmctld may have lost with its state."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledger_cases import T0
from status_cases import config

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.watch.doctor.images import lost_jobs


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site with a save of job 20."""
    state = CheckpointState(tmp_path / FILE)
    state.add_image(
        Image(job=20, label="20", attempt=0, number=1, method="criu", node="pub1", taken=T0, seconds=1.0,
              path="/shared/20/images/1")
    )  # fmt: skip
    state.close()
    return tmp_path


@pytest.mark.parametrize(
    ("listed_job", "is_reported"), [(None, True), (1, True), (20, False), (21, False)]
)
def test_saved_jobs_beyond_all_numbers_of_slurm_are_reported(
    site: Path, listed_job: int | None, is_reported: bool
) -> None:
    slurm = FakeSlurm()
    if listed_job is not None:
        slurm.set_job(listed_job, "PENDING")
    findings = list(lost_jobs(config(site), slurm, T0))
    assert bool(findings) is is_reported
    for finding in findings:
        assert "the first is 20," in finding.observed
        assert "StateSaveLocation" in finding.advice


def test_without_an_answer_of_slurm_no_job_counts_as_lost(site: Path) -> None:
    slurm = FakeSlurm()
    slurm.broken = SlurmError(("squeue",), 1, "away")
    assert list(lost_jobs(config(site), slurm, T0)) == []


def test_where_nothing_was_ever_saved_no_job_is_lost(tmp_path: Path) -> None:
    assert list(lost_jobs(config(tmp_path), FakeSlurm(), T0)) == []
