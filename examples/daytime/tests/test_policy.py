from __future__ import annotations

import pytest
from slurm_elastic_daytime import DAY, Daytime

from slurm_elastic.config.release_kinds import POINT, checked_release
from slurm_elastic.policies.growth.release import IdleMachine
from slurm_elastic.testing.release import ReleaseContract

MIDNIGHT = 20_049 * DAY


@pytest.fixture
def policy():
    return Daytime()


class TestDaytime(ReleaseContract):
    pass


@pytest.mark.parametrize(
    ("hour", "leaves"), [(7, 7 + 1 / 12), (8, 18), (17, 18), (18, 18 + 1 / 12)]
)
def test_machines_stay_during_the_day(policy, hour, leaves):
    now = MIDNIGHT + hour * 3600
    machine = IdleMachine(started=MIDNIGHT, since=now, now=now, lease=1, public=True)
    assert policy.leaves_at(machine) == MIDNIGHT + leaves * 3600


def test_a_configuration_finds_it_by_its_entry_point():
    assert "daytime" in POINT.table().names()
    assert checked_release("daytime(end=20)") == Daytime(end=20)
