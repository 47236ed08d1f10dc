"""A job with a deadline on a spot market."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.policies.deadline import Race, Where, choose
from slurm_elastic.simulate.deadline import race

AT_EASE = Race(
    now=100, begin=0, deadline=1000, work=500, left=400, restart=10, look=5,
    where=Where.WAITING, spot=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "where", "reason"),
    [
        ({}, Where.WAITING, "ahead of its line"),
        ({"left": 500}, Where.ON_DEMAND, "behind its line"),
        ({"spot": True}, Where.SPOT, "is to be had"),
        ({"spot": True, "where": Where.SPOT}, Where.SPOT, "is there"),
        ({"spot": True, "where": Where.ON_DEMAND}, Where.SPOT, "is to be had"),
        ({"where": Where.ON_DEMAND}, Where.ON_DEMAND, "no spot machine"),
        ({"now": 585}, Where.ON_DEMAND, "only 15 s may still be lost"),
        (
            {"now": 566, "spot": True, "where": Where.ON_DEMAND},
            Where.ON_DEMAND,
            "could not be made up",
        ),
        ({"now": 565, "spot": True, "where": Where.ON_DEMAND}, Where.SPOT, "is to be had"),
        ({"now": 575, "spot": True}, Where.SPOT, "is to be had"),
        ({"now": 576, "spot": True}, Where.ON_DEMAND, "could not be made up"),
        ({"now": 585, "spot": True, "where": Where.SPOT}, Where.SPOT, "is there"),
        ({"now": 586, "spot": True, "where": Where.SPOT}, Where.ON_DEMAND, "could not be made up"),
    ],
)
def test_the_choice(change: dict[str, object], where: Where, reason: str) -> None:
    choice = choose(replace(AT_EASE, **change))
    assert choice.where is where
    assert reason in choice.reason


@given(
    st.lists(st.booleans(), min_size=1, max_size=80),
    st.floats(60, 5000),
    st.floats(0, 3000),
    st.floats(0, 200),
    st.floats(1, 100),
)
def test_no_job_is_ever_late(
    available: list[bool], work: float, spare: float, restart: float, look: float
) -> None:
    deadline = work + 2 * restart + look + spare
    found = race(available, look, work=work, deadline=deadline, restart=restart, choose=choose)
    assert found.end <= deadline * (1 + 1e-9)
    assert found.spot + found.on_demand == pytest.approx(work)


def test_with_spot_machines_all_the_time_none_is_paid_for() -> None:
    found = race([True], 60, work=3600, deadline=7200, restart=100, choose=choose)
    assert (found.on_demand, found.restarts, found.end) == (0, 1, 3700)


def test_without_spot_machines_the_job_waits_in_between_and_is_in_time() -> None:
    found = race([False], 60, work=3600, deadline=7200, restart=100, choose=choose)
    assert found.spot == 0
    assert found.restarts == 1
