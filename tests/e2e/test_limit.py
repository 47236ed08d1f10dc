"""On real Slurm: a job that can be saved goes on after its own time limit, each step of it once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from patience import eventually

from slurm_elastic.policies.checkpoint.threat import ThreatCause
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.state.ckptstate.facts import MigrationStep
from tests.e2e.ckpt import FILE_SIGN, begun_at, counter, each_once, early, kinds, migrations

pytestmark = pytest.mark.e2e
STEPS = 280
"""Each takes a quarter of a second or more, all together between one and two limits of a minute."""
TIMES = 9
"""More than it takes where each run has half of its limit, and steps are slow."""


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(**early("15s"))


def test_a_job_goes_on_after_its_time_limit_with_a_full_one(site: Sandbox) -> None:
    job = counter(
        site, "--time=1", "--open-mode=append", comment=f"{FILE_SIGN},limit={TIMES}", steps=STEPS
    )
    fields = site.wait_job(job, timeout=400)
    assert fields["JobState"] == "COMPLETED"
    assert fields["TimeLimit"] == "00:01:00"
    each_once(site, job, STEPS)
    first, *later = begun_at(site, job)
    assert first == 0
    assert later == sorted(later)
    assert 1 <= int(fields["Restarts"]) <= TIMES
    moves = [move for move in migrations(site) if move.run.job == job]
    assert {move.cause for move in moves} == {ThreatCause.LIMIT}
    assert [move.image is not None for move in moves] == [True] * len(moves)
    assert "ckpt-saved" in kinds(site, f"job:{job}")
    back = [move for move in moves if move.step is MigrationStep.BACK]

    def said() -> str:
        return (site.work / f"slurm-{job}.out").read_text()

    def is_each_told() -> bool:
        # A run that ends within seconds may have no step left to write its line; explain says so.
        missing = kinds(site, f"job:{job}").count("ckpt-not-told")
        return said().count("slurm-elastic: this job was saved at") == len(back) - missing

    eventually(is_each_told)  # they are written beside the moves
    assert f"its time limit of 00:01:00 ends (1 of {TIMES} times)" in said()
    assert "with its full time limit" in said()


@pytest.mark.release
def test_a_job_that_may_not_goes_no_further_than_its_limit(site: Sandbox) -> None:
    job = counter(site, "--time=1", comment=f"{FILE_SIGN},limit=0", steps=STEPS)
    site.wait_job(job, "TIMEOUT", timeout=300)
    assert site.job(job)["Restarts"] == "0"
