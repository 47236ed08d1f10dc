"""What the head learns about a run from the status that its launcher writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.checkpointers.node_helper_client import LaunchedCheckpointer
from slurm_elastic.model.checkpoint import JobRun

RUN = JobRun(
    job=7, label="7", attempt=1, user="ann", uid=2000, gid=2000, nodes=("n1",), partition="p",
    started=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("state", "attempt", "uid", "is_at_work"),
    [
        ("running", 1, 2000, True),
        ("held", 1, 2000, False),
        ("ended", 1, 2000, False),
        ("running", 0, 2000, False),
        ("running", 1, 2001, False),
    ],
)
def test_only_the_launcher_of_this_run_reports_that_it_works(
    tmp_path: Path, state: str, attempt: int, uid: int, is_at_work: bool
) -> None:
    saver = LaunchedCheckpointer("criu", tmp_path)
    assert saver.is_at_work(RUN) is False
    status = {"state": state, "job": 7, "attempt": attempt, "uid": uid, "node": "n1"}
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status.json").write_text(json.dumps({**status, "method": "criu"}))
    assert saver.is_at_work(RUN) is is_at_work


def test_the_status_of_an_earlier_job_with_this_number_is_none(tmp_path: Path) -> None:
    """Same user, same number, no restart of either; Slurm's submit times differ."""
    saver = LaunchedCheckpointer("criu", tmp_path)
    status = {
        "state": "running", "job": 7, "attempt": 1, "uid": 2000, "node": "n1", "method": "criu",
        "submitted": 500.0,
    }  # fmt: skip
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status.json").write_text(json.dumps(status))
    assert saver.is_at_work(replace(RUN, submitted=500.0))
    later_job = replace(RUN, submitted=900.0)
    assert not saver.is_at_work(later_job)
    assert saver.origin(later_job) is None
    with pytest.raises(CheckpointError, match="serves another run"):
        saver.release(later_job)
