"""A simulation's result by month, by account and by wait."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given

from slurm_elastic.policies.growth.release import AtOnce
from slurm_elastic.simulate import series
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.studies.breakdown import by_account, by_month, spent, waits

from .histories import histories

DAY = 86400
NEW_YEAR = round(datetime(2024, 1, 30, tzinfo=UTC).timestamp())


def run(jobs: Jobs, machines: int = 2) -> RunResult:
    pool = PoolModel(
        name="p", machines=machines, price=1.0, release=AtOnce(), boot=BootTimes(((1, 100),))
    )
    return simulate(jobs, Scenario(pools=(pool,)))


def job(number: int, day: float, hours: int, account: int = -1) -> Job:
    seconds = hours * 3600
    return Job(number, round(day * DAY), seconds, seconds, 1, account=account)


OUTCOME = run(
    Jobs([job(1, 0, 10, 7), job(2, 0, 2, 7), job(3, 0, 4, 8), job(4, 3, 1, 8), job(5, 40, 1)])
)


def test_months_are_the_calendars_where_the_history_says_when_it_began() -> None:
    found = by_month(OUTCOME, NEW_YEAR)
    assert [(one.name, one.jobs, one.core_hours) for one in found] == [
        ("2024-01", 3, 16.0), ("2024-02", 1, 1.0), ("2024-03", 1, 1.0),
    ]  # fmt: skip
    assert [one.mean_wait for one in found] == [(100 + 100 + 7300) / 3, 100.0, 100.0]
    assert sum(one.cost or 0.0 for one in found) == pytest.approx(OUTCOME.figures.cost)
    assert found[1].cost == pytest.approx(3700 / 3600)


def test_months_have_thirty_days_where_it_does_not() -> None:
    assert [(one.name, one.jobs) for one in by_month(OUTCOME, 0)] == [
        ("days 1 to 30", 4), ("days 31 to 60", 1),
    ]  # fmt: skip
    assert by_month(run(Jobs()), 0) == []


def test_accounts_come_by_what_they_used() -> None:
    found = by_account(OUTCOME, {7: "physics"})
    assert [(one.name, one.jobs, one.core_hours) for one in found] == [
        ("physics", 2, 12.0), ("8", 2, 5.0), ("unknown", 1, 1.0),
    ]  # fmt: skip
    assert {one.cost for one in found} == {None}


def test_the_share_of_jobs_that_wait_so_long_at_most() -> None:
    assert waits(OUTCOME) == [(100, 0.8), (7300, 1.0)]


def test_a_lease_over_two_parts_is_paid_in_both() -> None:
    steps = [(100, 0.0), (300, 10.0), (300 + 100, 10.0)]
    assert spent(steps, [50, 200, 350, None]) == [0.0, 5.0, 5.0, 0.0]
    assert spent([], [50, None]) == [0.0, 0.0]


@given(histories)
def test_nothing_is_lost_among_the_parts(jobs: Jobs) -> None:
    outcome = run(jobs, machines=8)
    for parts in (by_month(outcome, 0), by_month(outcome, NEW_YEAR), by_account(outcome, {})):
        assert sum(part.jobs for part in parts) == len(jobs)
    paid = sum(part.cost or 0.0 for part in by_month(outcome, 0))
    assert paid == pytest.approx(series.cost(outcome)[-1][1] if series.cost(outcome) else 0.0)
    assert [share for _, share in waits(outcome)][-1:] in ([1.0], [])
