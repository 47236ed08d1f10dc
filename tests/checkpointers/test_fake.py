"""The method in memory, by the contract."""

from __future__ import annotations

import time

import pytest

from slurm_elastic.checkpointers.fake import FakeCheckpointer
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.protocols import Checkpointer
from slurm_elastic.testing.saving import Deadlines, Holds, SaveContract, Spoils

pytestmark = pytest.mark.usefixtures("guarded")


class FakeBed:
    def __init__(self) -> None:
        self.checkpointer = FakeCheckpointer()

    def run(self, job: int = 7, attempt: int = 0) -> JobRun:
        return JobRun(
            job=job, label=str(job), attempt=attempt, user="ann", uid=1001, gid=100,
            nodes=("n1",), partition="p", started=0.0,
        )  # fmt: skip

    def reopen(self) -> Checkpointer:
        return self.checkpointer

    def spoil(self, image: Image) -> None:
        self.checkpointer.spoilt.add((image.job, image.number))

    def stick(self, run: JobRun) -> None:
        self.checkpointer.seconds = 1000.0

    def works(self, run: JobRun) -> bool:
        return (run.job, run.attempt) not in self.checkpointer.held


@pytest.fixture
def bed() -> FakeBed:
    return FakeBed()


class TestFake(SaveContract, Spoils, Deadlines, Holds):
    pass


def test_it_reports_only_about_the_run_that_it_saved_last(bed: FakeBed) -> None:
    saver, run, next_run = bed.checkpointer, bed.run(), bed.run(attempt=1)
    assert saver.is_at_work(run) is False
    saver.checkpoint(run, deadline=time.time() + 60, stop=False)
    assert saver.is_at_work(run) is True
    assert saver.is_at_work(next_run) is False
    saver.checkpoint(next_run, deadline=time.time() + 60, stop=False)
    assert saver.is_at_work(run) is False, "that run has ended"


def test_a_stopped_run_continues_by_itself_after_its_hold(bed: FakeBed) -> None:
    now = 1000.0
    saver, run = FakeCheckpointer(lambda: now, hold_s=600.0), bed.run()
    saver.checkpoint(run, deadline=now + 60, stop=True)
    now += 599
    assert saver.is_at_work(run) is False
    now += 1
    assert saver.is_at_work(run) is True
