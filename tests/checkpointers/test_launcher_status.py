"""What the head learns about a run from the status that its launcher writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
