"""On a real slurmctld: a job that lost one of its nodes starts again on the others, and lives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from patience import patience

from benchmarks.small_slurm import SmallSlurm, wait_until
from slurm_elastic.controller.requeues import ExpectedRequeues
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.state.ledger import Ledger
from tests.e2e.conftest import why_not

pytestmark = pytest.mark.e2e
PATIENCE = 120.0


@pytest.fixture
def cluster() -> Iterator[SmallSlurm]:
    if reason := why_not():
        pytest.skip(reason)
    with SmallSlurm(static=3, cloud=1, prolog=False) as running:
        yield running


def job_of(slurm: SlurmCli, number: int) -> SlurmJob:
    return next(j for j in slurm.jobs() if j.id == number)


def test_a_job_that_lost_one_of_its_nodes_runs_again_on_the_other(
    cluster: SmallSlurm, tmp_path: Path
) -> None:
    """Hurried within the second, slurmd would take it for killed, and it would fail."""
    slurm, restarts = cluster.client(), ExpectedRequeues()
    number = cluster.submit("--partition=static", "--nodes=2", seconds=600)
    wait_until(lambda: cluster.started(number) is not None, PATIENCE)
    before = job_of(slurm, number)
    lost, *kept = before.nodes
    slurm.update_nodes([lost], state="DOWN", reason="a test")
    restarts.expect(before, time.monotonic(), [lost])
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        until = time.monotonic() + patience(PATIENCE)
        while restarts:
            assert time.monotonic() < until, "the job is not pending again"
            restarts.tick(slurm, ledger, time.time(), time.monotonic())
            time.sleep(0.05)
    wait_until(lambda: job_of(slurm, number).states & {"RUNNING", "FAILED"}, PATIENCE)
    after = job_of(slurm, number)
    assert "RUNNING" in after.states, after.states
    assert set(kept) < set(after.nodes)
    assert after.restarts == before.restarts + 1
