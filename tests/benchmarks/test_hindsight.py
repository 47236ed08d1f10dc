"""The bound on what a job with a deadline costs: never above any plan, and exact where all is easy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.hindsight import least
from slurm_elastic.policies.checkpoint.deadline import (
    DeadlineChoice,
    Race,
    Where,
    choose,
    pay,
    uniform,
)
from slurm_elastic.simulate.studies.deadline import race


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.booleans(), min_size=40, max_size=40),
    st.integers(600, 9000),
    st.integers(1, 900),
    st.floats(0.1, 0.95),
    st.sampled_from([choose, uniform, pay]),
)
def test_no_policy_costs_less_than_the_bound(
    available: list[bool],
    work: int,
    restart: int,
    price: float,
    policy: Callable[[Race], DeadlineChoice],
) -> None:
    deadline = work + 2 * restart + 1800
    known = {"work": work, "deadline": deadline, "restart": restart, "price": price}
    paid = race(available, 300, choose=policy, **known).paid
    cost = paid[Where.SPOT] * price + paid[Where.ON_DEMAND]
    assert least(available, 300, **known) <= cost + 1e-6


def test_where_spot_machines_never_go_the_bound_is_their_price() -> None:
    found = least([True] * 40, 300, work=6000, deadline=6300, restart=300, price=0.5)
    assert found == pytest.approx((6000 + 300) * 0.5, rel=1e-3)
