"""The rule of docs/costs.md, by examples that can be checked by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.oracle.bill import MICRO, Paid, Use, paid_end, parts

HOUR = 3_600_000
DOLLAR = Fraction(1)


@pytest.mark.parametrize(
    ("lasts", "unit", "paid"),
    [(10, 1, 60), (61, 1, 61), (0, 3600, 3600), (3600, 3600, 3600), (3601, 3600, 7200)],
)
def test_each_begun_unit_is_paid_and_a_minute_at_least(lasts: float, unit: int, paid: int) -> None:
    assert paid_end(1000.0, 1000.0 + lasts, unit) == 1000.0 + paid


def test_the_hours_of_a_machine_are_those_of_its_jobs_and_the_rest_has_a_reason() -> None:
    paid = Paid(begin=0, end=10 * HOUR, up=HOUR, over=8 * HOUR, price=DOLLAR, off=False)
    uses = [
        Use("ann", 2 * HOUR, 4 * HOUR, Fraction(1, 2)),
        Use("bob", 3 * HOUR, 4 * HOUR, Fraction(1, 4)),
    ]
    assert parts(paid, uses, [(6 * HOUR, 7 * HOUR)]) == {
        "boot": MICRO,
        "ann": MICRO,
        "bob": MICRO / 4,
        "idle": 5 * MICRO - Fraction(MICRO, 4),
        "drain": MICRO,
        "ending": 2 * MICRO,
    }


def test_shares_above_the_whole_machine_count_in_proportion() -> None:
    paid = Paid(begin=0, end=HOUR, up=0, over=HOUR, price=DOLLAR, off=False)
    uses = [Use("ann", 0, HOUR, Fraction(1)), Use("bob", 0, HOUR, Fraction(1, 2))]
    assert parts(paid, uses, []) == {"ann": Fraction(2 * MICRO, 3), "bob": Fraction(MICRO, 3)}


def test_a_stopped_machine_is_paid_for_nobody() -> None:
    paid = Paid(begin=0, end=HOUR, up=HOUR, over=HOUR, price=DOLLAR / 50, off=True)
    assert parts(paid, [], []) == {"stopped": Fraction(MICRO, 50)}
