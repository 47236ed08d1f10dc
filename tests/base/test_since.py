"""Ages of recorded times: converted once, and unknown if the clock cannot have been right."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.base.age import SKEW_S, known_age_s
from slurm_elastic.base.since import Since, SinceMemory

UNIX = st.floats(0.0, 4e9)
STEPS = st.floats(-1e9, 1e9)
HOUR = 3600.0
DAY = 24 * HOUR


@given(recorded_at=UNIX, step=STEPS, later=st.floats(0.0, DAY))
def test_setting_the_clock_after_the_conversion_changes_no_age(
    recorded_at: float, step: float, later: float
) -> None:
    ages = SinceMemory[str]()
    first = ages.since("row", recorded_at, now=recorded_at + 5, monotonic_s=100.0, bound_s=HOUR)
    second = ages.since(
        "row", recorded_at, now=recorded_at + 5 + step, monotonic_s=100.0 + later, bound_s=HOUR
    )
    assert first == second
    assert second.age_s(100.0 + later, if_unknown=inf) == pytest.approx(5 + later, abs=1e-3)


@pytest.mark.parametrize("age_s", [-2 * DAY, -SKEW_S - 1, HOUR + 1, 900 * DAY, inf, -inf, nan])
def test_an_age_that_cannot_be_right_is_unknown(age_s: float) -> None:
    assert known_age_s(0.0, age_s, HOUR) is None
    since = Since.recorded(0.0, now=age_s, monotonic_s=7.0, bound_s=HOUR)
    assert since.age_s(50.0, if_unknown=inf) == inf
    assert since.age_s(50.0, if_unknown=0.0) == 0.0


@pytest.mark.parametrize("age_s", [-SKEW_S, -1.0, 0.0])
def test_a_record_of_a_host_whose_clock_is_a_little_ahead_is_new(age_s: float) -> None:
    assert known_age_s(0.0, age_s, HOUR) == 0.0


def test_an_age_up_to_its_bound_is_known() -> None:
    assert known_age_s(0.0, HOUR, HOUR) == HOUR


def test_an_unknown_age_can_grow_from_its_first_look() -> None:
    ages = SinceMemory[str]()
    for monotonic_s, expected in ((100.0, 20.0), (160.0, 80.0)):
        since = ages.since(
            "row", DAY, now=0.0, monotonic_s=monotonic_s, bound_s=HOUR, if_unknown_s=20.0
        )
        assert since.age_s(monotonic_s, if_unknown=inf) == expected


def test_recording_a_key_again_restarts_its_age() -> None:
    ages = SinceMemory[str]()
    ages.since("node", 10.0, now=10.0, monotonic_s=0.0, bound_s=HOUR)
    since = ages.since("node", 40.0, now=41.0, monotonic_s=31.0, bound_s=HOUR)
    assert since.age_s(31.0, if_unknown=inf) == 1.0


def test_a_key_that_no_longer_exists_is_forgotten() -> None:
    ages = SinceMemory[str]()
    ages.since("node", 10.0, now=10.0, monotonic_s=0.0, bound_s=HOUR)
    assert ages
    ages.forget_unless(lambda key: key != "node")
    assert not ages
