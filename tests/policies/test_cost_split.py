"""Parts of a machine's charge: they sum to it, whatever ran on it and however it is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.base.billing import paid_until
from slurm_elastic.policies.money.cost_split import (
    HOUR,
    WHOLE,
    Drain,
    PaidTime,
    RunUse,
    Unused,
    amounts,
    apportion,
    share,
    split,
)

T = 500_000 * HOUR
MINUTE = 60_000


def parts(lease: PaidTime, *uses: RunUse, drains: tuple[Drain, ...] = ()) -> dict[object, int]:
    found: dict[object, int] = {}
    for hour in split(lease, uses, drains, 0, 2 * T):
        for key, micro in hour.parts.items():
            found[key] = found.get(key, 0) + micro
    return {key: micro for key, micro in found.items() if micro}


def test_a_machines_hour_goes_to_its_job_and_the_rest_has_its_reasons() -> None:
    lease = PaidTime(T, T + HOUR, 3.6, up=T + 2 * MINUTE, over=T + 50 * MINUTE)
    job = RunUse(0, T + 2 * MINUTE, T + 32 * MINUTE, WHOLE)
    assert parts(lease, job) == {
        Unused.BOOT: 120_000, 0: 1_800_000, Unused.IDLE: 1_080_000, Unused.ENDING: 600_000
    }  # fmt: skip


def test_the_largest_share_of_a_job_is_charged_and_no_more_than_the_machine() -> None:
    lease = PaidTime(T, T + HOUR, 1.0, up=T, over=T + HOUR)
    half = share("cpu=1,mem=2G,gres/gpu=1", 1, 4, 8192, {"gpu": 2})
    assert half == WHOLE // 2
    assert parts(lease, RunUse(0, T, T + HOUR, half)) == {0: 500_000, Unused.IDLE: 500_000}
    both = (RunUse(0, T, T + HOUR, WHOLE), RunUse(1, T, T + HOUR, half))
    assert parts(lease, *both) == {0: 666_667, 1: 333_333}


def test_a_job_of_several_nodes_has_its_part_of_each() -> None:
    assert share("cpu=8,mem=4096M", 2, 8, 16384, {}) == WHOLE // 2
    assert share("", 2, 8, 16384, {}) == WHOLE, "Slurm told nothing"
    assert share("billing=3,node=1", 1, 8, 16384, {}) == WHOLE
    assert amounts("cpu=2,mem=1.50G,node=1,gres/gpu:a100=1") == {
        "cpu": 2.0, "mem": 1536.0, "node": 1.0, "gres/gpu:a100": 1.0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tres", "millionths"),
    [
        ("cpu=16", WHOLE), ("mem=1K", 1), ("cpu=1", WHOLE // 8), ("mem=1T", WHOLE),
        ("cpu=1,mem=8G", WHOLE // 2), ("gres/gpu=1", WHOLE // 4), ("gres/tpu=1", WHOLE),
    ],
)  # fmt: skip
def test_a_share_is_a_millionth_at_least_and_the_whole_at_most(tres: str, millionths: int) -> None:
    assert share(tres, 1, 8, 16384, {"gpu": 4}) == millionths
    assert share("cpu=1", 1, 0, 16384, {"gpu": 0}) == WHOLE, "of what a node has none of"


@pytest.mark.parametrize(
    ("tres", "gres"),
    [
        ("gres/gpu=2", {"gpu:t4": 4, "fpga": 1}),
        ("gres/gpu=2", {"gpu:t4": 3, "gpu:l4": 1}),
        ("gres/gpu=2,gres/gpu:t4=2", {"gpu:t4": 4}),
        ("gres/gpu=1,gres/gpu:l4=1", {"gpu:t4": 3, "gpu:l4": 2}),
        ("gres/gpu=2,gres/gpu:x=9", {"gpu": 4}),
    ],
)
def test_gpus_count_with_and_without_their_type(tres: str, gres: dict[str, int]) -> None:
    assert share(f"cpu=1,{tres}", 1, 32, 16384, gres) == WHOLE // 2


def test_memory_is_told_in_any_unit_and_what_is_no_number_is_left_out() -> None:
    units = amounts("a=512K,b=3,c=2M,d=2G,e=2T,f=2P,g=1.2.3,h=,i")
    assert units == {
        "a": 0.5, "b": 3.0, "c": 2.0, "d": 2048.0, "e": 2.0 * 1024**2, "f": 2.0 * 1024**3
    }  # fmt: skip


def test_a_machine_that_is_used_whole_has_no_rest() -> None:
    lease = PaidTime(T, T + HOUR, 1.0, up=T, over=T + HOUR)
    (hour,) = split(lease, (RunUse(0, T, T + HOUR, WHOLE),), (), 0, 2 * T)
    assert hour.parts == {0: 1_000_000}


def test_a_drained_node_without_work_is_told_so() -> None:
    lease = PaidTime(T, T + HOUR, 3.6, up=T, over=T + HOUR)
    drains = (Drain(T + 30 * MINUTE, T + 40 * MINUTE),)
    assert parts(lease, drains=drains) == {Unused.IDLE: 3_000_000, Unused.DRAIN: 600_000}


@pytest.mark.parametrize(
    ("lease", "seconds", "paid"),
    [
        (1, 10, 60),
        (1, 61, 61),
        (2, 61, 62),
        (3600, 0, 3600),
        (3600, 1, 3600),
        (3600, 3600, 3600),
        (3600, 3601, 7200),
    ],
)
def test_begun_leases_are_paid_whole(lease: int, seconds: int, paid: int) -> None:
    assert paid_until(1000, 1000 + seconds, lease) == 1000 + paid


def test_a_machine_that_ended_before_it_began_is_paid_for_the_least() -> None:
    """As where a clock was set back."""
    assert paid_until(1000, 990, 1) == 1000 + 60
    assert paid_until(1000, 990, 3600) == 1000 + 3600


times = st.integers(0, 5 * HOUR)
uses = st.lists(
    st.tuples(times, times, st.integers(1, WHOLE)).map(
        lambda one: RunUse(0, T + min(one[:2]), T + max(one[:2]), one[2])
    ),
    max_size=8,
)


@given(
    lease=st.tuples(times, times, times, times, st.floats(0, 100)).map(
        lambda one: PaidTime(
            T + min(one[:2]), T + max(one[:2]), one[4], up=T + one[2], over=T + one[3]
        )
    ),
    some=uses,
    drains=st.lists(st.tuples(times, times).map(lambda d: Drain(T + min(d), T + max(d)))),
    cuts=st.lists(times, max_size=4),
)
def test_parts_sum_to_the_charge_of_every_hour_and_hours_to_the_machines(
    lease: PaidTime, some: list[RunUse], drains: list[Drain], cuts: list[int]
) -> None:
    numbered = [use._replace(run=number) for number, use in enumerate(some)]
    edges = [0, *sorted(T + cut for cut in cuts), 2 * T]
    total, before = 0, None
    for since, until in pairwise(edges):
        for hour in split(lease, numbered, drains, since, until):
            assert sum(hour.parts.values()) == hour.micro >= 0
            assert min(hour.parts.values()) >= 0
            assert hour.begin // HOUR == (hour.end - 1) // HOUR
            assert before is None or before == hour.begin
            before, total = hour.end, total + hour.micro
    exact = lease.price * (lease.end - lease.begin) / HOUR * 1e6
    assert total == lease.charged(lease.end)
    assert abs(total - exact) <= 0.5 + 1e-6 * exact


@given(st.integers(0, 10**9), st.dictionaries(st.text(max_size=2), st.integers(0, 10**13)))
def test_parts_are_as_near_as_whole_numbers_can_be(total: int, weights: dict[str, int]) -> None:
    if not any(weights.values()):
        return
    found = apportion(total, weights)
    whole = sum(weights.values())
    assert sum(found.values()) == total
    assert all(abs(n * whole - total * weights[k]) < whole for k, n in found.items())
