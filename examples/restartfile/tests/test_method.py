from __future__ import annotations

import threading
from pathlib import Path

import pytest
from slurm_elastic_restartfile import FILE, METHOD, RestartFile

from slurm_elastic.config.method_kinds import table
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.testing.saving import Deadlines, Holds, SaveContract, Spoils


class Bed:
    """Programs that write their file ten times a second, and a Slurm that stops them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs: dict[int, JobRun] = {}
        self.held: set[int] = set()
        self.stuck: set[int] = set()
        self.writing = threading.Lock()
        self.over = threading.Event()
        self.checkpointer = self.reopen()
        self.programs = threading.Thread(target=self._work)
        self.programs.start()

    def _work(self) -> None:
        while not self.over.wait(0.1):
            for job, run in list(self.runs.items()):
                with self.writing:
                    if job not in self.held | self.stuck:
                        new = Path(run.directory) / "new"
                        new.write_text("state")
                        new.rename(Path(run.directory) / FILE)

    def signal(self, job: int, name: str, *, full: bool) -> None:
        assert full
        with self.writing:
            (self.held.add if name == "STOP" else self.held.discard)(job)

    def run(self, job: int = 7, attempt: int = 0) -> JobRun:
        directory = self.directory / str(job)
        directory.mkdir(exist_ok=True)
        run = JobRun(
            job=job, label=str(job), attempt=attempt, user="ann", uid=1001, gid=100,
            nodes=("n1",), partition="p", started=0.0, directory=str(directory),
        )  # fmt: skip
        self.runs[job] = run
        return run

    def reopen(self) -> RestartFile:
        return RestartFile(self, self.directory / "records")

    def spoil(self, image) -> None:
        self.stick(self.runs[image.job])
        self.over.wait(0.3)
        Path(image.path).write_text("")

    def stick(self, run: JobRun) -> None:
        with self.writing:  # a file that is begun would count as new
            self.stuck.add(run.job)

    def works(self, run: JobRun) -> bool:
        return run.job not in self.held


@pytest.fixture
def bed(tmp_path):
    bed = Bed(tmp_path)
    yield bed
    bed.over.set()
    bed.programs.join()


class TestRestartFile(SaveContract, Spoils, Deadlines, Holds):
    pass


def test_a_configuration_finds_it_by_its_entry_point():
    assert "restartfile" in table().names()
    assert table().kind("restartfile") is METHOD
