"""Method ``criu`` by the contract of all methods, on real jobs of Slurm 24.11."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.checkpointers.criu import CriuCheckpointer
from slurm_elastic.model import Image, JobRun
from tests.checkpointers.contract import PATIENCE, Holds, Saves, Spoils

from .criu_world import CriuWorld, needed, started
from .engine import Engine

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[CriuWorld]:
    with CriuWorld(docker_engine, trixie, nodes=2) as running:
        needed(running)
        yield running


class CriuBed:
    """Jobs of Slurm, by the numbers that the contract gives them."""

    def __init__(self, world: CriuWorld) -> None:
        self.world = world
        self.jobs: dict[int, int] = {}
        self.checkpointer = self.reopen()

    def reopen(self) -> CriuCheckpointer:
        return CriuCheckpointer(self.world.shared / "ckpt", "containers")

    def run(self, job: int = 7, attempt: int = 0) -> JobRun:
        if job not in self.jobs:
            self.jobs[job] = started(self.world)
        number = self.jobs[job]
        if int(self.world.job(number)["Restarts"]) < attempt:
            self.world.move(number)
            self.world.standing(number)
        return JobRun(
            job=number, label=str(number), attempt=attempt, user="alice", uid=2000, gid=2000,
            nodes=(self.world.job(number)["NodeList"],), partition="static", started=0.0,
        )  # fmt: skip

    def works(self, run: JobRun) -> bool:
        before = len(self.world.steps(run.job))
        held = self.world.state_of(run.job) == "held"
        until = time.monotonic() + (2.0 if held else PATIENCE)
        while time.monotonic() < until:
            if len(self.world.steps(run.job)) > before:
                return True
            time.sleep(0.1)
        return False

    def spoil(self, image: Image) -> None:
        path = next(Path(image.path).glob("pages-*.img"))
        os.truncate(path, path.stat().st_size - 1)

    def close(self) -> None:
        for job in self.jobs.values():
            self.world.slurm("scancel", str(job))
            self.world.wait_job(job, "CANCELLED")
        self.world.resume("n1", "n2")


@pytest.fixture
def bed(world: CriuWorld) -> Iterator[CriuBed]:
    made = CriuBed(world)
    yield made
    made.close()


class TestCriu(Saves, Spoils, Holds):
    pass
