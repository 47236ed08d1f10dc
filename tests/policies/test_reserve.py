"""Reserving by trailing use, and the least that each rank could have cost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.policies.planning.portfolio import (
    WEEK,
    Bought,
    ReservedClass,
    bill,
    bound,
    heaviest_first,
    offline,
    online,
)
from slurm_elastic.policies.planning.reserve import HOUR, by_rank, trailing, usage_of_steps
from tests.policies.weekly_usage import usage_of

SHORT = heaviest_first(
    (
        ReservedClass(name="light", term=4 * WEEK, upfront=20, price=0.9),
        ReservedClass(name="all", term=4 * WEEK, upfront=100, price=0.5, always=True),
    )
)
LONG = heaviest_first(
    (ReservedClass(name="long", term=3 * 8760, upfront=0, price=0.5, always=True),)
)


def used(*shares: float) -> list[list[float]]:
    """One machine, used for such shares of each week."""
    return [[share * WEEK] if share else [] for share in shares]


def cost(usage: list[list[float]], bought: tuple[Bought, ...]) -> float:
    return bill(usage, bought, SHORT, 1.0).cost


# what is used


def test_seconds_are_not_rounded_up_to_hours() -> None:
    """Ten machines for a minute each, one after the other."""
    steps = {60 * minute: 0 for minute in range(11)} | {0: 1, 600: -1, WEEK * HOUR: 0}
    assert usage_of_steps(steps) == [[pytest.approx(600 / HOUR)]]


def test_ranks_are_counted_by_how_many_run_at_a_time_and_weeks_apart() -> None:
    week = WEEK * HOUR
    steps = {week - 3600: 2, week + 1800: -1, week + 3600: -1, 2 * week: 0}
    assert usage_of_steps(steps) == [[1.0, 1.0], [1.0, 0.5]]


@given(st.lists(st.integers(0, 5), min_size=5, max_size=14))
def test_whole_hours_are_those_of_the_hourly_table(levels: list[int]) -> None:
    concurrent = [level for level in levels for _ in range(48)]
    steps: dict[int, int] = {}
    for hour, (before, after) in enumerate(itertools.pairwise([0, *concurrent, 0])):
        steps[hour * HOUR] = after - before
    for fine, whole in zip(usage_of_steps(steps), usage_of(concurrent), strict=True):
        assert fine == pytest.approx(whole)


# week by week


def test_the_heaviest_class_that_the_trailing_use_reaches_is_bought() -> None:
    bought = trailing(used(*[1.0] * 8), SHORT, 1.0)
    assert bought == (Bought(2, 0, 1), Bought(6, 0, 1))
    assert trailing(used(*[0.3] * 3), SHORT, 1.0)[0].kind == 1, "the light class"
    assert trailing(used(*[0.01] * 8), SHORT, 1.0) == ()


def test_of_two_terms_the_cheaper_is_bought() -> None:
    dear = ReservedClass(name="year", term=52 * WEEK, upfront=0, price=0.9, always=True)
    cheap = ReservedClass(name="month", term=4 * WEEK, upfront=0, price=0.5, always=True)
    bought = trailing(used(*[1.0] * 6), heaviest_first((dear, cheap)), 1.0)
    assert bought == (Bought(2, 1, 1), Bought(6, 1, 1))


def test_no_more_is_bought_while_the_purchases_lose() -> None:
    """Use ends after the first purchase for three years; new bursts buy nothing any more."""
    usage = [[WEEK] * 5] * 2 + [[]] * 30 + [[WEEK] * 60] * 2 + [[]] * 10
    assert trailing(usage, LONG, 1.0) == (Bought(2, 0, 5),)


def test_so_much_may_the_purchases_lose_at_most() -> None:
    """Two idle weeks of what was bought: an eighth more than on demand, by the end of the fifth."""
    usage = [[WEEK]] * 2 + [[]] * 2 + [[WEEK] * 2]
    first, second = Bought(2, 0, 1), Bought(5, 0, 1)
    assert trailing(usage, LONG, 1.0, weeks=1, regret=0.12) == (first,)
    assert trailing(usage, LONG, 1.0, weeks=1, regret=0.13) == (first, second)
    assert trailing(usage, LONG, 1.0, weeks=1) == (first,), "without a word on it, a fiftieth"


def test_the_mean_use_of_twelve_weeks_counts() -> None:
    """Half of the time is what it takes: six of twelve weeks."""
    late = [[]] * 20 + [[float(WEEK)]] * 8
    assert trailing(late, LONG, 1.0) == (Bought(26, 0, 1),)


def test_purchases_that_have_cost_just_as_much_as_on_demand_lose_nothing() -> None:
    assert trailing(used(1, 1, 1), LONG, 1.0, regret=0.0) == (Bought(2, 0, 1),)


def test_only_the_past_is_known() -> None:
    usage = used(1, 0.2, 0.7, 0.9, 0, 1, 1, 0.3, 0.8, 1)
    whole = trailing(usage, SHORT, 1.0)
    for week in range(1, len(usage)):
        assert trailing(usage[:week], SHORT, 1.0) == tuple(b for b in whole if b.week <= week)


# with all known


weeks = st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]), min_size=1, max_size=5)


def every_way(week: int, end: int) -> list[tuple[Bought, ...]]:
    """All that one rank could buy from that week on."""
    if week >= end:
        return [()]
    found = every_way(week + 1, end)
    for kind, of in enumerate(SHORT):
        found += [(Bought(week, kind, 1), *rest) for rest in every_way(week + of.weeks, end)]
    return found


@settings(max_examples=40, deadline=None)
@given(weeks)
def test_a_rank_cannot_be_had_for_less_by_any_purchases(shares: list[float]) -> None:
    usage = used(*shares)
    bought, total = by_rank(usage, SHORT, 1.0)
    assert total == pytest.approx(cost(usage, bought))
    assert total == pytest.approx(min(cost(usage, way) for way in every_way(0, len(usage))))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12))
def test_the_best_of_each_rank_lies_between_the_bound_and_on_demand(levels: list[int]) -> None:
    usage = usage_of([level for level in levels for _ in range(WEEK)])
    _, total = by_rank(usage, SHORT, 1.0)
    assert bound(usage, SHORT, 1.0) - 1e-6 <= total <= cost(usage, ()) + 1e-6


def test_greedy_with_all_known_may_be_dearer_than_the_best() -> None:
    usage = used(1, 0, 0, 1, 1, 1, 1, 0)
    assert by_rank(usage, SHORT, 1.0)[1] <= cost(usage, offline(usage, SHORT, 1.0))


def test_what_saves_nothing_is_not_bought() -> None:
    same = (ReservedClass(name="same", term=WEEK, upfront=0, price=1.0),)
    assert by_rank(used(1, 0.5), same, 1.0) == ((), 1.5 * WEEK)


# in whatever money


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=6, max_size=14), st.sampled_from([2**-20, 0.25, 128.0]))
def test_all_prices_in_another_currency_change_the_amounts_and_no_purchase(
    levels: list[int], rate: float
) -> None:
    usage = usage_of([level for level in levels for _ in range(WEEK)])
    abroad = tuple(replace(of, upfront=of.upfront * rate, price=of.price * rate) for of in SHORT)
    for plan in (offline, online, trailing):
        bought = plan(usage, SHORT, 1.0)
        assert plan(usage, abroad, rate) == bought
        found = bill(usage, bought, abroad, rate)
        assert found.cost == pytest.approx(cost(usage, bought) * rate)
        assert found.upfront == pytest.approx(bill(usage, bought, SHORT, 1.0).upfront * rate)
    ways, total = by_rank(usage, SHORT, 1.0)
    assert by_rank(usage, abroad, rate) == (ways, pytest.approx(total * rate))
    assert bound(usage, abroad, rate) == pytest.approx(bound(usage, SHORT, 1.0) * rate)
