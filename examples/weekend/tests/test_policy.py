from __future__ import annotations

import pytest
from slurm_elastic_weekend import DAY, Weekend

from slurm_elastic.config.growth_kinds import POINT, checked_growth
from slurm_elastic.policies.growth.capacity import Demand, Waiting
from slurm_elastic.testing.growth import GrowthContract

FRIDAY = 20_049 * DAY  # 22 November 2024
QUEUE = (Waiting(nodes=4, limit=3600, submit=FRIDAY), Waiting(nodes=1, limit=60, submit=FRIDAY))


@pytest.fixture
def policy():
    return Weekend()


class TestWeekend(GrowthContract):
    pass


@pytest.mark.parametrize(
    ("days", "machines"), [(0, 2), (1, 5), (2, 5), (3, 2)], ids=("Fri", "Sat", "Sun", "Mon")
)
def test_weekdays_have_few_machines(policy, days, machines):
    growth = policy.grow(Demand(now=FRIDAY + days * DAY + 1, queue=QUEUE))
    assert growth.machines == machines


def test_a_configuration_finds_it_by_its_entry_point():
    assert "weekend" in POINT.table().names()
    assert checked_growth("weekend(weekday=3)") == Weekend(weekday=3)
