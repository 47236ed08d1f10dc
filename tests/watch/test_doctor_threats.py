"""``doctor`` on machines that their clouds take away."""

from __future__ import annotations

from pathlib import Path

import pytest
from ckpt_cases import migration_of
from ledger_cases import T0
from msgspec.structs import replace
from status_cases import config

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import MigrationStep, RecordedNotice
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.watch.doctor.threats import examine

KIND = NoticeKind.INTERRUPTION


@pytest.mark.parametrize(
    ("step", "level", "found"),
    [
        (
            MigrationStep.SAVED,
            FindingLevel.NOTE,
            "is taken away in 1m (interruption): job 7 is saved",
        ),
        (
            MigrationStep.WAITING,
            FindingLevel.WRONG,
            "is taken away in 1m (interruption): job 7 CANNOT BE SAVED: refused",
        ),
    ],
)
def test_a_machine_that_is_taken_away_is_a_finding(
    tmp_path: Path, step: MigrationStep, level: FindingLevel, found: str
) -> None:
    move = replace(migration_of(7, 1000), step=step, at=None, note=Quoted(text="refused"))
    notice = Notice(instance="", node="pub1", kind=KIND, seen=T0, deadline=T0 + 60)
    state = CheckpointState(tmp_path / FILE)
    state.add_notices(RecordedNotice(key="n", notice=notice, source="EventBridge"), now=T0)
    state.put(move)
    state.close()
    slurm = FakeSlurm()
    slurm.broken = SlurmError(("squeue",), 1, "away")
    (one,) = examine(config(tmp_path), slurm, T0)
    assert (one.subject, one.level, one.observed) == ("node pub1", level, found)
    assert one.advice


def test_where_nothing_was_ever_saved_there_is_none(tmp_path: Path) -> None:
    assert list(examine(config(tmp_path), FakeSlurm(), T0)) == []
