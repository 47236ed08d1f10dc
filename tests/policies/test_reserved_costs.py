"""What reservations cost: the machines' parts and the unused rest are the bill, to the micro-dollar."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.model.reserved import Held, ReservationKind
from slurm_elastic.policies.money.cost_split import HOUR
from slurm_elastic.policies.money.reservations import (
    MachineHour,
    ReservedLease,
    charged,
    settle,
    spent_on,
)

T = 500_000 * HOUR
"""A full hour, in milliseconds."""
S = T / 1000
MINUTE = 60_000
YEAR = Held(
    cloud="aws", name="year", kind=ReservationKind.INSTANCES, instance_type="m5.large", count=1,
    begins_at=S, ends_at=S + 10 * 3600, upfront=1.0, price=0.02,
)  # fmt: skip
"""$0.12 an hour."""
BLOCK = replace(YEAR, name="block", kind=ReservationKind.BLOCK, id="cr-1", zone="a", count=2)
PLAN = Held(
    cloud="aws", name="plan", kind=ReservationKind.SAVINGS, begins_at=S, ends_at=S + 10 * 3600,
    commit=0.10, families={"m5": 0.5},
)  # fmt: skip


def hour(begin: int, end: int, on: str = "", price: float = 0.20, **more: object) -> MachineHour:
    micro = round(price * (end - begin) * 1_000_000 / HOUR)
    fields = {"instance_type": "m5.large", "zone": "a", "reservation": on} | more
    return MachineHour(begin, end, micro, on_demand_price=price, **fields)  # type: ignore[arg-type]


def test_a_reservation_costs_its_hours_whether_it_is_used_or_not() -> None:
    settled = settle([], [YEAR], T, T + 2 * HOUR)
    assert [(i.begin, i.micro) for i in settled.idle] == [(T, 120_000), (T + HOUR, 120_000)]
    assert charged(YEAR, T + 10 * HOUR) == 1_200_000
    assert charged(YEAR, T + 99 * HOUR) == 1_200_000
    assert charged(YEAR, T - HOUR) == 0


def test_a_machine_pays_its_part_and_the_rest_is_idle() -> None:
    settled = settle([hour(T, T + HOUR // 4, "year")], [YEAR], T, T + HOUR)
    assert list(settled.micro) == [30_000]
    assert [i.micro for i in settled.idle] == [90_000]


def test_reserved_instances_cover_a_machine_that_was_bought_on_demand() -> None:
    """As EC2 bills: two machines of half an hour share one reserved hour, the third pays."""
    half = HOUR // 2
    hours = [hour(T, T + half), hour(T, T + half), hour(T + half, T + HOUR)]
    settled = settle(hours, [YEAR], T, T + HOUR)
    assert list(settled.micro) == [60_000, 60_000, 100_000]
    assert settled.idle == []


def test_spot_and_other_types_and_zones_are_not_covered() -> None:
    hours = [
        hour(T, T + HOUR, is_covered=False), hour(T, T + HOUR, instance_type="c5.large"),
        hour(T, T + HOUR, zone="b"),
    ]  # fmt: skip
    settled = settle(hours, [replace(YEAR, zone="a")], T, T + HOUR)
    assert list(settled.micro) == [200_000] * 3
    assert [i.micro for i in settled.idle] == [120_000]


def test_a_block_covers_only_what_was_launched_on_it_and_costs_nothing_after_it() -> None:
    hours = [
        hour(T, T + HOUR), hour(T, T + HOUR, "block"),
        hour(T + 10 * HOUR, T + 10 * HOUR + MINUTE, "block"),
    ]  # fmt: skip
    settled = settle(hours, [BLOCK], T, T + HOUR)
    # $1 up front over ten hours, and 2 x $0.02: $0.14 for two machines
    assert list(settled.micro) == [200_000, 70_000, 0]
    assert [i.micro for i in settled.idle] == [70_000]


def test_after_its_end_a_machine_pays_the_price_on_demand() -> None:
    held = replace(YEAR, ends_at=S + 1800)
    settled = settle([hour(T, T + HOUR, "year", 0.20)], [held], T, T + HOUR)
    assert list(settled.micro) == [charged(held, T + HOUR) + 100_000]


def test_a_plan_covers_dollars_after_reserved_instances() -> None:
    hours = [hour(T, T + HOUR), hour(T, T + HOUR), hour(T, T + HOUR)]
    settled = settle(hours, [PLAN, YEAR], T, T + HOUR)
    # the first is the year's, the second takes the whole $0.10 of the plan, the third pays
    assert list(settled.micro) == [120_000, 100_000, 200_000]
    assert settled.idle == []


def test_a_price_for_use_is_paid_for_use() -> None:
    held = replace(YEAR, always=False)
    settled = settle([hour(T, T + HOUR // 2, "year")], [held], T, T + HOUR)
    assert list(settled.micro) == [50_000 + 10_000]
    assert [i.micro for i in settled.idle] == [50_000]


spans = st.tuples(st.integers(0, 5 * 60 - 1), st.integers(1, 120))


@given(
    st.lists(st.tuples(spans, st.sampled_from(["", "year", "block"])), max_size=12),
    st.integers(1, 3), st.floats(0, 50), st.floats(0, 1), st.floats(0.01, 1.0),
)  # fmt: skip
def test_the_sum_is_the_bill_of_a_second_program(
    machines: list[tuple[tuple[int, int], str]], count: int, upfront: float, price: float,
    commit: float,
) -> None:  # fmt: skip
    """The second program counts whole minutes, and fractions instead of micro-dollars."""
    year = replace(YEAR, count=count, upfront=upfront, price=price)
    plan = replace(PLAN, commit=commit)
    block = replace(BLOCK, count=12)
    hours = []
    for (start, minutes), on in machines:
        begin, end = T + start * MINUTE, T + (start + minutes) * MINUTE
        while begin < end:
            stop = min((begin // HOUR + 1) * HOUR, end)
            hours.append(hour(begin, stop, on))
            begin = stop
    until = T + 10 * HOUR
    settled = settle(hours, [plan, block, year], T, until)
    total = Fraction(sum(settled.micro) + sum(i.micro for i in settled.idle))
    fixed = [charged(h, until) for h in (year, plan, block)]
    assert fixed == [round(h.fixed_per_hour * h.hours * 1_000_000) for h in (year, plan, block)]
    expected = Fraction(sum(fixed))
    for start in range(T // HOUR, until // HOUR):
        in_hour = [h for h in hours if h.begin // HOUR == start and h.reservation != "block"]
        minutes_used = sum(h.ms // MINUTE for h in in_hour)
        left = max(minutes_used - 60 * count, 0)
        by_plan = min(Fraction(left, 60), Fraction(round(commit * 1_000_000), 100_000))
        expected += (Fraction(left, 60) - by_plan) * 200_000
    assert abs(total - expected) <= len(hours) + 1
    assert all(micro >= 0 for micro in (*settled.micro, *(i.micro for i in settled.idle)))


@pytest.mark.parametrize(
    ("held", "on", "machine", "idle"),
    [
        (YEAR, "year", 120_000, 0), (YEAR, "", 120_000, 0), (BLOCK, "block", 70_000, 70_000),
        # Half of the type's $0.20, without the disks.
        (PLAN, "", 100_000, 0), (replace(YEAR, always=False), "year", 120_000, 0),
    ],
)  # fmt: skip
def test_disks_are_billed_beside_the_reservation_that_covers_a_machine(
    held: Held, on: str, machine: int, idle: int
) -> None:
    with_disks = hour(T, T + HOUR, on, 0.30, disk_price=0.10)
    settled = settle([with_disks], [held], T, T + HOUR)
    assert list(settled.micro) == [machine + 100_000]
    assert sum(i.micro for i in settled.idle) == idle


def test_disks_of_an_uncovered_part_of_an_hour_are_billed_once() -> None:
    late = replace(YEAR, begins_at=S + 1800)
    settled = settle([hour(T, T + HOUR, "", 0.30, disk_price=0.10)], [late], T, T + HOUR)
    share = round(late.fixed_per_hour * 500_000)
    assert list(settled.micro) == [150_000 + share + 50_000]


def test_budgets_count_disks_beside_the_whole_price() -> None:
    lease = ReservedLease("year", {"physics": 1}, S, S + 1800, 0.12 + 0.10, 0.30, 0.10)
    paid = spent_on([lease], [YEAR], S, S + 3600)
    assert paid == [({"physics": 1}, pytest.approx(0.11)), ({}, pytest.approx(0.06))]


def test_budgets_count_the_whole_price_and_payers_their_part() -> None:
    lease = ReservedLease("year", {"physics": 1}, S, S + 1800, 0.12, 0.20)
    paid = spent_on([lease], [YEAR], S, S + 3600)
    assert paid == [({"physics": 1}, pytest.approx(0.06)), ({}, pytest.approx(0.06))]
    after = replace(YEAR, ends_at=S + 900)
    (_, dollars), _ = spent_on([lease], [after], S, S + 3600)
    assert dollars == pytest.approx(0.12 / 4 + 0.20 / 4)
    gone = spent_on([lease], [], S, S + 3600)
    assert gone == [({"physics": 1}, pytest.approx(0.06))], "it has left the configuration"
