"""The outlook of reserved machines, by hand."""

from __future__ import annotations

import pytest

from slurm_elastic.policies.planning.portfolio import WEEK, ReservedClass
from slurm_elastic.simulate.studies.portfolio import outlook, plan_of

YEAR = ReservedClass(name="year", term=8760, upfront=0.0, price=0.5, always=True)


def test_what_is_held_saves_by_each_weeks_use() -> None:
    """One machine for half of the price: used all week it saves half, used a quarter it costs twice
    what it would on demand.
    """
    full, quarter = [float(WEEK)], [WEEK / 4]
    found = outlook([full, quarter] * 4, [1], (YEAR,), 1.0)
    assert found is not None
    assert found.value == pytest.approx(1 - 1 / 1.25)
    # dollars that a week is off, of 0.625 weeks in the mean: 0.5 - 0.2 and -0.25 - 0.05
    deviation = 0.3 / 0.625 * (8 / 7) ** 0.5
    assert found.high - found.value == pytest.approx(deviation)
    assert found.value - found.low == pytest.approx(deviation)


def test_where_nothing_is_held_there_is_no_outlook() -> None:
    assert plan_of([[WEEK / 4]] * 8, (YEAR,), 1.0).outlook is None
    assert plan_of([[float(WEEK)]] * 8, (YEAR,), 1.0).outlook is not None


def test_reservations_save_nothing_of_the_use_that_a_block_serves() -> None:
    """A block of two is always busy. One more machine is, too, and is all that a reservation saves."""
    usage = [[float(WEEK)] * 3] * 8
    found = plan_of(usage, (YEAR,), 1.0, blocks=2)
    assert found.held.buy == (1,)
    assert found.outlook is not None
    assert found.outlook.value == pytest.approx(0.5)
    idle = plan_of(usage, (YEAR,), 1.0, [1], blocks=3)
    assert idle.outlook is None, "the block serves all of the use"
