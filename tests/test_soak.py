"""Tens of thousands of jobs pass through both services, and none of them stays in memory."""

from __future__ import annotations

import gc
import logging

import pytest

from benchmarks.soak_service import keep_history, memory_kb
from tests.ckptman.world import CkptWorld
from tests.controller.world import PUB

FIRST, JOBS = 1000, 50_000
MOST_KB_A_JOB = 0.2
BLOCK_KB = 80 / 1024
"""Of one of Python's small objects, in the mean."""
HISTORY_S = 600.0


class Soak:
    """Jobs of a few seconds, two at a time, on machines that stay; a third one comes and goes."""

    def __init__(self) -> None:
        self.world = CkptWorld(policy="daly", probe_after=1e9)
        self.jobs = 0

    def run(self, until: int) -> float:
        """Have jobs come and go; the memory in use afterwards (KiB)."""
        while self.jobs < until:
            for _ in range(3 if self.jobs % 150 < 2 else 2):
                self.jobs += 1
                self.world.slurm.submit(self.jobs, PUB, comment="ckpt=no" if self.jobs % 9 else "")
            self.world.advance(5, step=5)
            for job in self.world.slurm.queue().values():
                if "RUNNING" in job.states:
                    self.world.slurm.finish(job.id)
            self._forget()
        gc.collect()
        memory = memory_kb()
        return memory["blocks"] * BLOCK_KB + memory.get("used", 0.0)

    def _forget(self) -> None:
        """What the stand-ins keep themselves."""
        self.world.slurm._wishes.clear()
        for cloud in self.world.clouds.values():
            cloud.calls.clear()


def test_the_soak_names_what_the_services_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_history(HISTORY_S, monkeypatch.setattr)  # it raises if a name is not there


@pytest.mark.release
def test_no_job_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.disable(logging.CRITICAL)
    keep_history(HISTORY_S, monkeypatch.setattr)
    soak = Soak()
    try:
        before = soak.run(FIRST)
        grown = (soak.run(JOBS) - before) / (JOBS - FIRST)
        print(f"{JOBS} jobs: {grown:.3f} KiB a job after the first {FIRST}")
        assert grown <= MOST_KB_A_JOB
    finally:
        soak.world.close()
        logging.disable(logging.NOTSET)
