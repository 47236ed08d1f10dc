"""Whom a machine is bought for, by what slurmctld waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from slurm_elastic.slurm.client.fake_timed import TimedSlurm
from tests.oracle.jobs import paid_for_nobody


def stage_of_two_nodes() -> Any:
    """Job 1 waits for op1, and job 2 for op2."""
    slurm = TimedSlurm(("op1", "op2"), lambda: 0.0, lambda *_: None)
    slurm.submit(1, ("op1",))
    slurm.submit(2, ("op2",))
    return SimpleNamespace(anew_at=-1.0, requests=[], slurm=slurm)


def test_a_cancelled_jobs_machine_is_not_judged_by_the_other_jobs_of_its_call() -> None:
    stage = stage_of_two_nodes()
    stage.slurm.finish(2)
    assert paid_for_nobody(stage, "op2", [1]) == ""


def test_a_machine_for_a_node_that_none_of_its_jobs_may_use_is_found() -> None:
    stage = stage_of_two_nodes()
    assert "a machine for op2 is bought for jobs [1]" in paid_for_nobody(stage, "op2", [1])


def test_a_machine_for_a_node_that_slurm_does_not_wait_for_is_found() -> None:
    slurm = TimedSlurm(("op1", "op2"), lambda: 0.0, lambda *_: None)
    slurm.submit(1, ("op1",))
    stage: Any = SimpleNamespace(anew_at=-1.0, requests=[], slurm=slurm)
    assert "a machine for op2 is bought for jobs [1]" in paid_for_nobody(stage, "op2", [1])
