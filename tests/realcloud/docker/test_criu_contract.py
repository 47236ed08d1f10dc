"""Method ``criu`` by the contract of all methods, on real jobs of Slurm 24.11."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.checkpointers.node_helper_client import LaunchedCheckpointer
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.testing.saving import (
    SAVE_TIMEOUT_S,
    SHORT_S,
    Deadlines,
    Holds,
    SaveContract,
    Spoils,
    save,
)

from .criu_world import CriuWorld, needed, started
from .engine import Engine
from .world import Host

pytestmark = pytest.mark.e2e

CRIU, STUCK = "/usr/sbin/criu", "/run/stuck"
SLOW = f"""#!/bin/bash -p
case "$1" in dump) while [ -e {STUCK} ]; do sleep 0.1; done;; esac
exec {CRIU}.real "$@"
"""
"""A CRIU whose dumps get no further while a file is there, as on a file system that hangs. It
is root with the user as the real one (-p: and stays that)."""


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[CriuWorld]:
    with CriuWorld(docker_engine, trixie, nodes=2) as running:
        needed(running)
        for host in running.nodes().values():
            host.run(["mv", CRIU, f"{CRIU}.real"])
            host.put(CRIU, SLOW, mode=0o755)
        yield running


class CriuBed:
    """Jobs of Slurm, by the numbers that the contract gives them."""

    def __init__(self, world: CriuWorld) -> None:
        self.world = world
        self.jobs: dict[int, int] = {}
        self.checkpointer = self.reopen()

    def reopen(self) -> LaunchedCheckpointer:
        return LaunchedCheckpointer("criu", self.world.shared / "ckpt/containers")

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
        until = time.monotonic() + (2.0 if held else patience(SAVE_TIMEOUT_S))
        while time.monotonic() < until:
            if len(self.world.steps(run.job)) > before:
                return True
            time.sleep(0.1)
        return False

    def spoil(self, image: Image) -> None:
        path = next(Path(image.path).glob("pages-*.img"))
        os.truncate(path, path.stat().st_size - 1)

    def stick(self, run: JobRun) -> None:
        self._host(run).run(["touch", STUCK])

    def wait_stuck(self, run: JobRun) -> None:
        """Until CRIU is at it."""
        dumps = ["pgrep", "-f", "[c]riu dump"]
        host = self._host(run)
        self.world.wait_for(lambda: not host.run(dumps, check=False).returncode, "criu dumps")

    def unstick(self, run: JobRun) -> None:
        self._host(run).run(["rm", STUCK])

    def _host(self, run: JobRun) -> Host:
        return self.world.nodes()[run.nodes[0]]

    def close(self) -> None:
        for host in self.world.nodes().values():
            host.run(["rm", "-f", STUCK])
        for job in self.jobs.values():
            self.world.slurm("scancel", str(job))
            self.world.wait_job(job, "CANCELLED")
        self.world.resume("n1", "n2")


@pytest.fixture
def bed(world: CriuWorld) -> Iterator[CriuBed]:
    made = CriuBed(world)
    yield made
    made.close()


class TestCriu(SaveContract, Spoils, Deadlines, Holds):
    pass


def test_a_save_that_comes_late_holds_nobody_and_is_good(bed: CriuBed) -> None:
    """Nobody kills CRIU once it has begun: its image counts, but the job was not stopped for it."""
    run = bed.run()
    bed.stick(run)
    with pytest.raises(CheckpointError, match="no answer"):
        save(bed, run, stop=True, within=SHORT_S)
    bed.wait_stuck(run)
    time.sleep(SHORT_S)  # too late even if its node was slow to begin
    bed.unstick(run)
    bed.world.wait_for(lambda: bed.checkpointer.images(run), "the late image is there")
    assert bed.works(run)
    bed.checkpointer.verify(bed.checkpointer.images(run)[0])
    assert save(bed, run).number == 2
