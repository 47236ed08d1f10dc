"""Triple exponential smoothing with Trigg and Leach's factors, against the equations by hand."""

from __future__ import annotations

import pytest

from slurm_elastic.policies.growth.forecast import MAX_FACTOR, MIN_FACTOR, Factor
from tests.policies.smoothing import smoothed


def after(*errors: float) -> Factor:
    factor = Factor()
    for error in errors:
        factor = factor.after(error)
    return factor


def test_a_factor_grows_while_errors_keep_one_sign_and_falls_when_they_alternate() -> None:
    """E = 0.2 e + 0.8 E, M = 0.2 |e| + 0.8 M, and the factor is |E / M|."""
    assert after(5.0, 5.0, 5.0).value == MAX_FACTOR
    assert after(-5.0, -5.0).value == MAX_FACTOR
    mixed = after(10.0, -10.0)
    assert mixed.error == pytest.approx(0.2 * -10 + 0.8 * 2)
    assert mixed.absolute == pytest.approx(0.2 * 10 + 0.8 * 2)
    assert mixed.value == pytest.approx(0.4 / 3.6)
    assert after(10.0, 5.0, -30.0).value == pytest.approx(3.92 / 8.08)


def test_without_an_error_a_factor_is_the_least() -> None:
    assert after().value == MIN_FACTOR
    assert after(0.0, 0.0).value == MIN_FACTOR


def test_a_step_up_and_down_is_followed_as_the_equations_say() -> None:
    """10, 20: all factors 0.95. Then 15 falls short of 10 + 10 + ..., and they shrink."""
    two = smoothed([10.0, 20.0])
    assert two.level == pytest.approx(0.95 * 20 + 0.05 * 10)
    slope = 0.95 * (19.5 - 10)
    assert two.slope == pytest.approx(slope)
    change = 0.95 * slope
    assert two.change == pytest.approx(change)
    three = smoothed([10.0, 20.0, 15.0])
    expected = 19.5 + slope + change / 2
    alpha = abs(0.2 * (15 - expected) + 0.8 * 2) / (0.2 * abs(15 - expected) + 0.8 * 2)
    level = alpha * 15 + (1 - alpha) * expected
    assert three.level == pytest.approx(level)
    miss = level - 19.5 - (slope + change)
    beta = max(abs(0.2 * miss + 0.8 * 1.9) / (0.2 * abs(miss) + 0.8 * 1.9), MIN_FACTOR)
    steeper = beta * (level - 19.5) + (1 - beta) * (slope + change)
    assert three.slope == pytest.approx(steeper)
    turn = steeper - slope - change
    gamma = max(
        abs(0.2 * turn + 0.8 * 0.2 * slope) / (0.2 * abs(turn) + 0.8 * 0.2 * slope), MIN_FACTOR
    )
    assert three.change == pytest.approx(gamma * (steeper - slope) + (1 - gamma) * change)
    assert three.highest == 20.0


def test_what_lies_ahead_is_a_parabola_within_its_bounds() -> None:
    state = smoothed([10.0, 20.0])._replace(level=10.0, slope=2.0, change=-0.5)
    assert state.ahead(2, 5.0) == pytest.approx(10 + 4 - 1)
    assert state.ahead(100, 5.0) == 0.0
    assert state._replace(change=1.0).ahead(100, 2.0) == 40.0, "twice the highest"
    assert state._replace(change=1.0).ahead(100, 1.25) == 25.0
