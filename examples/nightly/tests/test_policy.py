from __future__ import annotations

import pytest
from slurm_elastic_nightly import DAY, Nightly

from slurm_elastic.config.checkpoint_kinds import POINT, checked_policy
from slurm_elastic.policies.checkpoint.checkpoint import FirstOf, OnNotice
from slurm_elastic.policies.checkpoint.situation import Situation
from slurm_elastic.testing.save_policy import SavePolicyContract

MIDNIGHT = 20_049.0 * DAY


@pytest.fixture
def policy():
    return Nightly()


class TestNightly(SavePolicyContract):
    pass


@pytest.mark.parametrize(
    ("hours", "saved", "reason"),
    [
        (1.9, None, None),
        (2.0, None, "the save of 02:00 UTC"),
        (2.1, 2.05, None),
        (25.0, 2.05, None),
        (26.0, 2.05, "the save of 02:00 UTC"),
    ],
)
def test_a_job_is_saved_once_a_night(policy, hours, saved, reason):
    situation = Situation(
        job="7", now=MIDNIGHT + hours * 3600, launched=MIDNIGHT, started=MIDNIGHT,
        last=None if saved is None else MIDNIGHT + saved * 3600,
    )  # fmt: skip
    assert policy.save_now(situation) == reason


def test_a_configuration_finds_it_by_its_entry_point():
    assert "nightly" in POINT.table().names()
    expected = FirstOf((OnNotice(), Nightly(hour=4)))
    assert checked_policy("first_of(on_notice, nightly(hour=4))") == expected
