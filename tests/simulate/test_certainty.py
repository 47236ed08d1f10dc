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
    SAVING_FLOOR,
    WAIT_FLOOR,
    WIDTHS,
    Choice,
    Comparison,
    Unlike,
    Week,
    compared,
    extra_wait,
    of_weeks,
    saving_of,
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
    assert isinstance(found, Comparison)
    assert found.weeks == 9
    assert found.saving.value == pytest.approx(1 - 3720 / 7260, abs=0.01)
    assert found.saving.low == pytest.approx(found.saving.high, abs=0.01)
    assert found.saving.low > 0
    assert found.wait.value == 0
    assert found.wait.high < 0.5, "the jobs wait 60 s for a boot, and WAIT_FLOOR is a share of that"


def test_one_of_a_single_week_is_not() -> None:
    """Thirty jobs of one day wait for two machines, or hardly for twenty."""
    jobs = history(70, busy=20)
    found = compared(run(jobs, 2, 60), run(jobs, 20, 60))
    assert isinstance(found, Comparison)
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
    assert isinstance(found, Comparison)
    assert found.saving.value == pytest.approx(1 / 3)
    # 50 - 100 / 3 and 0 - 50 / 3 dollars of 75 in the mean, both 2 / 9 off
    correction = (MIN_COMPARED_WEEKS / (MIN_COMPARED_WEEKS - 1)) ** 0.5
    half_width = WIDTHS[Choice.NAMED].saving * (2 / 9 * correction + SAVING_FLOOR)
    assert found.saving.high - found.saving.value == pytest.approx(half_width)
    assert found.saving.value - found.saving.low == pytest.approx(half_width)
    assert found.wait.value == pytest.approx(5)
    # 5 s off each week; the jobs of the other policy wait 2 s on average
    half_width = WIDTHS[Choice.NAMED].wait * (5 * correction + 2 * WAIT_FLOOR)
    assert found.wait.high - 5 == pytest.approx(half_width)


def test_a_policy_chosen_on_the_same_history_has_a_width_of_its_own() -> None:
    good = Week(jobs=10, waited=100, cost=50.0), Week(jobs=10, waited=0, cost=100.0)
    bad = Week(jobs=10, waited=40, cost=50.0), Week(jobs=10, waited=40, cost=50.0)
    pairs = [good, bad] * (MIN_COMPARED_WEEKS // 2)
    named, chosen = of_weeks(pairs), of_weeks(pairs, Choice.CHOSEN)
    assert isinstance(named, Comparison)
    assert isinstance(chosen, Comparison)
    for name in ("saving", "wait"):
        known, picked = getattr(named, name), getattr(chosen, name)
        times = getattr(WIDTHS[Choice.CHOSEN], name) / getattr(WIDTHS[Choice.NAMED], name)
        assert picked.value == known.value
        assert picked.high - picked.value == pytest.approx(times * (known.high - known.value))


def test_the_saving_of_a_chosen_policy_is_less_sure_than_that_of_a_named_one() -> None:
    assert WIDTHS[Choice.CHOSEN].saving > WIDTHS[Choice.NAMED].saving


def test_weeks_that_hardly_differ_are_no_promise() -> None:
    """The same saving and wait each week: the range has the width of the floors."""
    same = Week(jobs=10, waited=100, cost=50.0), Week(jobs=10, waited=50_000, cost=100.0)
    found = of_weeks([same] * MIN_COMPARED_WEEKS)
    assert isinstance(found, Comparison)
    assert found.saving.high - 0.5 == pytest.approx(WIDTHS[Choice.NAMED].saving * SAVING_FLOOR)
    assert found.wait.high - found.wait.value == pytest.approx(
        WIDTHS[Choice.NAMED].wait * WAIT_FLOOR * 5_000
    )


def test_a_history_whose_halves_are_unlike_each_other_has_no_range() -> None:
    """The policy saves half of the cost, and from the middle of the history on nothing."""
    saved = Week(jobs=10, waited=0, cost=50.0), Week(jobs=10, waited=0, cost=100.0)
    equal = Week(jobs=10, waited=0, cost=100.0), Week(jobs=10, waited=0, cost=100.0)
    found = of_weeks([saved] * 5 + [equal] * 5)
    assert found == Unlike(savings=(0.5, 0.0), waits=(0.0, 0.0), weeks=10)
    assert isinstance(of_weeks([saved, equal] * 5), Comparison)


def test_of_weeks_to_come_the_interval_has_most() -> None:
    """Weeks of one kind, drawn again and again: more than the nine in ten that are asked for."""
    draw = random.Random(1)
    within, printed, weeks_of = 0, 0, 12
    for _ in range(300):
        pairs = [
            (
                Week(jobs=100, waited=draw.randrange(200), cost=draw.uniform(50, 100)),
                Week(jobs=100, waited=draw.randrange(100), cost=100.0),
            )
            for _ in range(2 * weeks_of)
        ]
        told, later = of_weeks(pairs[:weeks_of]), pairs[weeks_of:]
        if not isinstance(told, Comparison):
            continue
        printed += 1
        saving, wait = saving_of(later), extra_wait(later)
        assert saving is not None
        assert wait is not None
        within += (
            told.saving.low <= saving <= told.saving.high
            and told.wait.low <= wait <= told.wait.high
        )
    assert printed > 285, "few histories of one kind look unlike themselves"
    assert within > 0.9 * printed


def test_weeks_have_all_jobs_and_costs_but_those_of_the_last() -> None:
    jobs = history(30)
    found = weeks(run(jobs, 4, 60))
    assert [week.jobs for week in found] == [7, 7, 7, 7]
    assert [week.waited for week in found] == [420] * 4
    assert [week.cost for week in found] == pytest.approx([7 * 3720 / 3600] * 4)
    assert weeks(run(Jobs(), 1, 60)) == []
