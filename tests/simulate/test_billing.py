"""The cost of a machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.simulate.bills.billing import Billing, Curve, Hourly, PerSecond, dollars
from slurm_elastic.simulate.bills.market import NEVER, PLENTY, SpotMarket
from slurm_elastic.simulate.boot import BootTimes

FLAT = Curve.flat(1.0)


def charge(billing: Billing, curve: Curve, start: int, end: int, *, reclaimed: bool) -> float:
    return dollars(curve, start, billing.billed(start, end, reclaimed=reclaimed))


@pytest.mark.parametrize(("seconds", "hours"), [(0, 1), (1, 1), (3600, 1), (3601, 2), (7200, 2)])
def test_each_hour_begun_is_paid(seconds: int, hours: int) -> None:
    assert charge(Hourly(), FLAT, 100, 100 + seconds, reclaimed=False) == hours


def test_the_hour_in_which_the_provider_takes_the_machine_is_free() -> None:
    billing = Hourly(refund=True)
    assert charge(billing, FLAT, 0, 5000, reclaimed=True) == 1
    assert charge(billing, FLAT, 0, 5000, reclaimed=False) == 2
    assert charge(Hourly(), FLAT, 0, 5000, reclaimed=True) == 2


def test_an_hour_is_charged_at_the_price_at_its_beginning() -> None:
    curve = Curve([0, 1800, 3601, 9000], [0.01, 5.0, 0.02, 0.04])
    assert charge(Hourly(), curve, 0, 10_000, reclaimed=False) == pytest.approx(0.01 + 5.0 + 0.02)


def test_seconds_with_a_minimum() -> None:
    assert charge(PerSecond(), FLAT, 0, 10, reclaimed=False) == pytest.approx(60 / 3600)
    assert charge(PerSecond(), FLAT, 0, 90, reclaimed=False) == pytest.approx(90 / 3600)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from([Hourly(), PerSecond()]))
def test_nothing_is_ever_paid_short(start: int, length: int, billing: Hourly | PerSecond) -> None:
    paid = billing.billed(start, start + length)
    assert length <= paid < length + billing.lease + 60
    assert charge(billing, FLAT, start, start + length, reclaimed=False) == pytest.approx(
        paid / 3600
    )


def test_a_curve_must_ascend() -> None:
    with pytest.raises(ValueError, match="ascending"):
        Curve([5, 5], [1, 2])
    with pytest.raises(ValueError, match="at least one"):
        Curve([], [])


def test_boot_times_grow_with_the_batch() -> None:
    boot = BootTimes(((1, 126), (2, 186), (4, 252), (8, 270), (16, 300)))
    assert [boot.seconds(n) for n in (1, 2, 4, 16, 999)] == [126, 186, 252, 300, 300]
    assert 252 < boot.seconds(6) < 270
    assert BootTimes(((1, 60),), configure=9).seconds(5) == 69
    with pytest.raises(ValueError, match="ascending"):
        BootTimes(((2, 60), (1, 30)))


def test_a_market_by_price() -> None:
    market = SpotMarket(Curve([0, 100, 200], [0.01, 0.09, 0.01]), bid=0.067)
    assert [market.room(t) for t in (0, 99, 100, 199, 200)] == [PLENTY, PLENTY, 0, 0, PLENTY]
    assert market.next_fall(0, 1)[0] == 100
    assert market.next_fall(100, 1)[0] == NEVER
    assert market.prices(50, 150) == ((0, 0.01), (100, 0.09))


def test_a_market_by_availability() -> None:
    market = SpotMarket(Curve.flat(0.02), available=[(0, 5), (60, 2), (120, 9)])
    assert [market.room(t) for t in (0, 60, 119, 120)] == [5, 2, 2, 9]
    assert market.next_fall(0, 3) == (60, range(3, PLENTY + 1))
    assert market.next_fall(0, 2) == (NEVER, range(3))


def test_how_many_there_are_and_until_when() -> None:
    market = SpotMarket(Curve.flat(0.5), available=[(0, 5), (60, 2)])
    assert [market.rooms(t) for t in (0, 59, 60)] == [(5, 60), (5, 60), (2, NEVER)]
