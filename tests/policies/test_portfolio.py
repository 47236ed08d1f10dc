"""Reserved machines: what they are worth, and which to buy when."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.policies.planning.portfolio import (
    WEEK,
    Bought,
    ReservedClass,
    active,
    allocate,
    bill,
    bound,
    breakeven,
    breakevens,
    forecast,
    heaviest_first,
    offline,
    online,
    scaled,
    shrunk,
    top_up,
    week_cost,
)
from tests.policies.smoothing import smoothed
from tests.policies.weekly_usage import usage_of

THREE_YEARS = 3 * 365 * 24
LIGHT = ReservedClass(name="light", term=THREE_YEARS, upfront=2710, price=0.904)
MEDIUM = ReservedClass(name="medium", term=THREE_YEARS, upfront=6378, price=0.54)
HEAVY = ReservedClass(name="heavy", term=THREE_YEARS, upfront=7670, price=0.361, always=True)


@pytest.mark.parametrize(
    ("heavier", "lighter", "share"),
    [(LIGHT, None, 6.89), (MEDIUM, LIGHT, 38.34), (HEAVY, MEDIUM, 76.0), (HEAVY, LIGHT, 60.8)],
)
def test_the_breakeven_shares_of_2014(
    heavier: ReservedClass, lighter: ReservedClass | None, share: float
) -> None:
    assert breakeven(heavier, lighter, 2.40) * 100 == pytest.approx(share, abs=0.1)


ALL = ReservedClass(name="all", term=1000, upfront=1000, price=0.5, always=True)


@pytest.mark.parametrize(
    ("heavier", "lighter", "share"),
    [
        (ReservedClass(name="r", term=1000, upfront=300, price=1.4), None, 0.3),
        (ReservedClass(name="r", term=1000, upfront=300, price=2.4), None, float("inf")),
        (ALL, None, 1500 / 2400),
        (ALL, ReservedClass(name="r", term=1000, upfront=300, price=2.0), 1200 / 2000),
        # Both are paid for the whole term, used or not: the cheaper one is better from 0 on.
        (ReservedClass(name="b", term=1000, upfront=1250, price=0.25, always=True), ALL, 0.0),
        (ReservedClass(name="b", term=1000, upfront=1251, price=0.25, always=True), ALL,
         float("inf")),
    ],
)  # fmt: skip
def test_the_breakeven_is_where_the_upfront_payment_is_earned(
    heavier: ReservedClass, lighter: ReservedClass | None, share: float
) -> None:
    assert breakeven(heavier, lighter, 2.4) == pytest.approx(share)


def test_at_the_breakeven_both_classes_cost_the_same() -> None:
    used = breakeven(MEDIUM, LIGHT, 2.40) * THREE_YEARS
    assert MEDIUM.cost(used, THREE_YEARS) == pytest.approx(LIGHT.cost(used, THREE_YEARS))


def test_a_class_that_saves_nothing_never_pays() -> None:
    dear = ReservedClass(name="dear", term=100, upfront=1, price=3.0)
    assert breakeven(dear, None, 2.4) == float("inf")
    with pytest.raises(ValueError, match="different terms"):
        breakeven(dear, LIGHT, 2.4)


def test_reserved_machines_are_used_first() -> None:
    assert allocate([0, 1, 5, 9], [(2, 0.5), (3, 0.9)]) == [5, 6, 4]


@given(st.lists(st.integers(0, 50), max_size=50), st.lists(st.integers(0, 20), max_size=3))
def test_every_hour_is_somebodys(concurrent: list[int], counts: list[int]) -> None:
    hours = allocate(concurrent, [(count, 1.0) for count in counts])
    assert sum(hours) == sum(concurrent)


CLASSES = heaviest_first([LIGHT, MEDIUM])
SHORT = (
    ReservedClass(name="light", term=4 * WEEK, upfront=20, price=0.9),
    ReservedClass(name="all", term=4 * WEEK, upfront=100, price=0.5, always=True),
)
hours = st.lists(st.integers(0, 6), min_size=WEEK, max_size=12 * WEEK)


def test_a_machine_costs_its_share_of_the_upfront_payment_and_what_it_runs() -> None:
    light, always = SHORT
    assert light.cost(100, 2 * WEEK) == pytest.approx(20 / 2 + 100 * 0.9)
    assert always.cost(100, 2 * WEEK) == pytest.approx(100 / 2 + 2 * WEEK * 0.5)


def test_a_term_is_so_many_whole_weeks_and_one_at_least() -> None:
    terms = (1, 168, 335, 336, THREE_YEARS)
    assert [replace(LIGHT, term=term).weeks for term in terms] == [1, 1, 1, 2, 156]


def test_whole_weeks_of_168_hours_are_counted() -> None:
    assert usage_of([1] * 168) == [[168.0]]
    assert usage_of([1] * 335) == [[168.0]]
    assert usage_of([2] * 168 + [0] * 168) == [[168.0, 168.0], []]


def test_of_one_term_what_is_always_paid_comes_first_then_the_cheaper_hour() -> None:
    dear = replace(HEAVY, price=0.7)
    assert heaviest_first([LIGHT, MEDIUM, dear]) == (dear, MEDIUM, LIGHT)
    more = replace(MEDIUM, upfront=7000)
    assert heaviest_first([MEDIUM, more]) == (more, MEDIUM), "of the same price"


def test_a_class_that_pays_in_the_very_last_hour_may_be_bought() -> None:
    just = ReservedClass(name="just", term=1000, upfront=1000, price=1.0)
    assert breakevens((just,), 2.0) == (1.0,)
    assert breakevens((replace(just, upfront=1001),), 2.0) == (float("inf"),)


HALF = (ReservedClass(name="half", term=2 * WEEK, upfront=WEEK, price=0.0),)
"""Pays for a machine that is used for half of its two weeks."""


@pytest.mark.parametrize(
    ("hours", "weeks"),
    [
        ((84, 84), (0,)),
        ((83, 84), (1,)),
        ((83, 83), ()),
        # What is used little now waits for the week behind the term, if that uses it more.
        ((60, 120), (0,)),
        ((60, 120, 60), (0,)),
        ((60, 120, 61), (1,)),
        ((84, 120, 100), (0, 2)),
        # A week that does not use it at all waits for the one that does.
        ((0, 168), (1,)),
        ((1, 167), (0,)),
    ],
)
def test_a_rank_is_reserved_from_the_week_in_which_it_is_worth_it(
    hours: tuple[float, ...], weeks: tuple[int, ...]
) -> None:
    bought = offline([[float(used)] for used in hours], HALF, 1.0)
    assert bought == tuple(Bought(week, 0, 1) for week in weeks)


def test_the_bound_is_each_ranks_week_in_its_best_class() -> None:
    always, light = heaviest_first(SHORT)
    by_class = (25 + 0.5 * WEEK, 5 + 0.9 * 84, 10.0)
    assert bound([[168.0, 84.0], [10.0]], (always, light), 1.0) == pytest.approx(sum(by_class))


def test_what_is_to_be_bought_now_is_no_part_of_the_bill() -> None:
    usage = usage_of([1] * WEEK)
    assert bill(usage, (Bought(1, 0, 3),), heaviest_first(SHORT), 1.0).upfront == 0
    assert bill(usage, (Bought(0, 0, 3),), heaviest_first(SHORT), 1.0).upfront == 300


def test_each_week_has_the_machines_whose_term_it_lies_in() -> None:
    bought = (Bought(1, 0, 2), Bought(2, 0, 1), Bought(2, 1, 4))
    found = [active(week, bought, heaviest_first(SHORT)) for week in range(7)]
    assert found == [[0, 0], [2, 0], [3, 4], [3, 4], [3, 4], [1, 4], [0, 0]]


def test_the_usage_of_ranks_descends_and_loses_no_hour() -> None:
    concurrent = [3, 0, 1, 2] * (WEEK // 4) + [9] * 5
    (week,) = usage_of(concurrent)
    assert week == [WEEK * 3 / 4, WEEK / 2, WEEK / 4]


def test_heavier_classes_come_first_and_longer_terms_before_shorter_ones() -> None:
    year = ReservedClass(name="1Y", term=8760, upfront=1762, price=0.904)
    assert heaviest_first([year, LIGHT, HEAVY, MEDIUM]) == (HEAVY, MEDIUM, LIGHT, year)


def test_breakevens_are_those_against_the_next_lighter_class() -> None:
    heavy, medium, light = breakevens((HEAVY, MEDIUM, LIGHT), 2.40)
    assert [round(share * 100, 1) for share in (heavy, medium, light)] == [76.0, 38.3, 6.9]


def test_a_class_that_is_never_the_cheapest_is_never_bought() -> None:
    poor = ReservedClass(name="poor", term=THREE_YEARS, upfront=7000, price=0.9)
    assert breakevens((poor, LIGHT), 2.40)[0] == float("inf")
    better = ReservedClass(name="better", term=THREE_YEARS, upfront=100, price=0.5)
    shares = breakevens(heaviest_first((better, LIGHT)), 2.40)
    assert sorted(shares)[1] == float("inf")


def test_a_machine_that_always_runs_is_reserved_from_the_first_week_on() -> None:
    usage = usage_of([1] * WEEK * 8)
    bought = offline(usage, heaviest_first(SHORT), 1.0)
    assert bought == (Bought(0, 0, 1), Bought(4, 0, 1))
    found = bill(usage, bought, heaviest_first(SHORT), 1.0)
    assert found.cost == pytest.approx(2 * 100 + 8 * WEEK * 0.5)
    assert found.hours == (8 * WEEK, 0, 0)
    assert found.upfront == 200


def test_who_cannot_see_ahead_buys_once_the_use_has_settled() -> None:
    usage = usage_of([2] * WEEK * 12)
    bought = online(usage, heaviest_first(SHORT), 1.0)
    assert bought[0] == Bought(4, 0, 2)
    foreseen = bill(usage, offline(usage, heaviest_first(SHORT), 1.0), heaviest_first(SHORT), 1.0)
    found = bill(usage, bought, heaviest_first(SHORT), 1.0)
    assert foreseen.cost < found.cost < sum(map(sum, usage)) * 1.0


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.sampled_from([4, 9, 26]),
    st.sampled_from([1.0, 2.0]),
)
def test_who_cannot_see_ahead_holds_no_more_than_the_highest_forecast_pays_for(
    levels: list[int], weeks: int, most: float
) -> None:
    """The forecast is of all machines together, and may see growth. So more may be held than was
    ever used, but only as many as the highest total it may predict uses for their break-even.
    """
    longer = ReservedClass(name="longer", term=weeks * WEEK, upfront=8 * weeks, price=0.7)
    classes = heaviest_first((*SHORT, longer))
    usage = usage_of([level for level in levels for _ in range(2 * WEEK)])
    bought = online(usage, classes, 1.0, most=most)
    # Whole machines: the last one may be used for less than its row says.
    highest = most * max(sum(row) for row in usage) + WEEK
    for week in range(len(usage) + 1):
        held = sum(b.machines for b in bought if b.week <= week < b.week + classes[b.kind].weeks)
        assert held * WEEK * min(breakevens(classes, 1.0)) <= highest


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.floats(0, 4))
def test_a_scaled_week_has_the_hours_of_so_many_machines(machines: list[int], part: float) -> None:
    row = usage_of((machines * WEEK)[:WEEK])[0]
    found = scaled(row, part)
    assert found == sorted(found, reverse=True)
    assert len(found) == round(len(row) * part)
    assert sum(found) == pytest.approx(part * sum(row), abs=WEEK)
    assert scaled(row, 1.0) == row


def test_a_steady_use_is_reserved_once_a_term() -> None:
    year = (ReservedClass(name="year", term=52 * WEEK, upfront=100, price=0.2),)
    usage = usage_of([16] * WEEK * 67)
    assert online(usage, year, 1.0) == (Bought(4, 0, 16), Bought(56, 0, 16))


def test_a_use_that_falls_is_not_reserved_for_a_year() -> None:
    """Whatever shorter terms there are: the whole of each is looked at."""
    year = ReservedClass(name="year", term=52 * WEEK, upfront=1000, price=0.2)
    never = ReservedClass(name="never", term=4 * WEEK, upfront=1e9, price=0.2)
    falling = [[168.0], [158.0], [148.0], [138.0]]
    assert online([[168.0]] * 4, (year, never), 1.0) == (Bought(4, 0, 1),)
    assert online(falling, (year, never), 1.0) == ()


def test_the_forecast_is_of_the_whole_week_and_takes_a_jump_for_growth() -> None:
    """As in the paper: the total is smoothed, not each machine's use. So after one week of two
    machines more are expected, within the bound, and too many are bought for a year.
    """
    year = (ReservedClass(name="year", term=52 * WEEK, upfront=100, price=0.2),)
    usage = usage_of([1] * WEEK * 8 + [2] * WEEK * 20)
    first, second, *_ = online(usage, year, 1.0)
    assert first == Bought(4, 0, 1)
    assert (second.week, second.machines) > (9, 1)
    bounded = online(usage, year, 1.0, most=1.0)
    assert sum(purchase.machines for purchase in bounded) < sum(
        purchase.machines for purchase in online(usage, year, 1.0)
    )


def test_each_week_of_the_forecast_is_the_mean_week_scaled_to_the_total() -> None:
    """By hand: 100 hours in each week so far, of which the second machine has a quarter."""
    steady = smoothed([100.0, 100.0])
    assert forecast(steady, [75.0, 25.0], 2) == [[75.0, 25.0]] * 2
    assert forecast(steady, [37.5, 12.5], 1) == [[37.5, 37.5, 12.5, 12.5]], "twice the machines"
    assert forecast(smoothed([0.0]), [], 3) == [[], [], []]


def test_a_week_is_paid_by_the_count_of_each_class() -> None:
    light, heavy = SHORT
    row = [168.0, 100.0, 40.0]
    assert week_cost(row, (1, 1), (heavy, light), 1.0) == pytest.approx(
        (168 * 0.5 + 100 / 4) + (100 * 0.9 + 20 / 4) + 40 * 1.0
    )
    assert week_cost(row, (0, 0), (heavy, light), 1.0) == pytest.approx(308)
    with pytest.raises(ValueError, match="shorter"):
        week_cost(row, (1,), (heavy, light), 1.0)


def test_nothing_is_bought_for_a_machine_that_is_hardly_used() -> None:
    usage = usage_of(([1] + [0] * 99) * 20)
    assert offline(usage, CLASSES, 2.4) == () == online(usage, CLASSES, 2.4)


def test_fewer_machines_are_the_top_of_the_same_use() -> None:
    assert shrunk([[8.0, 6.0, 4.0, 2.0]], 0.5) == [[8.0, 4.0]]
    assert shrunk([[8.0, 6.0]], 1.0) == [[8.0, 6.0]]
    assert shrunk([[8.0, 6.0, 4.0], []], 0.5) == [[8.0, 4.0], []]


@given(st.lists(st.floats(0, 168), min_size=1, max_size=60), st.integers(1, 156))
def test_a_forecast_stays_within_what_can_be(values: list[float], steps: int) -> None:
    assert 0 <= smoothed(values).ahead(steps, 2) <= 2 * max(values)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3))
def test_the_topping_up_is_the_least_of_equation_one(pairs: list[tuple[int, int]]) -> None:
    have, want = [h for h, _ in pairs], [w for _, w in pairs]

    def value(added: tuple[int, ...]) -> int:
        surplus = [h + a - w for h, a, w in zip(have, added, want, strict=True)]
        return sum(s * s for s in surplus) + (len(surplus) * sum(surplus)) ** 2

    best = min(value(a) for a in itertools.product(range(6), repeat=len(pairs)))
    assert value(tuple(top_up(have, want))) == best


@given(hours)
def test_no_portfolio_beats_the_bound(concurrent: list[int]) -> None:
    usage = usage_of(concurrent)
    classes = heaviest_first(SHORT)
    for bought in (offline(usage, classes, 1.0), online(usage, classes, 1.0), ()):
        found = bill(usage, bought, classes, 1.0)
        assert found.cost >= bound(usage, classes, 1.0) - 1e-6
        assert sum(found.hours) == pytest.approx(sum(map(sum, usage)))


@given(st.floats(0, 168), st.integers(2, 40))
def test_what_never_changes_is_foretold(value: float, count: int) -> None:
    assert smoothed([value] * count).ahead(156, 2) == pytest.approx(value)


def test_errors_of_the_level_count_with_their_sign() -> None:
    """By hand: 10 is expected and 20 comes, then 32.811875 and 15: errors of two signs."""
    state = smoothed([10.0, 20.0])
    assert (state.level, state.slope, state.change) == pytest.approx((19.5, 9.025, 8.57375))
    assert tuple(state.alpha) == pytest.approx((2.0, 2.0))
    state = state.after(15.0)
    assert tuple(state.alpha) == pytest.approx((0.8 * 2 - 0.2 * 17.811875, 5.162375))
    assert state.alpha.value == pytest.approx(1.962375 / 5.162375)
    level = state.alpha.value * 15 + (1 - state.alpha.value) * 32.811875
    assert state.level == pytest.approx(level)


def test_a_trend_is_followed_and_kept_within_reason() -> None:
    rising = smoothed([float(10 * week) for week in range(20)])
    assert rising.ahead(1, 2) == pytest.approx(200, rel=0.1)
    assert smoothed([100.0, 50.0, 10.0, 0.0]).ahead(156, 2) == 0
