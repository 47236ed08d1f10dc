"""How durations, amounts and counts are put into words."""

from __future__ import annotations

import pytest

from slurm_elastic.base.units import brief, counted, does, money


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0.4, "0s"),
        (59.4, "59s"),
        (60, "1m"),
        (200, "3m 20s"),
        (599, "9m 59s"),
        (605, "10m"),
        (3600, "1h"),
        (3780, "1h 3m"),
        (86400, "1d"),
        (187200, "2d 4h"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert brief(seconds) == text


@pytest.mark.parametrize(
    ("dollars", "text"),
    [
        (0, "$0.00"),
        (0.1, "$0.10"),
        (0.0629, "$0.0629"),
        (0.14912, "$0.1491"),
        (0.000213, "$0.000213"),
        (5, "$5.00"),
        (9.99999, "$10.00"),
        (12.3456, "$12.35"),
        (1234.5, "$1,234.50"),
        (float("nan"), "$nan"),
    ],
)
def test_amounts_have_cents_and_more_where_a_small_one_has_more(dollars: float, text: str) -> None:
    assert money(dollars) == text


def test_one_machine_leaves_and_two_machines_leave() -> None:
    said = [f"{counted(n, 'machine')} {does(n, 'leave')}" for n in (0, 1, 2)]
    assert said == ["0 machines leave", "1 machine leaves", "2 machines leave"]


def test_a_time_since_nobody_knows_when_is_told_as_that() -> None:
    assert brief(float("inf")) == "an unknown time"
