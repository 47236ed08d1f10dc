"""The books of a simulation are checked, whatever the number of pools."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate.histories import histories

from slurm_elastic.policies.checkpoint.checkpoint import Hour
from slurm_elastic.policies.growth.release import Idle
from slurm_elastic.simulate.bills.billing import Curve
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.engine import Engine
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.outcome import conservation
from slurm_elastic.simulate.scenario import Clock, PoolModel, Scenario

BOOT = BootTimes(((1, 10),))


def scenario(*falls: int) -> Scenario:
    """A rack of large machines, and a spot market of small ones that is shut at some times."""
    steps = {0: 9} | dict.fromkeys(falls, 0) | {at + 50: 9 for at in falls}
    spot = SpotMarket(Curve.flat(0.1), available=sorted(steps.items()))
    rack = PoolModel(name="rack", machines=2, standing=2, procs=3, public=False)
    cloud = PoolModel(
        name="cloud",
        machines=9,
        price=1.0,
        boot=BOOT,
        release=Idle(60),
        spot=spot,
        clock=Clock.READY,
    )
    saves = Checkpoints(policy=Hour(margin=3595), dump=2, restart=3, look=1)
    return Scenario(pools=(rack, cloud), checkpoints=saves)


def problems(jobs: Jobs, site: Scenario, **lost: int) -> list[str]:
    """The sums that do not add up where some seconds of the books are ``lost``."""
    engine = Engine(jobs, site)
    engine.run()
    for name, seconds in lost.items():
        setattr(engine.runs, name, getattr(engine.runs, name) - seconds)
    return conservation(jobs, engine.pools, engine.runs, 0)


def test_lost_work_is_found_in_a_site_of_two_pools() -> None:
    jobs = Jobs([Job(1, 0, 100, 100, 6), Job(2, 0, 100, 100, 4)])
    assert problems(jobs, scenario()) == []
    found = problems(jobs, scenario(), useful=5, overhead=-5)
    assert found == ["jobs brought 600 machine-seconds of work, 595 were done"]


def test_work_saved_in_one_pool_and_ended_in_another_counts_as_done_there() -> None:
    """The second job starts in the cloud, is cut off at 60 and ends on the rack."""
    jobs = Jobs([Job(1, 0, 55, 55, 6), Job(2, 0, 300, 300, 4)])
    engine = Engine(jobs, scenario(60))
    engine.run()
    assert engine.runs.where[1] == 0
    ((job, pool, seconds),) = engine.runs.kept
    assert (job, pool) == (1, 1)
    assert engine.runs.useful == 55 * 2 + seconds * 4 + (300 - seconds) * 2


@settings(max_examples=60, deadline=None)
@given(histories, st.lists(st.integers(1, 900), max_size=4, unique_by=lambda at: at // 60))
def test_work_adds_up_over_pools_of_different_machines(history: Jobs, falls: list[int]) -> None:
    assert problems(history, scenario(*falls)) == []


@pytest.mark.parametrize("name", ["useful", "lost", "overhead", "held"])
def test_no_second_can_go_missing(name: str) -> None:
    jobs = Jobs([Job(1, 0, 55, 55, 6), Job(2, 0, 300, 300, 4)])
    assert problems(jobs, scenario(60), **{name: 1})
