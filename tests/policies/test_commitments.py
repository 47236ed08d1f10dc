"""The dollars that running jobs may still cost."""

from __future__ import annotations

import math

import pytest

from slurm_elastic.model.causes.stops import BudgetSpent
from slurm_elastic.policies.money.bounds import Bounds, Spent
from slurm_elastic.policies.money.commitments import BusyMachine, committed, spent_by_limits

HOUR = 3600.0
NOW, END = 100 * HOUR, 110 * HOUR


@pytest.mark.parametrize(
    ("machine", "dollars"),
    [
        (BusyMachine(2.0, NOW - HOUR, NOW + 3 * HOUR), 6.0),
        (BusyMachine(2.0, NOW - HOUR, NOW - 60.0), 0.0),
        (BusyMachine(2.0, NOW - HOUR, NOW + 30 * HOUR), 20.0),
        (BusyMachine(2.0, NOW - HOUR, math.inf), 20.0),
        # Of the hour that is paid already nothing more is spent, and a begun hour is spent whole.
        (BusyMachine(2.0, NOW - HOUR / 2, NOW + HOUR / 4, unit=3600), 0.0),
        (BusyMachine(2.0, NOW - HOUR / 2, NOW + HOUR, unit=3600), 2.0),
        (BusyMachine(0.0, NOW - HOUR, math.inf), 0.0),
    ],
)
def test_a_busy_machine_commits_its_price_until_its_jobs_must_end(
    machine: BusyMachine, dollars: float
) -> None:
    assert committed([machine], NOW, END) == pytest.approx(dollars)


def test_the_day_is_spent_by_the_limits_before_the_month() -> None:
    machines = [BusyMachine(1.0, NOW - HOUR, NOW + 4 * HOUR)] * 2
    bounds = Bounds(per_day=10.0, per_month=100.0)
    ends = (END, END + 100 * HOUR)
    assert spent_by_limits(bounds, Spent(day=1.9, month=50.0), machines, NOW, ends) is None
    cause = BudgetSpent(period="day", dollars=10.0, is_committed=True)
    spent = Spent(day=2.0, month=50.0)
    assert spent_by_limits(bounds, spent, machines, NOW, ends) == (cause, ends[0])
    month = BudgetSpent(period="month", dollars=100.0, is_committed=True)
    found = spent_by_limits(bounds, Spent(day=1.0, month=92.0), machines, NOW, ends)
    assert found == (month, ends[1])
