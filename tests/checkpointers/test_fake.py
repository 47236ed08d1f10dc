"""The method in memory, by the contract."""

from __future__ import annotations

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
