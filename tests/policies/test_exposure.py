"""Interruptions of spot machines: their chance, and what checkpoints save of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.policies.checkpoint.exposure import RESTART, chance, with_saves, without_saves

HOUR = 3600.0


def test_any_of_its_machines_interrupts_a_job() -> None:
    assert chance(HOUR, 24 * HOUR, 1) == pytest.approx(0.0408, abs=1e-3)
    assert chance(HOUR, 24 * HOUR, 24) == pytest.approx(0.632, abs=1e-3)


def test_a_run_far_longer_than_machines_last_ends_with_checkpoints_only() -> None:
    assert without_saves(1000 * HOUR, 6 * HOUR, 1) is None
    saved = with_saves(1000 * HOUR, 6 * HOUR, 1, 60.0)
    assert saved is not None
    assert 1000 * HOUR < saved < 1200 * HOUR


def test_daly_s_figure_for_a_day_on_machines_that_last_a_day() -> None:
    plain = without_saves(24 * HOUR, 24 * HOUR, 1)
    assert plain == pytest.approx((24 * HOUR + RESTART) * (2.718281828 - 1))
    assert RESTART == 120, "Slurm's own delay of a requeued job"


def test_each_machine_more_shortens_the_time_to_an_interruption() -> None:
    """If two machines last two days each, one is taken each day."""
    day = 24 * HOUR
    assert without_saves(day, 2 * day, 2) == pytest.approx(without_saves(day, day, 1))
    assert with_saves(day, 2 * day, 2, 60.0) == pytest.approx(with_saves(day, day, 1, 60.0))


def test_a_run_up_to_fifty_times_as_long_as_machines_last_may_end() -> None:
    assert without_saves(50 * HOUR, HOUR, 1) is not None
    assert without_saves(50 * HOUR + 1, HOUR, 1) is None
    # A save of more than two such times has one of them as its interval.
    assert with_saves(51 * HOUR, HOUR, 1, 49 * HOUR) is not None
    assert with_saves(51 * HOUR, HOUR, 1, 49 * HOUR + 1) is None
    assert with_saves(50 * HOUR, HOUR, 1, 49 * HOUR + 1) == without_saves(50 * HOUR, HOUR, 1)


@given(
    run=st.floats(60, 1e6), mtti=st.floats(600, 1e7), machines=st.integers(1, 1000),
    save=st.floats(1, 3600),
)  # fmt: skip
def test_checkpoints_never_make_it_longer_than_none(
    run: float, mtti: float, machines: int, save: float
) -> None:
    plain = without_saves(run, mtti, machines)
    saved = with_saves(run, mtti, machines, save)
    assert 0 <= chance(run, mtti, machines) <= 1
    if plain is not None:
        assert saved is not None
        assert run * 0.999 <= saved <= plain
