"""How sure a difference between two policies is."""

from __future__ import annotations

import random

import pytest

from slurm_elastic.policies.growth.release import Idle
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.studies.certainty import (
    MIN_COMPARED_WEEKS,
    WIDTHS,
    Choice,
    Interval,
    Week,
    compared,
    of_weeks,
    weeks,
)

DAY = 86400


def run(jobs: Jobs, machines: int, idle: int) -> RunResult:
    pool = PoolModel(
        name="p", machines=machines, price=1.0, release=Idle(idle), boot=BootTimes(((1, 60),))
    )
    return simulate(jobs, Scenario(pools=(pool,)))


def history(days: int, *, busy: int = 0) -> Jobs:
    """A job a day of an hour, and on the day ``busy`` thirty more."""
    rows = [Job(n, n * DAY, 3600, 3600, 1) for n in range(days)]
    return Jobs(
        [*rows, *(Job(days + n, busy * DAY, 3600, 3600, 1) for n in range(30 * (busy > 0)))]
    )


def test_a_difference_of_every_week_is_sure() -> None:
    jobs = history(70)
    found = compared(run(jobs, 4, 60), run(jobs, 4, 3600))
    assert found is not None
    assert found.weeks == 9
    assert found.saving.value == pytest.approx(1 - 3720 / 7260, abs=0.01)
    assert found.saving.low == pytest.approx(found.saving.high, abs=0.01)
    assert found.saving.low > 0
    assert found.wait == Interval(value=0.0, low=0.0, high=0.0)
    assert found.wait.low <= 0 <= found.wait.high


def test_one_of_a_single_week_is_not() -> None:
    """Thirty jobs of one day wait for two machines, or hardly for twenty."""
    jobs = history(70, busy=20)
    found = compared(run(jobs, 2, 60), run(jobs, 20, 60))
    assert found is not None
    assert found.wait.value > 3600
    assert found.wait.low < 0 < found.wait.high
    assert found.wait.low <= 0 <= found.wait.high


def test_a_short_history_says_nothing() -> None:
    jobs = history(7 * MIN_COMPARED_WEEKS)
    assert compared(run(jobs, 2, 60), run(jobs, 4, 60)) is None
    jobs = history(7 * MIN_COMPARED_WEEKS + 1)
    assert compared(run(jobs, 2, 60), run(jobs, 4, 60)) is not None


def test_the_interval_is_that_of_single_weeks_by_their_weight() -> None:
    """By hand: the second half of the weeks has a third of the cost, and saves nothing of it."""
    half = Week(jobs=10, waited=100, cost=50.0), Week(jobs=10, waited=0, cost=100.0)
    none = Week(jobs=10, waited=40, cost=50.0), Week(jobs=10, waited=40, cost=50.0)
    found = of_weeks([half, none] * (MIN_COMPARED_WEEKS // 2))
    assert found is not None
    assert found.saving.value == pytest.approx(1 / 3)
    # 50 - 100 / 3 and 0 - 50 / 3 dollars of 75 in the mean, both 2 / 9 off
    deviation = 2 / 9 * (MIN_COMPARED_WEEKS / (MIN_COMPARED_WEEKS - 1)) ** 0.5
    assert found.saving.high - found.saving.value == pytest.approx(deviation)
    assert found.saving.value - found.saving.low == pytest.approx(deviation)
    assert found.wait.value == pytest.approx(5)
    assert found.wait.high - 5 == pytest.approx(
        2 * 5 * (MIN_COMPARED_WEEKS / (MIN_COMPARED_WEEKS - 1)) ** 0.5
    )


@pytest.mark.parametrize("choice", [Choice.WITHIN_LIMIT, Choice.COMPROMISE])
def test_a_policy_chosen_on_the_same_history_has_wider_intervals(choice: Choice) -> None:
    good = Week(jobs=10, waited=100, cost=50.0), Week(jobs=10, waited=0, cost=100.0)
    bad = Week(jobs=10, waited=40, cost=50.0), Week(jobs=10, waited=40, cost=50.0)
    pairs = [good, bad] * (MIN_COMPARED_WEEKS // 2)
    named, chosen = of_weeks(pairs), of_weeks(pairs, choice)
    assert named is not None
    assert chosen is not None
    for name, width in (("saving", WIDTHS[choice].saving), ("wait", WIDTHS[choice].wait)):
        narrow, wide = getattr(named, name), getattr(chosen, name)
        assert wide.value == narrow.value
        assert width > 1
        assert wide.high - wide.value == pytest.approx(width * (narrow.high - narrow.value))
        assert wide.value - wide.low == pytest.approx(width * (narrow.value - narrow.low))


def test_of_weeks_to_come_the_interval_has_most() -> None:
    """Weeks of one kind, drawn again and again: more than the nine in ten that are asked for."""
    draw = random.Random(1)
    within, weeks_of = 0, 12
    for _ in range(300):
        pairs = [
            (
                Week(jobs=100, waited=draw.randrange(200), cost=draw.uniform(50, 100)),
                Week(jobs=100, waited=draw.randrange(100), cost=100.0),
            )
            for _ in range(2 * weeks_of)
        ]
        told, came = of_weeks(pairs[:weeks_of]), of_weeks(pairs[weeks_of:])
        assert told is not None
        assert came is not None
        within += (
            told.saving.low <= came.saving.value <= told.saving.high
            and told.wait.low <= came.wait.value <= told.wait.high
        )
    assert within > 270


def test_weeks_have_all_jobs_and_costs_but_those_of_the_last() -> None:
    jobs = history(30)
    found = weeks(run(jobs, 4, 60))
    assert [week.jobs for week in found] == [7, 7, 7, 7]
    assert [week.waited for week in found] == [420] * 4
    assert [week.cost for week in found] == pytest.approx([7 * 3720 / 3600] * 4)
    assert weeks(run(Jobs(), 1, 60)) == []
